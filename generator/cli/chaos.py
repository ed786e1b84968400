"""The command `ddp-template chaos`: faults that nobody chose befall a project, until one is not survived."""

import os
import shlex
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.markup import escape

from generator.answers.combinations import SelectionError
from generator.chaos.clock import build_clock
from generator.chaos.disk import failing_disk
from generator.chaos.faults import Need, possible_faults
from generator.chaos.job import launch
from generator.chaos.nemesis import AT_ONCE, STEPS, Nemesis, Unfit, Verdict
from generator.chaos.schedule import Schedule, draw, shrink
from generator.check.launchers import OPEN_MPI
from generator.cli.options import errors_in_one_line, term_as_ctrl_c

# What goes before the options of train.py, by launcher; another one starts its ranks elsewhere, or later.
WORDS: dict[str, Sequence[str]] = {"torchrun": (), "launch": (), "spawn": (), "mpirun": ("{processes}",)}
ERRORS = Console(stderr=True)


def chaos(
    project: Annotated[Path, typer.Argument(help="Folder of a project, with whatever edits it has.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTION]...", help="Options of its train.py.")
    ] = None,
    faults: Annotated[int, typer.Option(min=1, help="Go on until this many faults have happened.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Which faults are drawn: each run has the next seed.")] = 0,
    only: Annotated[
        str | None, typer.Option(metavar="N,N", help="Only one run, of this seed, with these faults of it alone.")
    ] = None,
    steps: Annotated[int, typer.Option(min=20, help="Optimizer steps of a run.")] = STEPS,
) -> None:
    """Kill, freeze, stop and starve runs of a project at random, resume them, and compare them with one left alone.

    All must hold after each start: exit code and message name the cause, no process is left, each checkpoint is whole,
    no more than one interval between two is lost. At the end, weights and records are those of the run left alone, bit
    for bit. A run that fails is repeated with fewer faults, and the command for the fewest is shown.
    """
    term_as_ctrl_c()
    with errors_in_one_line(), tempfile.TemporaryDirectory(prefix="ddp-chaos-") as folder:
        wanted = None if only is None else numbers(only)
        nemesis = prepare(project.resolve(), Path(folder), options or [], steps)
        chosen = None if wanted is None else draw(seed, AT_ONCE, nemesis.kinds).only(wanted)
        happened = 0
        for verdict in [nemesis.befall(chosen)] if chosen else nemesis.befall_until(faults, seed):
            show(verdict)
            happened += len(verdict.happened)
            if verdict.wrong:
                smallest = verdict.schedule if chosen else shrink(verdict.schedule, lambda one: fails(nemesis, one))
                show_command(project, smallest, options or [], steps)
                raise typer.Exit(1)
    ERRORS.print(f"{happened} faults, and each was survived")


def prepare(project: Path, folder: Path, options: Sequence[str], steps: int) -> Nemesis:
    """Find out what can befall a project here. Raises SelectionError if it is none that can be started here."""
    try:
        answers = yaml.safe_load((project / ".copier-answers.yml").read_text())
        launcher, logger = answers["launcher"], answers["logging"]
    except (OSError, LookupError, TypeError, yaml.YAMLError) as error:
        missing = "it has no .copier-answers.yml that can be read"
        raise SelectionError(f"{project} is no project of this template: {missing}") from error
    if launcher not in WORDS:
        raise SelectionError(f"launcher={launcher} does not start ranks from this machine alone: {', '.join(WORDS)} do")
    clock, needs = None, [Need.LAUNCHER, Need.TERMINAL]
    try:
        clock = build_clock(folder)
        needs.append(Need.CLOCK)
    except OSError as error:
        ERRORS.print(f"no clock jumps: {escape(str(error))}")
    try:
        with failing_disk(folder / "trial"):
            needs.append(Need.DISK)
    except OSError as error:
        ERRORS.print(f"no disk fails: {escape(str(error))}")
    variables = OPEN_MPI | (clock.variables if clock else {})
    start = launch(project, folder, WORDS[launcher], variables)
    kinds = possible_faults(*needs)
    nemesis = Nemesis(project, start, logger, folder, kinds, clock, options=options, steps=steps, slowness=slowness)
    try:
        nemesis.calm  # noqa: B018
    except Unfit as error:
        raise SelectionError(str(error)) from error
    return nemesis


def slowness() -> float:
    """Return how much longer things may take because of other work on this machine."""
    return max(2.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def numbers(words: str) -> Collection[int]:
    """Return the numbers of faults. Raises SelectionError if they are none of a run."""
    given = [word.strip() for word in words.split(",")]
    if not {*given} <= {*map(str, range(AT_ONCE))}:
        raise SelectionError(f"--only {words}: give numbers of faults from 0 to {AT_ONCE - 1}, such as 0,3")
    return {*map(int, given)}


def fails(nemesis: Nemesis, schedule: Schedule) -> bool:
    """Try a smaller schedule, and show how it ends."""
    verdict = nemesis.befall(schedule)
    kept = ",".join(str(fault.number) for fault in schedule.faults)
    ERRORS.print(f"with {kept} alone: {'the same' if verdict.wrong else 'all is right'}")
    return bool(verdict.wrong)


def show(verdict: Verdict) -> None:
    """Show a run, start by start, and what was wrong with it."""
    mark = "[red]✗[/]" if verdict.wrong else "[green]✓[/]"
    ERRORS.print(f"{mark} seed {verdict.schedule.seed}: {len(verdict.happened)} faults")
    for befallen in verdict.befallen:
        ERRORS.print(f"    {escape(str(befallen))}", highlight=False)
    for wrong in verdict.wrong:
        ERRORS.print(f"  [red]{escape(wrong)}[/]", highlight=False)


def show_command(project: Path, schedule: Schedule, options: Sequence[str], steps: int) -> None:
    """Print the command that does the same again."""
    kept = ",".join(str(fault.number) for fault in schedule.faults)
    given = [] if steps == STEPS else ["--steps", str(steps)]
    words = ["ddp-template", "chaos", str(project), "--seed", str(schedule.seed), "--only", kept, *given]
    print(shlex.join([*words, *(["--", *options] if options else [])]))
