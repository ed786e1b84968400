"""The command `ddp-template matrix`: the combinations as a table for people, or as a matrix of jobs for GitHub."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from generator.answers.combinations import Combination, SelectionError, assign, shaping_questions, text
from generator.answers.questions import TEMPLATE
from generator.cli.options import MOST_PARTS, Cover, Rotate, Shard, Since, Wanted, choose, errors_in_one_line
from generator.render.cache import Cache
from generator.render.workers import Workers, legal_combinations

FORMATS = ("table", "json", "names")
SIZE_OF_SHARD = 120  # combinations, if --shards auto decides


def matrix(
    wanted: Wanted = None,
    rotate: Rotate = None,
    cover: Cover = None,
    shard: Shard = None,
    since: Since = None,
    style: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="json is for strategy.matrix on GitHub.")
    ] = "table",
    shards: Annotated[
        str | None, typer.Option(metavar="N|auto", help="List all N shards, each with its size, instead.")
    ] = None,
) -> None:
    """List every legal combination of answers, or those that are chosen."""
    with errors_in_one_line():
        if style not in FORMATS:
            raise SelectionError(f"--format {style} does not exist: choose {', '.join(FORMATS)}")
        if shards is not None and shard is not None:
            raise SelectionError("--shard gives one part of a whole that --shards divides: choose one of the two")
        with Workers() as workers:
            chosen = choose(workers, wanted, rotate, cover, shard, since)
            legal = legal_combinations(TEMPLATE, workers, Cache())
        name, jobs = "name", [{**dict(combination.answers), "name": combination.name} for combination in chosen]
        if shards is not None:
            sizes = shard_sizes(chosen, shards)
            name, jobs = "shard", [{"shard": part, "combinations": size} for part, size in sizes.items()]
        if style == "json":
            typer.echo(jobs_as_json(jobs))
        elif style == "names":
            typer.echo("".join(f"{job[name]}\n" for job in jobs), nl=False)
        elif shards is not None:
            typer.echo("".join(f"{part}: {size} combinations\n" for part, size in sizes.items()), nl=False)
        else:
            show_table(chosen, len(legal))


def jobs_as_json(jobs: Sequence[dict[str, Any]]) -> str:
    """Return jobs as GitHub's strategy.matrix takes them, in one line. Raises SelectionError if they are too many."""
    if len(jobs) > MOST_PARTS:
        many = f"{len(jobs)} combinations are more than the {MOST_PARTS} jobs that GitHub allows in a matrix"
        raise SelectionError(f"{many}: divide them by --shards auto, or choose fewer by --cover 2")
    return json.dumps({"include": jobs}, separators=(",", ":"))


def shard_sizes(combinations: Sequence[Combination], shards: str) -> dict[str, int]:
    """Return the number of combinations in each shard that has any, by what --shard calls it."""
    if shards == "auto":
        parts = math.ceil(len(combinations) / SIZE_OF_SHARD)
    elif re.fullmatch("[0-9]{1,9}", shards) and 1 <= int(shards) <= MOST_PARTS:
        parts = int(shards)
    else:
        raise SelectionError(f"--shards {shards} is impossible: choose auto, or 1 to {MOST_PARTS}")
    parts = min(parts, len(combinations), MOST_PARTS)
    sizes = Counter(assign(combinations, parts).values()) if parts else {}
    return {f"{part}/{parts}": sizes[part] for part in sorted(sizes)}


def show_table(combinations: Sequence[Combination], legal: int) -> None:
    """Print combinations for people: one row each, one column a question."""
    console, questions = Console(), shaping_questions()
    if not console.is_terminal:
        console = Console(width=1000)  # no row is broken in a file or a pipe
    if combinations:
        table = Table(Column("#", justify="right"), *(Column(Text(question.key)) for question in questions))
        for number, combination in enumerate(combinations, start=1):
            table.add_row(str(number), *(Text(text(combination[question.key])) for question in questions))
        console.print(table)
    possible = math.prod(len(question.choices) for question in questions)
    chosen = "" if len(combinations) == legal else f"{len(combinations)} chosen of "
    console.print(f"{chosen}{legal} legal of {possible} combinations", highlight=False)
