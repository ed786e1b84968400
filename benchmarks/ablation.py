"""Measures what each optimization of the generated project is worth.

Edited copies of the project run in turn with the project as it is generated.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from tools.rewriting import Rewrite, RewriteError

from . import runner
from .contenders.workloads import WORKLOADS
from .runner import CommandError, Record, in_turn
from .trials import Contender, Trial, render_project

BASELINE = "as generated"
SMALL = ("small_cnn",)
BOTH = (*SMALL, "resnet")
ALL = (*BOTH, "wide")


@dataclass(frozen=True)
class Edit:
    """A change at one place that takes an optimization out, and the workloads on which it may matter."""

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


GROUP = "runtime/distributed.py"
EDITS = (
    Edit(
        "BatchNorm's buffers broadcast before every forward pass",
        GROUP,
        Rewrite("$OPTIONS[$NAME] = False", "$OPTIONS[$NAME] = True", "wrap"),
        BOTH,
    ),
    Edit(
        "every rank with as many threads as the machine has cores",
        GROUP,
        Rewrite("use_cores($X)", "use_cores(len(own.cores))"),
        BOTH,
    ),
    Edit("threads that interrupt each other", GROUP, Rewrite("os.sched_setscheduler($$$A)", ""), BOTH),
    Edit("an optimizer that is not fused", "task.py", Rewrite("fused=$X", "fused=None"), BOTH),
    Edit("gradients copied into buckets", GROUP, Rewrite('$OPTIONS["gradient_as_bucket_view"] = True', ""), ALL),
    Edit(
        "the data sample by sample",
        "runtime/collation.py",
        Rewrite('hasattr($DATASET, "__getitems__")', "len(indices) == 0", "BatchDataset._load"),
    ),
    Edit("losses added up in every step", "runtime/metrics.py", Rewrite("AT_ONCE = $N", "AT_ONCE = 1")),
    Edit(
        "metrics reduced in every step",
        "train.py",
        Rewrite("progress.is_reduction_due()", "True", "main"),
    ),
)


@dataclass
class Benchmark(runner.Benchmark):
    """Run the project with each optimization taken out."""

    workloads: tuple[str, ...] = ALL
    steps: int = 0
    """Train only this many steps (0: as many as the workload has)."""

    key: ClassVar = ("workload",)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of a workload up to each round."""
        for workload in self.workloads:
            project = render_project(folder / workload / "project")
            edits = {edit.name: edit for edit in EDITS if workload in edit.workloads}
            projects = {BASELINE: project}
            projects |= {name: edit.apply(project, folder / workload / name) for name, edit in edits.items()}
            trial = Trial(workload, WORKLOADS[workload].shortened(self.steps))
            runs = {name: partial(trial.run, Contender(str(place))) for name, place in projects.items()}
            for found in in_turn(runs, self.rounds):
                yield [{"workload": workload, "edit": name, **numbers} for name, numbers in found.items()]
