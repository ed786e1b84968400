"""The state that all stages of a check share: options, folders, results so far, and keys of verdicts."""

import functools
import hashlib
import importlib.util
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE
from generator.check.results import Advance, Failure, Outcome, Verdict
from generator.check.static import SourceFile
from generator.check.train.forking import forking
from generator.check.train.training_case import numeric_class
from generator.check.train.verification import TrainingResult
from generator.render.cache import Cache, Remembered
from generator.render.project import RenderError
from generator.render.workers import Rendered, Workers

DECISIVE = ("copier", "torch", "black", "ruff", "mypy")  # packages that the report names
DECIDING = ("answers/*.py", "render/*.py", "check/*.py", "check/train/*.py")  # files of this package
version = functools.cache(metadata.version)


@dataclass(frozen=True)
class CheckOptions:
    combinations: Sequence[Combination]
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    keep: bool = False  # whether to keep all projects and runs, and not only those that fail
    launchers: str = "forked"  # or "real": a covering set also runs by its real launchers
    progress: Advance = lambda stage, done, total: None


class CheckState:
    """One running check. ``stack`` ends the processes that must end with it."""

    def __init__(self, options: CheckOptions, folder: Path, workers: Workers, stack: ExitStack) -> None:
        self.options = options
        self.folder = folder
        self.left_at = Path(tempfile.gettempdir()) / folder.name  # where people find it after the check
        self.workers = workers
        # Starts the process that ranks are forked from, if it does not run yet. It imports torch and more.
        self.begin_forking = functools.cache(lambda: stack.enter_context(forking()))
        self.outcomes = {each: Outcome(each) for each in options.combinations}
        self.verdict = Verdict([*self.outcomes.values()], launchers=options.launchers, versions=versions())
        self.snapshot = folder / "template"  # all projects are written from it
        self.known_trees: Remembered  # hashes of the projects that it writes
        self.rendered: dict[Combination, Rendered] = {}
        self.trained: dict[Combination, TrainingResult] = {}
        self.fresh: list[Combination] = []  # rendered, and not in the cache
        self.chosen: list[Combination] = []  # fresh combinations to train
        self.sources: dict[Combination, list[SourceFile]] = {}  # of fresh combinations
        self.references: list[Combination] = []  # chosen combinations that also run uninterrupted

    def place(self, combination: Combination) -> Path:
        return self.folder / combination.name

    def project(self, combination: Combination) -> Path:
        return self.place(combination) / "project"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.verdict.stages[name] = time.perf_counter() - started

    def fail(self, combination: Combination, stage: str, text: str) -> None:
        said = text.replace(str(self.folder), str(self.left_at))
        self.outcomes[combination].failures.append(Failure(stage, said, str(self.left_at / combination.name)))

    def fails_in_training(self, combination: Combination) -> bool:
        return any(failure.stage in ("train", "resume", "agree") for failure in self.outcomes[combination].failures)

    def classes(self) -> Iterable[list[Combination]]:
        """Return the rendered combinations, grouped by class: a class must end on the same numbers."""
        classes: dict[Any, list[Combination]] = {}
        for combination in self.rendered:
            classes.setdefault(numeric_class(combination), []).append(combination)
        return classes.values()

    def owners_part(self, combination: Combination) -> tuple[Any, str]:
        """Return a key that combinations share if they train the same owner's files to the same numbers."""
        return numeric_class(combination), self.rendered[combination].own

    def tidy(self) -> Path | None:
        """Delete everything that nobody needs, and return the folder with the rest."""
        unwanted = [self.folder / name for name in ("template", "types", "first-use", "samples")]
        if not self.options.keep:
            unwanted += [self.place(each) for each, outcome in self.outcomes.items() if outcome.passed]
        for each in unwanted:
            shutil.rmtree(each, ignore_errors=True)
        if not self.options.keep and not any(self.folder.iterdir()):
            self.folder.rmdir()
        elif self.folder != self.left_at:
            shutil.move(self.folder, self.left_at)
        return self.left_at if self.left_at.exists() else None


def versions() -> dict[str, str]:
    """Return the versions that decide a verdict. Raises RenderError if one of the tools is missing."""
    missing = [name for name in DECISIVE if importlib.util.find_spec(name) is None]
    if missing:
        raise RenderError(f"{', '.join(missing)} not installed: a check needs pip install --editable '.[test]'")
    return {"python": platform.python_version()} | {name: version(name) for name in DECISIVE}


def verdict_key(tree: str) -> str:
    return hashlib.sha256(f"{tree} {runner_digest()}".encode()).hexdigest()


def file_key(stage: str, file: SourceFile) -> str:
    tools = " ".join(f"{tool} {version(tool)}" for tool in ("black", "ruff", "mypy"))
    return hashlib.sha256(f"{stage} {file.key} {tools}".encode()).hexdigest()


@functools.cache
def runner_digest() -> str:
    """Return a hash of all that decides a verdict except the rendered tree: checks, Python, installed packages."""
    package = Path(__file__).parent.parent
    files = sorted(file for pattern in DECIDING for file in package.glob(pattern))
    installed = sorted({f"{each.name}=={each.version}" for each in metadata.distributions()})
    words = [platform.python_version().encode(), *(file.read_bytes() for file in files), "\n".join(installed).encode()]
    return hashlib.sha256(b"".join(words)).hexdigest()
