"""A loop with Lightning Fabric."""

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

from .settings import RANKS, ddp_options, make_loader, make_optimizer, read_options, training_set
from .workloads import LOG_EVERY, SEED, chosen_workload


def main() -> None:
    """Train."""
    options, workload = read_options(), chosen_workload()
    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy=DDPStrategy(**ddp_options(options.tuned)))
    fabric.launch()
    torch.manual_seed(SEED)
    plain = workload.build_model()
    model, optimizer = fabric.setup(plain, make_optimizer(plain.parameters(), workload, options.tuned))
    loader = make_loader(training_set(workload, options.tuned), workload, options.tuned)
    loader = fabric.setup_dataloaders(loader)
    step = 0
    for epoch in range(workload.epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            step += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            if fabric.is_global_zero and step % LOG_EVERY == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if step % workload.steps_of_epoch == 0:
                fabric.save(options.out / f"step-{step}.pt", {"model": model, "optimizer": optimizer})


if __name__ == "__main__":
    main()
