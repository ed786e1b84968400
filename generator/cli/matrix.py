"""The command `ddp-template matrix`: the combinations as a table for people, or as a matrix of jobs for GitHub."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from generator.answers.combinations import Combination, shaping_questions, text
from generator.answers.questions import TEMPLATE, Question
from generator.answers.selection import SelectionError, assign
from generator.cli.options import MOST_PARTS, Cover, Shard, Since, Wanted, choose, errors_in_one_line
from generator.render.cache import Cache
from generator.render.workers import Workers, legal_combinations

FORMATS = ("table", "json", "names")
SIZE_OF_SHARD = 120  # combinations, where --shards auto decides


def matrix(
    wanted: Wanted = None,
    cover: Cover = None,
    shard: Shard = None,
    since: Since = None,
    style: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="json is for strategy.matrix on GitHub.")
    ] = "table",
    shards: Annotated[
        str | None,
        typer.Option("--shards", metavar="N|auto", help="List the shards of so many, each with its size, instead."),
    ] = None,
) -> None:
    """List every legal combination of answers, or those that are chosen."""
    with errors_in_one_line():
        if style not in FORMATS:
            raise SelectionError(f"--format {style} does not exist: choose {', '.join(FORMATS)}")
        if shards is not None and shard is not None:
            raise SelectionError("--shard gives one part of a whole that --shards divides: choose one of the two")
        with Workers() as workers:
            chosen = choose(TEMPLATE, workers, wanted, cover, shard, since, cache=Cache())
            legal = legal_combinations(TEMPLATE, workers, Cache())
        if shards is not None:
            show_shards(shard_sizes(chosen, shards), style)
        elif style == "json":
            typer.echo(jobs_as_json([job_of(combination) for combination in chosen]))
        elif style == "names":
            typer.echo("".join(f"{combination.name}\n" for combination in chosen), nl=False)
        else:
            show_table(chosen, len(legal), shaping_questions())


def job_of(combination: Combination) -> dict[str, Any]:
    """What a job of a matrix knows of its combination."""
    return {**dict(combination.answers), "name": combination.name}


def jobs_as_json(jobs: Sequence[dict[str, Any]]) -> str:
    """Return jobs as GitHub's strategy.matrix takes them, in one line. Raises SelectionError if they are too many."""
    if len(jobs) > MOST_PARTS:
        raise SelectionError(
            f"{len(jobs)} combinations are more than the {MOST_PARTS} jobs that GitHub allows in a matrix: "
            "divide them by --shards auto, or choose fewer by --cover 2"
        )
    return json.dumps({"include": jobs}, separators=(",", ":"))


def shard_sizes(combinations: Sequence[Combination], shards: str) -> dict[str, int]:
    """Return the number of combinations in each shard that has any, by what --shard calls it.

    There are never more shards than combinations. Raises SelectionError if --shards is no number from 1, or auto.
    """
    if shards == "auto":
        parts = math.ceil(len(combinations) / SIZE_OF_SHARD)
    elif re.fullmatch("[0-9]{1,9}", shards) and 1 <= int(shards) <= MOST_PARTS:
        parts = int(shards)
    else:
        raise SelectionError(f"--shards {shards} is impossible: choose auto, or 1 to {MOST_PARTS}")
    parts = min(parts, len(combinations), MOST_PARTS)
    sizes = Counter(assign(combinations, parts).values()) if parts else {}
    return {f"{part}/{parts}": sizes[part] for part in sorted(sizes)}


def show_shards(sizes: dict[str, int], style: str) -> None:
    """Print shards and their sizes."""
    if style == "json":
        typer.echo(jobs_as_json([{"shard": shard, "combinations": size} for shard, size in sizes.items()]))
    elif style == "names":
        typer.echo("".join(f"{shard}\n" for shard in sizes), nl=False)
    else:
        table = Table("shard", "combinations")
        for shard, size in sizes.items():
            table.add_row(shard, str(size))
        wide_console().print(table)


def show_table(combinations: Sequence[Combination], legal: int, questions: Sequence[Question]) -> None:
    """Print combinations for people: one row each, one column a question, the defaults dim."""
    console = wide_console()
    if combinations:
        table = Table()
        table.add_column("#", justify="right")
        for question in questions:
            table.add_column(Text(question.key))
        for number, combination in enumerate(combinations, start=1):
            values = [(text(combination[question.key]), question.default) for question in questions]
            cells = [Text(value, style="dim" if value == text(default) else "") for value, default in values]
            table.add_row(str(number), *cells)
        console.print(table)
    possible = math.prod(len(question.choices) for question in questions)
    chosen = "" if len(combinations) == legal else f"{len(combinations)} chosen of "
    dim = "; the defaults are dim" if console.color_system and combinations else ""
    console.print(f"{chosen}{legal} legal of {possible} combinations{dim}", highlight=False)


def wide_console() -> Console:
    """A terminal as it is; a file or a pipe wide enough that no row is broken."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)
