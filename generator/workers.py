"""Renders many projects at once: processes that keep what Copier would do anew for each project."""

import functools
import hashlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jinja2
from plumbum import local

from .rendering import RenderError, assert_understood, run_copier

if TYPE_CHECKING:
    from .combinations import Combination


class Workers:
    """As many processes as there are cores, as a context manager. An error, or an interrupt, ends them at once."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or len(os.sched_getaffinity(0))
        # spawn: forking a process that has threads, such as that of a progress bar, can hang.
        self.pool = ProcessPoolExecutor(self.processes, mp_context=get_context("spawn"), initializer=prepare)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Python 3.14 has a method for this.
            for process in list((self.pool._processes or {}).values()):
                process.terminate()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def legal(self, template: Path, combinations: Sequence["Combination"]) -> list[bool]:
        """Say of each combination whether Copier accepts it."""
        with tempfile.TemporaryDirectory() as folder:
            questions = questions_alone(Path(folder) / "questions", template)
            size = max(1, len(combinations) // (4 * self.processes))
            with interrupts_kept_from_children():
                verdicts = self.pool.map(functools.partial(is_legal, questions), combinations, chunksize=size)
            return list(verdicts)

    def render(self, template: Path, combination: "Combination", destination: Path) -> Future[str]:
        """Write the project of a combination; the future gives the digest of its tree, or raises RenderError."""
        return self.submit(render_combination, template, combination, destination)

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        """Do other work in one of the processes."""
        with interrupts_kept_from_children():
            return self.pool.submit(work, *arguments)


@contextmanager
def interrupts_kept_from_children() -> Iterator[None]:
    """Start processes that do not answer Ctrl-C, not even before they are ready: their parent does, for all of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with_parent() -> None:
    """Wait for the end of the process that started this one, however it ends, and end this one too."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def prepare() -> None:
    """Make a process render quickly: what it writes stays the same."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    local.env["PATH"] = ""  # without git, Copier does not ask it about each file that it writes
    compile_anew = jinja2.Environment.compile
    compiled: dict[tuple[Any, ...], Any] = {}

    def compile_once(self: jinja2.Environment, source: Any, *arguments: Any, **options: Any) -> Any:
        key = (source, arguments, *options.items())
        if key not in compiled:
            compiled[key] = compile_anew(self, source, *arguments, **options)
        return compiled[key]

    jinja2.Environment.compile = compile_once  # type: ignore[method-assign]


def questions_alone(folder: Path, template: Path) -> Path:
    """A copy of the template without the files that it writes: asking it takes a third of the time."""
    (folder / "template").mkdir(parents=True)
    shutil.copy2(template / "copier.yml", folder)
    shutil.copytree(template / "partials", folder / "partials")
    return folder


def is_legal(questions: Path, combination: "Combination") -> bool:
    """Whether Copier accepts the answers. Raises RenderError where it takes one for another."""
    answers = dict(combination.answers)
    try:
        recorded = run_copier(questions / "nowhere", answers, questions, quiet=True, pretend=True)
    except RenderError:
        return False
    assert_understood(answers, recorded)
    return True


def render_combination(template: Path, combination: "Combination", destination: Path) -> str:
    """Write the project of a combination, without trust, and give the digest of its tree."""
    answers = dict(combination.answers)
    assert_understood(answers, run_copier(destination, answers, template, quiet=True, pretend=False))
    return tree_digest(destination)


def tree_digest(project: Path) -> str:
    """A hash of the paths, modes and contents of all files, but not of where the template was found."""
    whole = hashlib.sha256()
    for file in sorted(path for path in project.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.name == ".copier-answers.yml":
            content = b"".join(line for line in content.splitlines(True) if not line.startswith(b"_"))
        mode = file.stat().st_mode & 0o100
        whole.update(repr((str(file.relative_to(project)), mode, hashlib.sha256(content).hexdigest())).encode())
    return whole.hexdigest()
