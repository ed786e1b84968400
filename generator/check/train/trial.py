"""What is done with each project: it is trained, stopped half-way, resumed, and judged.

Some combinations are also run without a stop: one reference of each class of those that must be numerically equal.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from generator.answers.combinations import Combination
from generator.check.train.forking import Ended, Job, Run, Task
from generator.check.train.judgement import Case, Judgement, judge
from generator.check.train.records import FIRST_USES, begin_run_dir

# An epoch has 89 samples (see preparation.py), so 89 // 12 = 7 micro-batches and 4 steps, the last of them on one
# micro-batch alone. The stop is within the first epoch, the end within the second.
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
    "--seed": "8",  # here the loss falls within so few steps, and in float16 none of them overflows
    "--clip-norm": "1",
}
# float16 has a scaler, whose state a checkpoint must hold. On CPUs it takes ten times as long: it gets fewer samples.
OPTIONS_OF = {("amp", "torch"): {"--amp-dtype": "fp16"}}

# W&B records here, and leaves out what it tells of the machine: that takes longer than the training.
WANDB = {
    "WANDB_MODE": "offline",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_X_DISABLE_META": "true",
    "WANDB_X_DISABLE_STATS": "true",
    "WANDB_X_SAVE_REQUIREMENTS": "false",
}

# On CPUs with Gloo these questions change no number,
NEUTRAL = ("launcher", "backend", "sync_bn", "logging")
# and this answer none in comparison with another one: apex computes in float32 there.
EQUAL = {("amp", "apex"): ("amp", "none")}


@dataclass
class Trained:
    """What is known of a combination after its runs, in plain types."""

    failures: list[tuple[str, str]] = field(default_factory=list)  # stage and text
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    notes: list[str] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)  # hash of the weights after each step, over the stop
    scales: list[tuple[float, int]] = field(default_factory=list)  # of the loss, after each step
    parts: dict[str, str] = field(default_factory=dict)  # hash of each part of the last checkpoint
    recorded: list[tuple[int, float]] = field(default_factory=list)  # steps and values of train/loss
    whole: dict[str, Any] = field(default_factory=dict)  # trail, scales and parts of the run without a stop


def numeric_class(combination: Combination) -> tuple[tuple[str, Any], ...]:
    """What decides the numbers: combinations of the same class must end on the same weights, bit for bit."""
    return tuple(EQUAL.get(answer, answer) for answer in combination.answers if answer[0] not in NEUTRAL)


def environment(folder: Path) -> dict[str, str]:
    """The variables that a program sees beside those of its launcher: nothing of the person who runs the check."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    return kept | {"HOME": str(folder), **WANDB, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def options_of(combination: Combination) -> list[str]:
    """The options with which a combination is trained."""
    options = dict(OPTIONS)
    for answer in combination.answers:
        options |= OPTIONS_OF.get(answer, {})
    return [word for pair in options.items() for word in pair]


def first_uses(loggers: set[str], folder: Path) -> Job[Mapping[str, Path]]:
    """Make the folder that begins every run directory of a logger, for those whose first use takes long."""
    made = {}
    for logger in sorted(loggers & FIRST_USES.keys()):
        made[logger] = folder / logger
        if made[logger].exists():
            continue  # from an earlier call
        made[logger].mkdir(parents=True)
        ended = yield Task(FIRST_USES[logger], (made[logger],))
        if ended.complaint:
            raise RuntimeError(f"{logger} cannot be used here: {ended.complaint}")
    return made


@dataclass
class Trial:
    """One combination, and where it is tried."""

    combination: Combination
    folder: Path  # holds its project/, and takes its runs
    reference: bool  # whether to run it without a stop, too
    first_use: Path | None = None  # begins its run directories
    prefix: str = ""  # begins the names of its run directories

    def run(self, name: str, *options: str, look: bool = True) -> Run:
        """One start of its program, in the run directory of this name, which is to be looked at in the end or not."""
        run_dir = self.folder / f"{self.prefix}{name}"
        if self.first_use and not run_dir.exists():
            begin_run_dir(run_dir, self.first_use)
        every = [*options_of(self.combination), "--run-dir", str(run_dir), *options]
        env = environment(self.folder)
        launcher, logger = self.combination.launcher, self.combination.logger
        return Run(self.folder / "project", launcher, every, env, run_dir if look else None, logger)

    def keep(self, name: str, ended: Ended) -> None:
        """Write down what the processes printed."""
        for index, text in enumerate(ended.output):
            (self.folder / f"{self.prefix}{name}-output-{index}.txt").write_text(text)


def try_out(trial: Trial) -> Job[Trained]:
    """Train a combination, stop it half-way, resume it, and judge what it left."""
    trained = Trained()
    half = yield trial.run("run", "--max-steps", str(STOP), look=False)
    trial.keep("train", half)
    trained.seconds["train"] = half.seconds
    if half.complaint:
        trained.failures.append(("train", explained(half.complaint)))
        return trained
    resumed = yield trial.run("run", "--max-steps", str(END), "--resume")
    trial.keep("resume", resumed)
    trained.seconds["resume"] = resumed.seconds
    if resumed.complaint:
        trained.failures.append(("resume", explained(resumed.complaint)))
        return trained
    whole = None
    if trial.reference:
        whole = yield trial.run("whole", "--max-steps", str(END))
        trial.keep("whole", whole)
        if whole.complaint:
            trained.failures.append(("train", explained(whole.complaint)))
            return trained
    take(trained, judge(Case(trial.combination.logger, STOP, END, half.seen, resumed.seen)))
    if whole and not trained.failures:
        of_whole = Trained()
        take(of_whole, judge(Case(trial.combination.logger, None, END, whole.seen, [])))
        trained.failures += of_whole.failures
        trained.whole = {key: asdict(of_whole)[key] for key in ("trail", "scales", "parts")}
    return trained


def take(trained: Trained, judgement: Judgement) -> None:
    """Take over a judgement."""
    trained.failures += judgement.failures
    trained.notes += judgement.notes
    trained.trail, trained.scales, trained.parts = judgement.trail, judgement.scales, judgement.parts
    trained.recorded = judgement.recorded


def explained(complaint: str) -> str:
    """Say what the limit on the size of files means, which every rank but 0 has."""
    if "File too large" in complaint:
        return f"a rank other than 0 wrote a file, for which it gets the error below\n{complaint}"
    return complaint


def compare(trained: Trained, reference: Trained, own: bool, name: str) -> tuple[str, str] | None:
    """Compare a run over a stop with the one without, of the same combination or of one that must be equal.

    Returns the stage and the text of what is wrong, if anything.
    """
    whole = reference.whole
    until_stop = first_difference(trained.trail[:STOP], whole["trail"][:STOP])
    if until_stop is not None and not own:
        return "agree", f"its weights differ from those of {name} from step {until_stop + 1} on"
    differing = []
    if (step := first_difference(trained.trail, whole["trail"])) is not None:
        differing.append(f"the weights from step {step + 1} on")
    if (step := first_difference(list(map(list, trained.scales)), list(map(list, whole["scales"])))) is not None:
        differing.append(f"the scale of the loss from step {step + 1} on")
    # The generators of random numbers are a combination's own: a logger may use them.
    common = [part for part in trained.parts if part in whole["parts"] and (own or part != "ranks")]
    differing += [f"{part} in the last checkpoint" for part in common if trained.parts[part] != whole["parts"][part]]
    if differing:
        return "resume", (
            f"stopped after step {STOP} and resumed, it differs from the run of "
            f"{'the same program' if own else name} that was not stopped: {', '.join(differing)}"
        )
    return None


def first_difference(one: list[Any], other: list[Any]) -> int | None:
    """The first place where two lists differ, counted from 0; None if they are equal."""
    for i, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))
