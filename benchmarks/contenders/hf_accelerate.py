"""A loop with Hugging Face Accelerate."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs

from .settings import Options, ddp_options, make_loader, make_optimizer, read_options, training_set
from .workloads import LOG_EVERY, SEED, Workload, chosen_workload


def train(accelerator: Accelerator, options: Options, workload: Workload) -> None:
    """Train, log and save."""
    torch.manual_seed(SEED)
    model = workload.build_model()
    optimizer = make_optimizer(model.parameters(), workload, options.tuned)
    loader = make_loader(training_set(workload, options.tuned), workload, options.tuned)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(workload.epochs):
        for inputs, labels in loader:
            step += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            if accelerator.is_main_process and step % LOG_EVERY == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if step % workload.steps_of_epoch == 0:
                accelerator.save_state(str(options.out / f"step-{step}"))


def main() -> None:
    """Train, among the other ranks."""
    options, workload = read_options(), chosen_workload()
    handlers = [make_handler(options.tuned)]
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    train(accelerator, options, workload)
    accelerator.end_training()


def make_handler(tuned: bool) -> DistributedDataParallelKwargs:
    """What Accelerate hands on to DDP."""
    given = ddp_options(tuned)
    given["broadcast_buffers"] = given.pop("forward_sync_buffers", True)
    return DistributedDataParallelKwargs(**given)


if __name__ == "__main__":
    main()
