"""A plain loop on one GPU, without DDP, metrics or checkpoints: as fast as the chosen precision and layout allow."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler

from .settings import as_it_is, make_optimizer
from .workloads import LOG_EVERY, SEED, Workload, chosen_workload


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    for name in ("--tf32", "--tf32-convolutions", "--bf16", "--channels-last", "--compile"):
        parser.add_argument(name, action="store_true")
    return parser.parse_args()


def train(options: argparse.Namespace, workload: Workload) -> None:
    """Train, and print the loss now and then."""
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32 or options.tf32_convolutions
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if options.channels_last else torch.preserve_format
    model = workload.build_model().to(options.device)
    if options.channels_last:
        model = torch.nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
    if options.compile:
        model.compile()
    optimizer = make_optimizer(model.parameters(), workload, tuned=True)
    dataset, pinned = workload.load_data()[0], options.device == "cuda"
    sampler = RandomSampler(dataset)
    loader = DataLoader(dataset, workload.batch, sampler=sampler, collate_fn=as_it_is, pin_memory=pinned)
    step = 0
    for _ in range(workload.epochs):
        for inputs, labels in loader:
            step += 1
            inputs = inputs.to(options.device, memory_format=layout, non_blocking=True)
            labels = labels.to(options.device, non_blocking=True)
            with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
                loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_EVERY == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")  # the counting of collectives wants one
    train(read_options(), chosen_workload())
    dist.destroy_process_group()
