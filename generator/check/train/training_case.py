"""Trains each project, stops it half-way, resumes it, and judges the results.

In each class of combinations that must be numerically equal, one reference also runs without an interruption.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from generator.answers.combinations import Combination
from generator.check.train.forking import FORKING, run_forked
from generator.check.train.rank import Run
from generator.check.train.records import FIRST_USES
from generator.check.train.verification import RankTrace, TrainingResult, verify
from generator.render.scratch import die_with_parent

# An epoch has 89 samples (see preparation.py), so 89 // 12 = 7 micro-batches and 4 steps, the last of them on one
# micro-batch alone. STOP is within the first epoch, END within the second.
STOP, END = 3, 5
OPTIONS = {
    "--device": "cpu",
    "--backend": "gloo",
    "--global-batch-size": "24",
    "--accum-steps": "2",
    "--epochs": "3",
    "--log-every": "3",
    "--warmup-steps": "0",
    "--lr": "0.01",
    "--seed": "8",  # with it, the loss falls within these few steps, and none overflows in float16
    "--clip-norm": "1",
}
# float16 has a scaler, whose state a checkpoint must hold. On CPUs it takes ten times as long: it gets fewer samples.
OPTIONS_OF = {
    ("amp", "torch"): [("--precision", "fp16")],
    # Large models, images and windows would only take longer.
    ("task", "images"): [("--lr", "0.002"), ("--image-size", "16"), ("--width", "8")],
    ("task", "language"): [("--width", "32"), ("--layers", "1"), ("--heads", "2"), ("--context", "16")],
}

# W&B records offline, without data about the machine, which would take longer than the training.
WANDB = {
    "WANDB_MODE": "offline",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false",
}

# On CPUs with Gloo, the answers to these questions do not change numbers.
NEUTRAL = ("launcher", "backend", "sync_bn", "logging")
# On CPUs, apex computes in float32, so its numbers equal those without it.
EQUAL = {("amp", "apex"): ("amp", "none")}


def numeric_class(combination: Combination) -> tuple[tuple[str, Any], ...]:
    """Return the answers that decide the numbers. Combinations with the same ones must end on equal weights."""
    return tuple(EQUAL.get(answer, answer) for answer in combination.answers if answer[0] not in NEUTRAL)


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a program, without those of its launcher and of the person who runs the check."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(folder), **WANDB, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def first_uses(loggers: set[str], folder: Path) -> Mapping[str, Path]:
    """Make the folder that every run directory starts with, for each logger whose first use is slow."""
    made = {logger: folder / logger for logger in sorted(loggers & FIRST_USES.keys())}
    for logger, place in made.items():
        if not place.exists():  # from an earlier call
            place.mkdir(parents=True)
            process = FORKING.Process(target=use_first, args=(logger, place))
            process.start()
            process.join()
            if process.exitcode:
                raise RuntimeError(f"{logger} cannot be used here: {(place / 'first-use.txt').read_text()}")
    return made


def use_first(logger: str, place: Path) -> None:
    """Use a logger for the first time in this forked process. Its output goes to a file."""
    die_with_parent()
    with open(place / "first-use.txt", "wb") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
    FIRST_USES[logger](place)


@dataclass
class TrainingCase:
    combination: Combination
    folder: Path  # of its project/ and its runs
    reference: bool  # whether to also run it uninterrupted
    first_use: Path | None = None  # copied into new run directories
    prefix: str = ""  # of the names of its run directories
    samples: Path | None = None  # training data, if the task brings none

    def run(self, name: str, *options: str, look: bool = True) -> Run:
        """Return one launch of its program in the run directory of this name. `look`: read the results at the end."""
        run_dir = self.folder / f"{self.prefix}{name}"
        if self.first_use and not run_dir.exists():
            shutil.copytree(self.first_use, run_dir)
        own = OPTIONS | {key: value for each in self.combination.answers for key, value in OPTIONS_OF.get(each, ())}
        own |= {"--data": str(self.samples)} if self.samples else {}
        every = [*(word for pair in own.items() for word in pair), "--run-dir", str(run_dir), *options]
        env = environment(self.folder)
        launcher, logger = self.combination.answer("launcher"), self.combination.answer("logging")
        read = run_dir if look else None
        return Run(self.folder / "project", launcher, every, env, read, logger)

    def start(
        self, name: str, stage: str, trained: TrainingResult, *options: str, look: bool = True
    ) -> list[RankTrace]:
        """Run the program, write its output to files, and return the traces of its ranks; [] after a failure."""
        ended = run_forked(self.run(name, *options, look=look))
        for index, text in enumerate(ended.output):
            file = self.folder / f"{self.prefix}{name if name == 'whole' else stage}-output-{index}.txt"
            file.write_text(text)
        if name == "run":
            trained.seconds[stage] = ended.seconds
        limited = (text for text in ended.output if "File too large" in text)
        complaint = ended.complaint or next(limited, "")
        if "File too large" in complaint:  # the limit on the size of files, which every rank but 0 has
            complaint = f"a rank other than 0 wrote a file, for which it gets the error below\n{complaint}"
        if complaint:
            trained.failures.append((stage, complaint))
        return [] if complaint else ended.seen


def run_case(case: TrainingCase) -> TrainingResult:
    """Train a combination, stop it half-way, resume it, and judge what it left."""
    trained, of_whole = TrainingResult(), TrainingResult()
    resumed, whole, logger = [], [], case.combination.answer("logging")
    half = case.start("run", "train", trained, "--max-steps", str(STOP), look=False)
    if half:
        resumed = case.start("run", "resume", trained, "--max-steps", str(END), "--resume")
    if resumed and case.reference:
        whole = case.start("whole", "train", trained, "--max-steps", str(END))
    if not trained.failures:
        verify(trained, logger, [half, resumed], [STOP, END])
    if whole and not trained.failures:
        verify(of_whole, logger, [whole], [END])
        trained.failures += of_whole.failures
        trained.whole = {key: asdict(of_whole)[key] for key in ("trail", "scales", "parts")}
    return trained


def compare(trained: TrainingResult, reference: TrainingResult, own: bool, name: str) -> tuple[str, str] | None:
    """Return how an interrupted run differs from an uninterrupted one, as stage and text; None if it does not."""
    whole = reference.whole
    until_stop = first_difference(trained.trail[:STOP], whole["trail"][:STOP])
    if until_stop is not None and not own:
        return "agree", f"its weights differ from those of {name} from step {until_stop + 1} on"
    differing = []
    if (step := first_difference(trained.trail, whole["trail"])) is not None:
        differing.append(f"the weights from step {step + 1} on")
    if (step := first_difference([*map(list, trained.scales)], [*map(list, whole["scales"])])) is not None:
        differing.append(f"the scale of the loss from step {step + 1} on")
    # States of random number generators may differ between combinations, since a logger may use them.
    common = [part for part in trained.parts if part in whole["parts"] and (own or part != "ranks")]
    differing += [f"{part} in the last checkpoint" for part in common if trained.parts[part] != whole["parts"][part]]
    other = f"the run of {'the same program' if own else name} that was not stopped"
    said = f"stopped after step {STOP} and resumed, it differs from {other}: {', '.join(differing)}"
    return ("resume", said) if differing else None


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    pairs = enumerate(zip_longest(one, other))
    return next((place for place, (left, right) in pairs if left != right), None)
