"""Lightning's Trainer. Tuned, it has no progress bar, and its log is only told of the losses that it keeps."""

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import AdamW

from .settings import RANKS, Options, ddp_options, make_loader, make_optimizer, read_options, training_set
from .workloads import LOG_EVERY, SEED, Workload, chosen_workload


class Classifier(lightning.LightningModule):
    """The network with its training step."""

    def __init__(self, workload: Workload, tuned: bool) -> None:
        super().__init__()
        self.workload = workload
        self.tuned = tuned
        self.model = workload.build_model()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        inputs, labels = batch
        loss = F.cross_entropy(self.model(inputs), labels)
        if not self.tuned or (self.global_step + 1) % LOG_EVERY == 0:
            self.log("loss", loss.detach())
        return loss

    def configure_optimizers(self) -> AdamW:
        """Return the optimizer."""
        return make_optimizer(self.model.parameters(), self.workload, self.tuned)


def main() -> None:
    """Train."""
    options, workload = read_options(), chosen_workload()
    torch.manual_seed(SEED)
    loader = make_loader(training_set(workload, options.tuned), workload, options.tuned)
    make_trainer(options, workload).fit(Classifier(workload, options.tuned), loader)


def make_trainer(options: Options, workload: Workload) -> lightning.Trainer:
    """The trainer, with its default progress bar where it is not tuned."""
    checkpoints = ModelCheckpoint(options.out, every_n_train_steps=workload.steps_of_epoch, save_top_k=-1)
    return lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy=DDPStrategy(**ddp_options(options.tuned)),
        max_epochs=workload.epochs,
        logger=CSVLogger(options.out),
        log_every_n_steps=LOG_EVERY,
        callbacks=[checkpoints],
        enable_progress_bar=not options.tuned,
        enable_model_summary=not options.tuned,
    )


if __name__ == "__main__":
    main()
