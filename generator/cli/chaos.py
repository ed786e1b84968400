"""The command `ddp-template chaos`: faults that nobody chose befall a project, until one is not survived."""

import os
import resource
import shlex
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from generator.answers.combinations import SelectionError
from generator.chaos.clock import build_clock
from generator.chaos.data import faulty_data
from generator.chaos.disk import failing_disk
from generator.chaos.faults import Need, Surroundings, possible_faults
from generator.chaos.job import launch
from generator.chaos.memory import shared_memory
from generator.chaos.nemesis import AT_ONCE, STEPS, Nemesis, Verdict
from generator.chaos.quota import cpu_quota
from generator.chaos.schedule import TRIES, Schedule, shrink
from generator.check.launchers import OPEN_MPI
from generator.cli.options import errors_in_one_line, term_as_ctrl_c

# What goes before the options of train.py, by launcher; another one starts its ranks elsewhere, or later.
WORDS: dict[str, Sequence[str]] = {"torchrun": (), "launch": (), "spawn": (), "mpirun": ("{processes}",)}
# Faults are drawn of these on any machine, so that a seed means the same everywhere.
OF_LAUNCHED = (Need.LAUNCHER, Need.TERMINAL)
NEEDS = (*OF_LAUNCHED, Need.CLOCK, Need.DISK, Need.LIMIT, Need.LOADER, Need.SHM, Need.QUOTA)
READS = ("torch", "numpy")  # packages by which checkpoints are compared here
OWN_READERS = ("tensorboard", "mlflow", "wandb")  # loggers that read their records by a package of that name
ERRORS = Console(stderr=True)


def chaos(
    project: Annotated[Path, typer.Argument(help="Folder of a project, with whatever edits it has.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTION]...", help="Options of its train.py.")
    ] = None,
    faults: Annotated[int, typer.Option(min=1, help="Go on until this many faults have happened.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Which faults are drawn: each run has the next seed.")] = 0,
    only: Annotated[
        str | None, typer.Option(metavar="N,N", help="Only runs of this seed, with these faults of it alone.")
    ] = None,
    steps: Annotated[int, typer.Option(min=20, help="Optimizer steps of a run.")] = STEPS,
) -> None:
    """Kill, freeze, stop and starve runs of a project at random, resume them, and compare them with one left alone.

    All must hold after each start: exit code and message name the cause, no process is left, each checkpoint is whole,
    no more than one interval between two is lost. At the end, weights and records are those of the run left alone, bit
    for bit. A run that fails is repeated with fewer faults, and the command for the fewest is shown.
    """
    term_as_ctrl_c()
    for each in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) == signal.SIG_IGN:  # as nohup and & have it: runs would inherit that, but no handler
            signal.signal(each, lambda *_: None)
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ddp-chaos-") as folder, ExitStack() as stack:
        wanted = None if only is None else numbers(only)
        nemesis = prepare(project.resolve(), Path(folder), stack, options or [], steps)
        happened = 0
        for verdict in nemesis.run_until(faults, seed) if wanted is None else repeated(nemesis, seed, wanted):
            show(verdict)
            happened += len(verdict.happened)
            if verdict.wrong:
                smallest = verdict.schedule
                if wanted is None:
                    smallest = shrink(smallest, lambda one: fails(nemesis, one))
                show_command(project, smallest, options or [], steps)
                raise typer.Exit(1)
    if not happened:
        ERRORS.print(f"none of these faults of seed {seed} has happened here")
        raise typer.Exit(1)
    ERRORS.print(f"{happened} faults, and each was survived")


def prepare(project: Path, folder: Path, stack: ExitStack, options: Sequence[str], steps: int) -> Nemesis:
    """Find out what can befall a project here. Raises SelectionError if it is none that can be started here."""
    try:
        answers = yaml.safe_load((project / ".copier-answers.yml").read_text())
        launcher, logger = answers["launcher"], answers["logging"]
    except (OSError, LookupError, TypeError, yaml.YAMLError) as error:
        missing = "it has no .copier-answers.yml that can be read"
        raise SelectionError(f"{project} is no project of this template: {missing}") from error
    if launcher not in WORDS:
        raise SelectionError(f"launcher={launcher} does not start ranks from this machine alone: {', '.join(WORDS)} do")
    check_packages(logger)
    around, needs = find_surroundings(folder, stack)
    start = launch(project, folder, WORDS[launcher], {**OPEN_MPI, **around.variables}, around.before)
    nemesis = Nemesis(project, start, logger, folder, possible_faults(*NEEDS), options=options, steps=steps)
    nemesis.clock, nemesis.data, nemesis.shm, nemesis.quota = around.clock, around.data, around.shm, around.quota
    nemesis.slowness, nemesis.here = slowness, possible_faults(*OF_LAUNCHED, *needs)
    return nemesis


def find_surroundings(folder: Path, stack: ExitStack) -> tuple[Surroundings, Sequence[Need]]:
    """Find out what there is on this machine, beside what launchers bring along, and say what is missing."""
    around, needs = Surroundings(), []
    with said_if_missing("no clock jumps"):
        around.clock = build_clock(folder)
        needs.append(Need.CLOCK)
    with said_if_missing("no disk fails"), failing_disk(folder / "trial"):
        needs.append(Need.DISK)
    if hasattr(resource, "prlimit"):
        around.data = faulty_data(folder / "inside")
        needs.append(Need.LOADER)
    with said_if_missing("no shared memory is full"):
        around.shm = shared_memory()
        needs.append(Need.SHM)
    with said_if_missing("no CPU time is short"):
        around.quota = stack.enter_context(cpu_quota())
        needs.append(Need.QUOTA)
    return around, needs


@contextmanager
def said_if_missing(what: str) -> Iterator[None]:
    """Inside, OSError says why something cannot be."""
    try:
        yield
    except OSError as error:
        ERRORS.print(f"{what}: {escape(str(error))}")


def check_packages(logger: str) -> None:
    """Raise SelectionError if this Python lacks a package by which runs are compared."""
    needed = [*READS, *([logger] if logger in OWN_READERS else [])]
    if missing := [package for package in needed if find_spec(package) is None]:
        remedy = f"{shlex.quote(sys.executable)} -m pip install {' '.join(missing)}"
        raise SelectionError(f"ddp-template reads what runs leave, and has no {' and no '.join(missing)}: {remedy}")


def slowness() -> float:
    """Return how much longer things may take because of other work on this machine."""
    return max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def numbers(words: str) -> Collection[int]:
    """Return the numbers of faults. Raises SelectionError if they are none of a run."""
    given = [word.strip() for word in words.split(",")]
    if not {*given} <= {*map(str, range(AT_ONCE))}:
        raise SelectionError(f"--only {words}: give numbers of faults from 0 to {AT_ONCE - 1}, such as 0,3")
    return {*map(int, given)}


def repeated(nemesis: Nemesis, seed: int, numbers: Collection[int]) -> Iterator[Verdict]:
    """Let the same faults of a seed befall some runs, since what happens at the same moment need not do the same."""
    schedule = nemesis.drawn(seed).only(numbers)
    for _ in range(TRIES if schedule.starts else 0):
        yield nemesis.run(schedule)


def fails(nemesis: Nemesis, schedule: Schedule) -> bool:
    """Try a smaller schedule, and show how it ends."""
    verdict = nemesis.run(schedule)
    kept = ",".join(str(fault.number) for fault in schedule.faults)
    said = "\n".join(verdict.wrong).split("\n")[0] or "all is right"
    ERRORS.print(f"with {kept} alone: {escape(said)}", highlight=False)
    return bool(verdict.wrong)


def show(verdict: Verdict) -> None:
    """Show a run, start by start, and what was wrong with it."""
    mark = "[red]✗[/]" if verdict.wrong else "[green]✓[/]"
    ERRORS.print(f"{mark} seed {verdict.schedule.seed}: {len(verdict.happened)} faults")
    for results in verdict.results:
        ERRORS.print(f"    {escape(str(results))}", highlight=False)
    for wrong in verdict.wrong:
        ERRORS.print(f"  [red]{escape(wrong)}[/]", highlight=False)


def show_command(project: Path, schedule: Schedule, options: Sequence[str], steps: int) -> None:
    """Print the command that does the same again."""
    kept = ",".join(str(fault.number) for fault in schedule.faults)
    given = [] if steps == STEPS else ["--steps", str(steps)]
    words = ["ddp-template", "chaos", str(project), "--seed", str(schedule.seed), "--only", kept, *given]
    print(shlex.join([*words, *(["--", *options] if options else [])]))
