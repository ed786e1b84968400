"""What the tests of this repository cost, as tables: by folder, and the files that take longest."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Costs = Mapping[str, Any]  # of a file, or sums of files
SUMMED = ("tests", "cpu", "mypy", "waiting", "cold_starts")  # seconds, and numbers of tests and of processes
DEAREST = 10


def folder_table(record: Mapping[str, Any]) -> str:
    """Return the costs of each folder of tests/ as a Markdown table: sums over its tests."""
    folders: dict[str, dict[str, float]] = {}
    for costs in record["measurements"]:
        total = folders.setdefault(costs["file"].split("/")[0], dict.fromkeys(SUMMED, 0.0))
        for key in SUMMED:
            total[key] += costs[key]
    head = "| folder | tests | waiting (s) | computing (CPU s) | of it cold starts of torch | mypy | the rest |\n"
    rows = [
        f"| `tests/{name}/` | {row(total, record['machine']['cold_start'])} |\n"
        for name, total in sorted(folders.items())
    ]
    return head + "|---|---:|---:|---:|---:|---:|---:|\n" + "".join(rows)


def seconds(costs: Costs) -> float:
    """Return what a file costs, whatever runs beside it: computing and waiting."""
    return float(costs["cpu"] + costs["waiting"])


def row(costs: Costs, cold_start: float) -> str:
    """Return the numbers of a folder. A cold start takes the CPU time that was measured for one."""
    cold = min(costs["cold_starts"] * cold_start, costs["cpu"] - costs["mypy"])
    numbers = [
        f"{costs['tests']:.0f}",
        f"{costs['waiting']:.0f}",
        f"{costs['cpu']:.0f}",
        f"{cold:.0f} ({costs['cold_starts']:.0f} processes)",
        f"{costs['mypy']:.0f}",
        f"{costs['cpu'] - costs['mypy'] - cold:.0f}",
    ]
    return " | ".join(numbers)


def dearest_table(record: Mapping[str, Any], tests: Path) -> str:
    """Return the files that cost most as a Markdown table, with what they prove; below it, those never measured."""
    measured = {costs["file"]: costs for costs in record["measurements"]}
    ordered = sorted(measured.items(), key=lambda item: -seconds(item[1]))[:DEAREST]
    head = "| file of tests | waiting (s) | computing (CPU s) | what it proves |\n|---|---:|---:|---|\n"
    rows = [
        f"| `{name}` | {costs['waiting']:.0f} | {costs['cpu']:.0f} | {purpose(tests / name)} |\n"
        for name, costs in ordered
    ]
    unknown = sorted({str(file.relative_to(tests)) for file in tests.rglob("test_*.py")} - measured.keys())
    told = f"\nNot measured yet: {', '.join(f'`{name}`' for name in unknown)}.\n" if unknown else ""
    return head + "".join(rows) + told


def purpose(file: Path) -> str:
    """Return the first line of the docstring of a file; nothing if the file is gone since it was measured."""
    told = ast.get_docstring(ast.parse(file.read_text())) if file.exists() else None
    return (told or "").split("\n")[0]
