"""The tables of what one GPU does, from what benchmarks/gpu.py measured."""

import statistics
from collections import defaultdict

from benchmarks.runner import ratios, spread
from tools.docs.check import Record, markdown
from tools.docs.speed import RATE, shown

TITLES = {"plain": "plain loop", "generated": "generated project"}


def having(results: Record, number: str) -> list[Record]:
    """Return the measurements of a number. Raises KeyError if there are none."""
    found = [record for record in results["measurements"] if record.get(number) is not None]
    if not found:
        raise KeyError(number)
    return found


def gpu_table(results: Record) -> str:
    """Return the samples per second beside a plain loop, and what a step asks of the GPU, as far as it is known."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for record in having(results, RATE):
        found[record["setting"]][record["contender"]] = record
    rows = []
    for setting, both in found.items():
        plain, generated = both["plain"], both["generated"]
        row = [f"{statistics.median(record[RATE]):,.0f}" for record in (plain, generated)]
        row.append(shown(spread(ratios(generated[RATE], plain[RATE]))))
        row.append(f"{generated['mfu']:.0%}" if "mfu" in generated else "")
        row += [f"{generated[name]:.2g}" if name in generated else "" for name in ("waits_of_a_step",)]
        launches = [
            f"{record['launches_of_a_step']:.0f}" for record in (plain, generated) if "launches_of_a_step" in record
        ]
        rows.append([setting, *row, " / ".join(launches)])
    head = [
        "",
        "plain loop, samples/s",
        "generated project",
        "ratio",
        "MFU",
        "waits a step",
        "launches: plain / generated",
    ]
    return markdown(head, rows)


def memory_table(results: Record) -> str:
    """Return the most memory of the GPU that a step needs, and how much more that is than as generated."""
    found = {record["contender"]: record["peak_memory"] for record in having(results, "peak_memory")}
    rows = []
    for name, peak in found.items():
        more = f"{(peak - found['generated']) / 2**20:+,.0f} MiB" if "generated" in found else ""
        rows.append([TITLES.get(name, f"`{name}`"), f"{peak / 2**20:,.0f} MiB", more])
    return markdown(["", "at most", "beside the project as generated"], rows)


def save_table(results: Record) -> str:
    """Return how long a save stops the training, and after how long the disk has it."""
    rows = []
    for record in having(results, "pause"):
        times = [f"{statistics.median(record[name]):.2f} s" for name in ("pause", "written")]
        rows.append([f"`{record['contender']}`", f"{record['bytes'] / 1e9:.2f} GB", *times])
    return markdown(["", "checkpoint", "the training stops for", "the disk has it after"], rows)
