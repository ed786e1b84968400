"""The Trainer of Hugging Face's transformers. Tuned, it has no progress bar, and does not look at each loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from .settings import RANKS, Options, read_options
from .workloads import LOG_EVERY, SEED, Batches, Workload, chosen_workload

Sample = dict[str, Tensor]


class Samples(Dataset[Sample]):
    """The training set as the Trainer wants it: each sample is a dict."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Sample:
        inputs, labels = self.batches[index]
        return {"inputs": inputs, "labels": labels}


class WholeBatches(Samples):
    """The same, by whole batches."""

    def __getitems__(self, indices: list[int]) -> Sample:
        """Return a batch, which the data collator is to leave as it is."""
        inputs, labels = self.batches.__getitems__(indices)
        return {"inputs": inputs, "labels": labels}


class Classifier(nn.Module):
    """The network with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor) -> Sample:
        """Return the loss and the logits."""
        logits = self.model(inputs)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train."""
    options, workload = read_options(), chosen_workload()
    torch.manual_seed(SEED)
    batches = workload.load_data()[0]
    trainer = Trainer(
        Classifier(workload.build_model()),
        make_arguments(options, workload),
        train_dataset=WholeBatches(batches) if options.tuned else Samples(batches),
        **({"data_collator": lambda batch: batch} if options.tuned else {}),
    )
    trainer.train()


def make_arguments(options: Options, workload: Workload) -> TrainingArguments:
    """The arguments of the Trainer: it hands no other option on to DDP than those that are tuned here."""
    tuned = {"ddp_broadcast_buffers": False, "disable_tqdm": True, "logging_nan_inf_filter": False}
    tuned |= {"ddp_find_unused_parameters": False}
    return TrainingArguments(
        output_dir=str(options.out),
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=workload.batch // RANKS,
        num_train_epochs=workload.epochs,
        learning_rate=workload.lr,
        lr_scheduler_type="constant",
        weight_decay=workload.weight_decay,
        optim="adamw_torch_fused" if options.tuned else "adamw_torch",
        max_grad_norm=0.0,  # the others do not clip, either
        logging_steps=LOG_EVERY,
        report_to="none",
        save_strategy="steps",
        save_steps=workload.steps_of_epoch,
        remove_unused_columns=False,
        **(tuned if options.tuned else {}),
    )


if __name__ == "__main__":
    main()
