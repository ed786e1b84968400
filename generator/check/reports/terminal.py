"""The report that `ddp-template check` prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from generator.check.reports.summary import (
    FailureGroup,
    counts,
    duration,
    failure_groups,
    grouped_notes,
    headline,
    plain,
    stage_summaries,
)
from generator.check.results import Verdict, reproduce

MOST = 50  # groups of failures that are printed


def show(verdict: Verdict, console: Console, reports: Mapping[str, Path] = {}) -> None:
    """Print the verdict: stages, counts, notes, failures with their commands, and where the reports (by kind) are."""
    console.print(stage_table(verdict))
    print_whole(f"{counts(verdict)}; {duration(verdict.wall)}", console, "bold green" if verdict.passed else "bold red")
    for note, count in grouped_notes(verdict):
        console.print(Text.assemble(("note: ", "yellow"), note, f" ({count} combination{'s' * (count != 1)})"))
    show_failures(failure_groups(verdict), verdict.launchers, console)
    for kind, path in reports.items():
        print_whole(f"{kind}: {path}", console)


def stage_table(verdict: Verdict) -> Table:
    """Make the table of what each stage found."""
    table = Table("stage", "what it asks", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("passed", "failed", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in stage_summaries(verdict):
        failed = Text(str(row.failed), style="bold red" if row.failed else "")
        time = "cached" if row.wall is None else duration(row.wall)
        table.add_row(row.stage, row.asks, str(row.passed), failed, time)
    return table


def show_failures(groups: Sequence[FailureGroup], launchers: str, console: Console) -> None:
    """Print the failures as a table, and below it one command for each that can be copied: nothing wraps it."""
    if not groups:
        return
    table = Table("", "combination", "stage", "what is wrong", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].overflow = table.columns[3].overflow = "fold"
    for number, group in enumerate(groups[:MOST], start=1):
        wrong = Text(headline(group.failure.text))
        table.add_row(str(number), Text(group.title), Text(group.failure.stage, "red"), wrong)
    console.print(table)
    for number, group in enumerate(groups[:MOST], start=1):
        folder = f", left in {plain(group.failure.folder)}" if group.failure.folder else ""
        print_whole(f"# {number}: {group.failure.stage}{folder}", console, "dim")
        print_whole(reproduce(group.outcome, launchers), console)
    if len(groups) > MOST:
        console.print(f"and {len(groups) - MOST} more kinds of failure, which the other reports show")
    console.print()


def print_whole(line: str, console: Console, style: str = "") -> None:
    """Print a line as it is, however wide it is, so that it can be copied."""
    console.print(Text(line), style=style, soft_wrap=True)
