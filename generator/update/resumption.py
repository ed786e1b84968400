"""A run that a project has begun goes on after the project is updated."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.combinations import Combination
from generator.check.static import imports_of, source_files
from generator.check.train.forking import Ended, forking, run_forked, train_all
from generator.check.train.rank import Run
from generator.check.train.samples import samples_of
from generator.check.train.training_case import environment
from generator.render.project import recorded_answers

STOP, END = 3, 5  # steps
OPTIONS = ["--device", "cpu", "--backend", "gloo", "--global-batch-size", "24", "--epochs", "2", "--seed", "8"]
REFUSED = 2  # the exit code of a mistake that is told in one line


@dataclass
class Resumed:
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str = ""  # what the updated project says where it does not take the checkpoint


def resume_all(folders: Sequence[Path], at_once: int) -> Iterator[tuple[Path, Resumed]]:
    """Train each folder's project old/ on two processes, go on with its checkpoint in new/, and yield how that went."""
    with forking() as name_modules:
        name_modules(imports_of(source_files(folder / side) for folder in folders for side in ("old", "new")))
        yield from train_all(resume, folders, at_once)


def train(project: Path, run_dir: Path, steps: int, *options: str) -> Ended:
    answers = Combination.of(recorded_answers(project))
    samples = samples_of({answers.task}, project.parent / "samples")
    data = ["--data", str(samples[answers.task])] if samples else []
    every = [*OPTIONS, *data, "--run-dir", str(run_dir), "--max-steps", str(steps), *options]
    return run_forked(Run(project, answers.launcher, every, environment(project.parent), None, answers.logger))


def resume(folder: Path) -> Resumed:
    """Stop the old project's run half-way, and let both projects go on from there."""
    run_dir, without_update = folder / "run", folder / "run-without-update"
    half = train(folder / "old", run_dir, STOP)
    if half.complaint:
        return Resumed([f"the project does not train before its update: {half.complaint}"])
    shutil.copytree(run_dir, without_update)
    before = train(folder / "old", without_update, END, "--resume")
    after = train(folder / "new", run_dir, END, "--resume")
    if after.complaint:
        # The line in which the program says that it cannot take this checkpoint, if it does.
        lines = [line for text in after.output for line in text.splitlines() if REFUSED in after.codes]
        if refused := next((line for line in lines if "error: " in line and str(run_dir) in line), ""):
            return Resumed(refused=refused)
        return Resumed([f"the updated project does not go on from the old checkpoint: {after.complaint}"])
    # Of rank 0, the steps that followed the checkpoint.
    with_update, without = ([step.weights for step in ended.seen[0].steps] for ended in (after, before))
    if len(with_update) != END - STOP:
        steps = f"{len(with_update)} steps follow step {STOP}, where {END - STOP} are left"
        return Resumed([f"the updated project does not go on where the old one stopped: {steps}"])
    same = with_update == without
    return Resumed(notes=[] if same else ["after its update, the project computes other numbers than before"])
