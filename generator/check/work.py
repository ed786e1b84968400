"""What all stages of a check share: what to check, where, and what is known so far."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE
from generator.check.results import Advance, Failure, Outcome, Verdict
from generator.check.train.forking import forking
from generator.check.train.trial import Trained, numeric_class
from generator.render.cache import Cache
from generator.render.workers import Workers


@dataclass(frozen=True)
class Order:
    """What to check, and how."""

    combinations: Sequence[Combination]
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    keep: bool = False  # whether to keep all projects and runs, and not only those that fail
    launchers: str = "forked"  # or "real": a covering set runs by its real launchers, too
    progress: Advance = lambda stage, done, total: None
    selection: str = "all"


class Work:
    """One check while it goes on."""

    def __init__(self, order: Order, verdict: Verdict, folder: Path, workers: Workers, stack: ExitStack) -> None:
        self.order = order
        self.verdict = verdict
        self.folder = folder
        self.left_at = Path(tempfile.gettempdir()) / folder.name  # where it is for people to look at, in the end
        self.workers = workers
        self.stack = stack  # of what must end with the check
        self.name_modules: Callable[[Iterable[str]], None] | None = None  # to the process that ranks are forked from
        self.outcomes = {each: Outcome(each) for each in order.combinations}
        self.digests: dict[Combination, str] = {}  # of rendered trees
        self.trained: dict[Combination, Trained] = {}
        self.fresh: list[Combination] = []  # rendered, and not known from the cache
        self.references: list[Combination] = []  # of the fresh ones, those that run without a stop, too

    def place(self, combination: Combination) -> Path:
        """Return the folder of a combination."""
        return self.folder / combination.name

    def project(self, combination: Combination) -> Path:
        """Return the rendered project of a combination."""
        return self.place(combination) / "project"

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage."""
        started = time.perf_counter()
        yield
        self.verdict.stages[name] = self.verdict.stages.get(name, 0.0) + time.perf_counter() - started

    def fail(self, combination: Combination, stage: str, text: str) -> None:
        """Note what is wrong with a combination."""
        said = text.replace(str(self.folder), str(self.left_at))
        self.outcomes[combination].failures.append(Failure(stage, said, str(self.left_at / combination.name)))

    def classes(self) -> dict[Any, list[Combination]]:
        """Return the combinations that were rendered, by what decides their numbers."""
        classes: dict[Any, list[Combination]] = {}
        for combination in self.digests:
            classes.setdefault(numeric_class(combination), []).append(combination)
        return classes

    def begin_forking(self) -> Callable[[Iterable[str]], None]:
        """Start the process that ranks are forked from, unless it runs already: it has much to import."""
        if self.name_modules is None:
            self.name_modules = self.stack.enter_context(forking())
        return self.name_modules

    def tidy(self) -> Path | None:
        """Take away what nobody wants to look at. Returns where the rest is."""
        for name in ("template", "types", "first-use"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if not self.order.keep:
            for outcome in self.outcomes.values():
                if outcome.passed:
                    shutil.rmtree(self.place(outcome.combination), ignore_errors=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        if self.folder.exists() and self.folder != self.left_at:
            shutil.move(self.folder, self.left_at)
        return self.left_at if self.left_at.exists() else None
