"""The tables of what a check costs, made from the results of benchmarks/check.py."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from generator.cli.check_report import duration

Record = Mapping[str, Any]

STATIC = ("format", "lint", "types")  # which go on beside the training
TRAINING = ("train", "resume")
NOT_MEASURED = "Not measured yet.\n"
HEADINGS = {"cold": "nothing known", "cached": "all known, nothing changed", "edited": "one logger edited"}


def records(results: Record, **wanted: object) -> list[Record]:
    """Return the measurements with these values. Raises KeyError if there are none."""
    found = [each for each in results["measurements"] if wanted.items() <= each.items()]
    if not found:
        raise KeyError(str(wanted))
    return found


def machine_line(results: Record) -> str:
    """Say when and on what the results were measured."""
    machine = results["machine"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"Measured on {results['date']}: {gpu}{machine['cpu']}, {machine['cores']} cores, "
        f"{memory(machine['memory'])} of memory; Python {machine['python']}, torch {machine['torch']}.\n"
    )


def check_table(results: Record) -> str:
    """Return what checks took in different states of the cache, as a Markdown table."""
    checks = [check for check in records(results, part="check") if check["state"] in HEADINGS]
    cells: dict[str, Callable[[Record], str]] = {
        "combinations": lambda check: f"{check['combinations']:,}",
        "of these not known before": lambda check: f"{fresh(check):,}",
        "of these trained, the others as parts of them": lambda check: f"{fresh(check) - check['shared']:,}",
        "whole check": lambda check: pace(check["wall"], check["combinations"]),
        "render": lambda check: pace(check["render"], check["combinations"]),
        "train and resume": lambda check: pace(seconds(check, TRAINING), fresh(check)),
        **{stage: functools.partial(static_cell, stage) for stage in STATIC},
        "largest memory": lambda check: memory(check["peak_memory"]),
    }
    rows = [[name, *map(cell, checks)] for name, cell in cells.items()]
    return markdown(["", *(HEADINGS[check["state"]] for check in checks)], rows)


def static_cell(stage: str, check: Record) -> str:
    """Return the time that a tool took to read the files that it had not seen; each is read for many combinations."""
    return pace(seconds(check, [stage]), fresh(check)) if fresh(check) else "-"


def growth_table(results: Record) -> str:
    """Return what templates of different sizes took, as a Markdown table; what was not measured stays empty."""
    head = ["combinations", "products of choices", "different Python files", "find the legal ones", "render"]
    head += ["black, ruff and mypy alone", "memory of these", "train and resume", "whole check", "memory of the check"]
    # What a check of the real template takes is known already.
    alone = [check for check in records(results, part="check") if check["state"] in ("cold", "resized")]
    checks = {check["combinations"]: check for check in alone}
    rows = (growth_row(each, checks.get(each["combinations"])) for each in records(results, part="growth"))
    return markdown(head, rows)


def growth_row(record: Record, check: Record | None) -> list[str]:
    """Return the row of one size."""
    count = record["combinations"]
    row = [f"{count:,}", f"{record['candidates']:,}", f"{record['files']:,}"]
    row += [pace(record["enumerate"], record["candidates"]), pace(record["render"], count)]
    row += [pace(record["static"], count), memory(record["peak_memory"])]
    if check is None:
        return [*row, "", "", ""]
    row += [pace(seconds(check, TRAINING), fresh(check)), pace(check["wall"], check["combinations"])]
    return [*row, memory(check["peak_memory"])]


def fresh(check: Record) -> int:
    """How many combinations were not known from the cache."""
    return int(check["combinations"] - check["cached"])


def seconds(check: Record, stages: Iterable[str]) -> float | None:
    """The time of some stages together, None if none of them ran."""
    ran = [check[stage] for stage in stages if stage in check]
    return sum(ran) if ran else None


def pace(wall: float | None, count: int) -> str:
    """Return a time and how many combinations a minute that is; a dash where nothing ran."""
    if wall is None:
        return "-"
    each_minute = f" ({60 * count / wall:,.0f}/min)" if count and wall else ""
    return duration(wall) + each_minute


def memory(size: int) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / 2**30:.1f} GiB"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table whose columns but the first are aligned to the right."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
