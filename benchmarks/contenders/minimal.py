"""The shortest DDP loop. Rank 0 logs its own loss. Tuned, it is the fastest plain loop there can be."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from .settings import Options, among_ranks, ddp_options, make_loader, make_optimizer, training_set
from .workloads import LOG_EVERY, SEED, Workload


def train(options: Options, workload: Workload) -> None:
    """Train, log and save."""
    torch.manual_seed(SEED)
    model = DistributedDataParallel(workload.build_model(), **ddp_options(options.tuned))
    optimizer = make_optimizer(model.parameters(), workload, options.tuned)
    dataset = training_set(workload, options.tuned)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    loader = make_loader(dataset, workload, options.tuned, sampler)
    rank, step = dist.get_rank(), 0
    for epoch in range(workload.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            step += 1
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % LOG_EVERY == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if rank == 0 and step % workload.steps_of_epoch == 0:
                states = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(states, options.out / f"step-{step}.pt")


if __name__ == "__main__":
    among_ranks(train)
