"""DDP as most tutorials have it: the loss is cloned, averaged over the ranks and read in every step."""

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .settings import Options, among_ranks, plain_ddp, save
from .workloads import LOG_EVERY, Workload


def reduce_tensor(tensor: Tensor) -> Tensor:
    """The mean over all ranks."""
    reduced = tensor.clone()
    dist.all_reduce(reduced)
    return reduced / dist.get_world_size()


def train(options: Options, workload: Workload) -> None:
    """Train, log and save."""
    model, optimizer, loader, sampler = plain_ddp(options, workload)
    rank, step, running = dist.get_rank(), 0, 0.0
    for epoch in range(workload.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            step += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running += reduce_tensor(loss.detach()).item()
            if step % LOG_EVERY == 0:
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {running / LOG_EVERY:.4f}")
                running = 0.0
            if rank == 0 and step % workload.steps_of_epoch == 0:
                save(model, optimizer, options.out / f"step-{step}.pt")


if __name__ == "__main__":
    among_ranks(train)
