"""The command `ddp-template chaos`: faults that nobody chose befall a project, until one is not survived."""

import os
import resource
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from generator.answers.combinations import SelectionError
from generator.chaos.faults import Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import AT_ONCE, STEPS, Nemesis, Verdict
from generator.chaos.schedule import TRIES, Schedule, shrink
from generator.chaos.surroundings import Data, Surroundings, build_clock, cpu_quota, failing_disk, shared_memory
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

    After each launch, exit code and message must name the cause, and no process may be left. Each checkpoint must be
    whole, and at most one interval between two may be lost. At the end, weights and records must equal those of the run
    left alone, bit for bit. If a run fails, this repeats it with fewer faults, and shows the command for the fewest.
    """
    term_as_ctrl_c()
    for each in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) == signal.SIG_IGN:  # under nohup and &: runs would inherit SIG_IGN, but not a handler
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
    nemesis = Nemesis(project, start, logger, folder, possible_faults(*NEEDS), around, options=options, steps=steps)
    nemesis.slowness = lambda: max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    nemesis.here = possible_faults(*OF_LAUNCHED, *needs)
    return nemesis


def find_surroundings(folder: Path, stack: ExitStack) -> tuple[Surroundings, Sequence[Need]]:
    """Find what this machine offers for faults, except what launchers bring along, and report what is missing."""
    around, needs = Surroundings(), list[Need]()
    if hasattr(resource, "prlimit"):
        around.data = Data(folder / "inside")
        needs.append(Need.LOADER)
    makes: dict[tuple[Need, str], Callable[[], Any]] = {
        (Need.CLOCK, "no clock jumps"): lambda: setattr(around, "clock", build_clock(folder)),
        (Need.DISK, "no disk fails"): lambda: stack.enter_context(failing_disk(folder / "trial")),
        (Need.SHM, "no shared memory is full"): lambda: setattr(around, "shm", shared_memory()),
        (Need.QUOTA, "no CPU time is short"): lambda: setattr(around, "quota", stack.enter_context(cpu_quota())),
    }
    for (need, missing), make in makes.items():
        try:
            make()
            needs.append(need)
        except OSError as error:
            ERRORS.print(f"{missing}: {escape(str(error))}")
    return around, needs


def check_packages(logger: str) -> None:
    needed = [*READS, *([logger] if logger in OWN_READERS else [])]
    if missing := [package for package in needed if find_spec(package) is None]:
        remedy = f"{shlex.quote(sys.executable)} -m pip install {' '.join(missing)}"
        raise SelectionError(f"ddp-template reads what runs leave, and has no {' and no '.join(missing)}: {remedy}")


def numbers(words: str) -> Collection[int]:
    given = [word.strip() for word in words.split(",")]
    if not {*given} <= {*map(str, range(AT_ONCE))}:
        raise SelectionError(f"--only {words}: give numbers of faults from 0 to {AT_ONCE - 1}, such as 0,3")
    return {*map(int, given)}


def repeated(nemesis: Nemesis, seed: int, numbers: Collection[int]) -> Iterator[Verdict]:
    """Apply the same faults of a seed to several runs, since the same faults need not have the same effect."""
    schedule = nemesis.drawn(seed).only(numbers)
    for _ in range(TRIES if schedule.starts else 0):
        yield nemesis.run(schedule)


def fails(nemesis: Nemesis, schedule: Schedule) -> bool:
    verdict = nemesis.run(schedule)
    said = "\n".join(verdict.wrong).split("\n")[0] or "all is right"
    ERRORS.print(f"with {schedule.numbers} alone: {escape(said)}", highlight=False)
    return bool(verdict.wrong)


def show(verdict: Verdict) -> None:
    mark = "[red]✗[/]" if verdict.wrong else "[green]✓[/]"
    ERRORS.print(f"{mark} seed {verdict.schedule.seed}: {len(verdict.happened)} faults")
    for results in verdict.results:
        ERRORS.print(f"    {escape(str(results))}", highlight=False)
    for wrong in verdict.wrong:
        ERRORS.print(f"  [red]{escape(wrong)}[/]", highlight=False)


def show_command(project: Path, schedule: Schedule, options: Sequence[str], steps: int) -> None:
    words = ["ddp-template", "chaos", str(project), "--seed", str(schedule.seed), "--only", schedule.numbers]
    words += [] if steps == STEPS else ["--steps", str(steps)]
    print(shlex.join([*words, *(["--", *options] if options else [])]))
