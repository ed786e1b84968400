"""The report that `ddp-template check` prints."""

from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from generator.check.reports import summary
from generator.check.reports.summary import duration, plain
from generator.check.results import Verdict, reproduce

MOST = 50  # groups of failures that are printed


def show(verdict: Verdict, console: Console, reports: Mapping[str, Path] = {}) -> None:
    """Print the verdict: stages, counts, notes, failures with their commands, and where the reports (by kind) are."""
    table = Table("stage", "what it asks", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("passed", "failed", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in summary.stage_summaries(verdict):
        failed = Text(str(row.failed), style="bold red" if row.failed else "")
        time = "cached" if row.wall is None else duration(row.wall)
        table.add_row(row.stage, row.asks, str(row.passed), failed, time)
    console.print(table)
    result = f"{summary.counts(verdict)}; {duration(verdict.wall)}"
    print_whole(result, console, "bold green" if verdict.passed else "bold red")
    for note, count in summary.grouped_notes(verdict):
        console.print(Text.assemble(("note: ", "yellow"), note, f" ({count} combination{'s' * (count != 1)})"))
    if not verdict.passed:
        show_failures(verdict, console)
    for kind, path in reports.items():
        print_whole(f"{kind}: {path}", console)


def show_failures(verdict: Verdict, console: Console) -> None:
    """Print the failures as a table, and below it one command for each that can be copied: nothing wraps it."""
    groups = summary.failure_groups(verdict)
    table = Table("", "combination", "stage", "what is wrong", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[1].overflow = table.columns[3].overflow = "fold"
    for number, group in enumerate(groups[:MOST], start=1):
        wrong = Text(summary.headline(group.failure.text))
        table.add_row(str(number), Text(group.title), Text(group.failure.stage, "red"), wrong)
    console.print(table)
    for number, group in enumerate(groups[:MOST], start=1):
        folder = f", left in {plain(group.failure.folder)}" if group.failure.folder else ""
        print_whole(f"# {number}: {group.failure.stage}{folder}", console, "dim")
        print_whole(reproduce(verdict.outcomes[group.numbers[0]], verdict.launchers), console)
    if len(groups) > MOST:
        console.print(f"and {len(groups) - MOST} more kinds of failure, which the other reports show")
    console.print()


def print_whole(line: str, console: Console, style: str = "") -> None:
    """Print a line as it is, however wide it is, so that it can be copied."""
    console.print(Text(line), style=style, soft_wrap=True)
