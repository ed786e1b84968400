"""The stages of a check that read code: the tools run in other processes, beside the training."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from generator.answers.selection import greedy_cover
from generator.check.cache_key import file_key
from generator.check.static import (
    Complaints,
    SourceFile,
    check_format,
    check_lint,
    check_types,
    distinct,
    source_files,
)
from generator.check.work import Work
from generator.render.cache import Cache

TOOLS = {"format": check_format, "lint": check_lint, "types": check_types}


class Reading:
    """The tools at work on the files that none of them has read yet."""

    def __init__(self, work: Work) -> None:
        """Begin, if there is anything to read."""
        self.work = work
        self.cache = work.order.cache
        self.sources = {work.project(each): source_files(work.project(each)) for each in work.fresh}
        self.begun: dict[str, tuple[list[SourceFile], Future[tuple[Complaints, float]]]] = {}
        files = distinct(file for own in self.sources.values() for file in own)
        for stage in TOOLS:
            unread = [file for file in files if not self.is_known(stage, file)]
            if unread:
                self.begun[stage] = (unread, self.begin(stage, unread))
            else:
                work.verdict.stages[stage] = 0.0

    def begin(self, stage: str, unread: list[SourceFile]) -> Future[tuple[Complaints, float]]:
        """Let another process read files. mypy reads whole projects: as few as have all of them."""
        submit = self.work.workers.submit
        if stage != "types":
            return submit(timed, TOOLS[stage], unread)
        having = {project: {file.key for file in own} for project, own in self.sources.items()}
        cover = greedy_cover(having, {file.key for file in unread})
        return submit(timed, check_types, cover, self.work.folder / "types", (self.cache or Cache()).folder / "mypy")

    def is_known(self, stage: str, file: SourceFile) -> bool:
        """Return whether a tool has found nothing wrong with a file before."""
        return self.cache is not None and self.cache.read("files", file_key(stage, file)) is not None

    def take(self) -> None:
        """Take what the tools say, for every combination that has the file."""
        work = self.work
        for stage, (unread, job) in self.begun.items():
            complaints, work.verdict.stages[stage] = job.result()
            for combination in work.fresh:
                for file in self.sources[work.project(combination)]:
                    if file.key in complaints:
                        work.fail(combination, stage, complaints[file.key])
            for file in unread if self.cache else ():
                if file.key not in complaints:
                    self.cache.write("files", file_key(stage, file), str(file.path))  # type: ignore[union-attr]
            work.order.progress(stage, 1, 1)


def timed(work: Callable[..., Complaints], *arguments: Any) -> tuple[Complaints, float]:
    """Do something, and return how long it took, too (seconds)."""
    started = time.perf_counter()
    return work(*arguments), time.perf_counter() - started
