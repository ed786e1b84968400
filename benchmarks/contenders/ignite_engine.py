"""PyTorch-Ignite's engine. Tuned, its output is the loss as it is on the device, not read in every step."""

import ignite.distributed as idist
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from torch.utils.data import DistributedSampler

from .settings import Options, ddp_options, make_loader, make_optimizer, read_options, training_set
from .workloads import LOG_EVERY, SEED, Workload, chosen_workload


def train(local_rank: int, options: Options, workload: Workload) -> None:
    """Train, log and save."""
    torch.manual_seed(SEED)
    model = idist.auto_model(workload.build_model(), **ddp_options(options.tuned))
    optimizer = idist.auto_optim(make_optimizer(model.parameters(), workload, options.tuned))
    dataset = training_set(workload, options.tuned)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    loader = make_loader(dataset, workload, options.tuned, sampler)
    read = {"output_transform": lambda x, y, y_pred, loss: loss.detach()} if options.tuned else {}
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy, "cpu", **read)

    @trainer.on(Events.EPOCH_STARTED)
    def set_epoch(engine: Engine) -> None:
        sampler.set_epoch(engine.state.epoch - 1)

    @trainer.on(Events.ITERATION_COMPLETED(every=LOG_EVERY))
    def log(engine: Engine) -> None:
        if idist.get_rank() == 0:
            print(f"epoch {engine.state.epoch} step {engine.state.iteration} loss {float(engine.state.output):.4f}")

    saver = Checkpoint({"model": model, "optimizer": optimizer}, DiskSaver(str(options.out)), n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=workload.steps_of_epoch), saver)
    trainer.run(loader, max_epochs=workload.epochs)


def main() -> None:
    """Train, among the other ranks."""
    options, workload = read_options(), chosen_workload()
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(train, options, workload)


if __name__ == "__main__":
    main()
