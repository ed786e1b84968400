"""The update gate: whether the projects of released versions can be updated to the template as it is, without loss."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..cache import Cache
from ..progress import Advance
from ..questions import TEMPLATE
from ..workers import Workers
from .trial import PARTS, Part, Trial

PAIRS = 12  # of answers, at least
STRENGTH = 2  # of the covering set: every pair of answers


@dataclass
class Gate:
    """What to update, and how."""

    revisions: Sequence[str] = ()  # all releases where there are none
    template: Path = TEMPLATE
    cache: Cache | None = field(default_factory=Cache)
    progress: Advance = lambda part, done, total: None
    parts: Sequence[str] = tuple(PARTS)  # "repeats" needs "files" before it; "edits" and "resume" need "history"
    stop_early: bool = False  # after the first part that finds something
    only: Sequence[str] = ()  # answers, KEY=VALUE, of the projects that are carried over
    strength: int | None = STRENGTH  # of the set of answers that covers them; None: all of them
    pairs: int = PAIRS
    seed: int = 0  # of the choice of these pairs

    def run(self, workers: Workers, folder: Path) -> list[Part]:
        """Try all parts in a new folder, to which the workers may write until they are gone.

        Raises RenderError where a version cannot be found or read, and SelectionError where no project is chosen.
        """
        trial = Trial(self, folder, workers)
        parts: list[Part] = []
        for name in self.parts:
            if self.stop_early and any(part.wrong for part in parts):
                break
            parts.append(Part(name))
            started = time.perf_counter()
            getattr(trial, f"try_{name}")(parts[-1])
            parts[-1].seconds = time.perf_counter() - started
        return parts
