"""Edits of a generated project, each of which takes one optimisation out of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.rewriting import Rewrite, RewriteError

from .failures import CommandError

SMALL = ("small_cnn",)
BOTH = (*SMALL, "resnet")
ALL = (*BOTH, "wide")


@dataclass(frozen=True)
class Edit:
    """A change at one place, and the workloads on which it may matter."""

    name: str
    file: str  # "train.py", or a file of the package
    rewrite: Rewrite
    workloads: tuple[str, ...] = SMALL

    def apply(self, project: Path, place: Path) -> Path:
        """Write an edited copy of a project, and return its folder. Raises CommandError if the place is not there."""
        shutil.copytree(project, place)
        file = place / ("" if self.file == "train.py" else "ddp_project") / self.file
        try:
            edited = self.rewrite.applied(file.read_text(), self.file)
        except RewriteError as error:
            raise CommandError(f"{self.name}: {error}") from error
        file.write_text(edited)
        return place


EDITS = (
    Edit(
        "BatchNorm's buffers broadcast before every forward pass",
        "runtime/process_group.py",
        Rewrite("$OPTIONS[$NAME] = False", "$OPTIONS[$NAME] = True", "wrap"),
        BOTH,
    ),
    Edit(
        "every rank with as many threads as the machine has cores",
        "runtime/process_group.py",
        Rewrite("use_cores($X)", "use_cores(len(own.cores))"),
        BOTH,
    ),
    Edit(
        "threads that interrupt each other",
        "runtime/process_group.py",
        Rewrite("os.sched_setscheduler($$$A)", ""),
        BOTH,
    ),
    Edit("an optimizer that is not fused", "task.py", Rewrite("fused=$X", "fused=None"), BOTH),
    Edit(
        "gradients copied into buckets",
        "runtime/process_group.py",
        Rewrite('$OPTIONS["gradient_as_bucket_view"] = True', ""),
        ALL,
    ),
    Edit(
        "the data sample by sample",
        "runtime/batches.py",
        Rewrite('hasattr($DATASET, "__getitems__")', "len(batch.indices) == 0", "BatchDataset.__getitem__"),
    ),
    Edit("losses added up in every step", "runtime/meter.py", Rewrite("AT_ONCE = $N", "AT_ONCE = 1")),
    Edit(
        "metrics reduced in every step",
        "train.py",
        Rewrite("due or saving or leaving", "due or saving or True", "train_epoch"),
    ),
)
