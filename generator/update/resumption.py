"""A run that a project has begun goes on after the project is updated."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.combinations import Combination
from generator.check.static import source_files
from generator.check.train.forking import Ended, Job, Run, forking, train_all
from generator.check.train.modules import imports_of
from generator.check.train.trial import environment

STOP, END = 3, 5  # steps
OPTIONS = ["--device", "cpu", "--backend", "gloo", "--global-batch-size", "24", "--epochs", "2", "--seed", "8"]
REFUSED = 2  # the exit code of a mistake that is told in one line


@dataclass(frozen=True)
class Resumption:
    """A project before and after its update, in folder/old and folder/new."""

    folder: Path
    old: Combination
    new: Combination

    def run(self, side: str, run_dir: str, steps: int, *options: str) -> Run:
        """Start train.py of one side."""
        combination = self.old if side == "old" else self.new
        place = self.folder / run_dir
        every = [*OPTIONS, "--run-dir", str(place), "--max-steps", str(steps), *options]
        env = environment(self.folder)
        return Run(self.folder / side, combination.launcher, every, env, None, combination.logger)


@dataclass
class Resumed:
    """How that went."""

    resumption: Resumption
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str = ""  # what the updated project says where it does not take the checkpoint


def resume_all(resumptions: Iterable[Resumption], at_once: int) -> Iterable[Resumed]:
    """Train each old project on two processes, and go on with its checkpoint in the updated one."""
    each = list(resumptions)
    with forking() as name_modules:
        sides = [one.folder / side for one in each for side in ("old", "new")]
        name_modules(imports_of(source_files(side) for side in sides))
        yield from train_all(map(resume, each), at_once)


def resume(resumption: Resumption) -> Job[Resumed]:
    """Stop the old project's run half-way, and let both projects go on from there."""
    resumed = Resumed(resumption)
    half = yield resumption.run("old", "run", STOP)
    if half.complaint:
        resumed.wrong.append(f"the project does not train before its update: {half.complaint}")
        return resumed
    shutil.copytree(resumption.folder / "run", resumption.folder / "run-without-update")
    before = yield resumption.run("old", "run-without-update", END, "--resume")
    after = yield resumption.run("new", "run", END, "--resume")
    resumed.refused = refusal(after, str(resumption.folder / "run"))
    if resumed.refused:
        return resumed
    if after.complaint:
        resumed.wrong.append(f"the updated project does not go on from the old checkpoint: {after.complaint}")
    else:
        compare(resumed, before, after)
    return resumed


def refusal(ended: Ended, run_dir: str) -> str:
    """Return the line in which the program says that it cannot take this checkpoint, if it does."""
    lines = (line for text in ended.output for line in text.splitlines() if "error: " in line and run_dir in line)
    return next(lines, "") if REFUSED in ended.codes else ""


def compare(resumed: Resumed, before: Ended, after: Ended) -> None:
    """Look at the steps of rank 0 that followed the checkpoint, with the update and without it."""
    with_update, without = ([step.weights for step in ended.seen[0].steps] for ended in (after, before))
    if len(with_update) != END - STOP:
        resumed.wrong.append(
            f"the updated project does not go on where the old one stopped: {len(with_update)} steps follow "
            f"step {STOP}, where {END - STOP} are left"
        )
    elif with_update != without:
        resumed.notes.append("after its update, the project computes other numbers than before")
