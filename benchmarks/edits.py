"""Edits of a generated project, each of which takes one optimisation out of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from .failures import CommandError

SMALL = ("small_cnn",)
BOTH = (*SMALL, "resnet")
ALL = (*BOTH, "wide")


@dataclass(frozen=True)
class Edit:
    """A change to one line, and the workloads on which it may matter."""

    name: str
    file: str  # "train.py", or a module of the package
    old: str
    new: str
    workloads: tuple[str, ...] = SMALL

    def apply(self, project: Path, place: Path) -> Path:
        """Write an edited copy of a project, and give its folder. Raises CommandError where the text is not there."""
        shutil.copytree(project, place)
        file = place / ("" if self.file == "train.py" else "ddp_project") / self.file
        text = file.read_text()
        if text.count(self.old) != 1:
            raise CommandError(f"{self.name}: {self.file} has {self.old!r} {text.count(self.old)} times, not once")
        file.write_text(text.replace(self.old, self.new))
        return place


EDITS = (
    Edit(
        "BatchNorm's buffers broadcast before every forward pass",
        "distributed.py",
        'else "broadcast_buffers"] = False',
        'else "broadcast_buffers"] = True',
        BOTH,
    ),
    Edit(
        "every rank with as many threads as the machine has cores",
        "distributed.py",
        "torch.set_num_threads(max(1, cores_per_rank(world)))",
        "torch.set_num_threads(cores_per_rank(world) * world.local_world_size)",
        BOTH,
    ),
    Edit(
        "threads that interrupt each other",
        "distributed.py",
        'if hasattr(os, "SCHED_BATCH"):',
        'if not hasattr(os, "SCHED_BATCH"):',
        BOTH,
    ),
    Edit("an optimizer that is not fused", "train.py", "fused=True", "fused=None", BOTH),
    Edit("gradients copied into buckets", "distributed.py", "gradient_as_bucket_view=True", "static_graph=False", ALL),
    Edit(
        "the data sample by sample",
        "loaders.py",
        'if hasattr(self.dataset, "__getitems__"):',
        "if len(batch.indices) == 0:",
    ),
    Edit("losses added up in every step", "metrics.py", "AT_ONCE = 64", "AT_ONCE = 1"),
    Edit("metrics reduced in every step", "train.py", "if due or saving or leaving:", "if due or saving or True:"),
)
