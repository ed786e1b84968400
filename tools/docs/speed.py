"""The tables of how fast generated projects train, made from the results of benchmarks/speed.py and ablation.py."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.runner import ratios, spread
from tools.docs.check import Record, markdown, records

BASELINE = "minimal"
AS_GENERATED = "as generated"
RATE = "samples_per_second"
TUNED = "_tuned"
FRAMEWORKS = {
    "ignite_engine": "PyTorch-Ignite",
    "lightning_fabric": "Lightning Fabric",
    "hf_accelerate": "Accelerate",
    "hf_trainer": "Hugging Face Trainer",
    "lightning_trainer": "Lightning Trainer",
}
TITLES = {
    "generated": "generated project",
    BASELINE: "minimal DDP loop",
    "bare_tuned": "fastest plain loop",
    "tutorial": "tutorials' DDP loop",
    **FRAMEWORKS,
}
PLAIN_LOOPS = {
    "plain": TITLES["bare_tuned"],
    "plain, static": f"{TITLES['bare_tuned']}, static graph",
}  # of blocks.json


def title(name: str) -> str:
    """Return the name of a contender for people."""
    return TITLES.get(name) or f"{TITLES[name.removesuffix(TUNED)]}, tuned"


def versions_line(results: Record) -> str:
    """Say which versions were compared."""
    return f"With {', '.join(f'{name} {version}' for name, version in results['machine']['frameworks'].items())}.\n"


def contenders_of(results: Record, workload: str) -> dict[str, Record]:
    """Return the records of a workload by their contenders, each with its ratio to the minimal loop; the fastest first.

    Raises KeyError if the workload was not measured.
    """
    found = {record["contender"]: record for record in records(results, workload=workload)}
    baseline = found[BASELINE][RATE]
    compared = {name: {**record, "ratio": spread(ratios(record[RATE], baseline))} for name, record in found.items()}
    return dict(sorted(compared.items(), key=lambda item: -item[1]["ratio"]["median"]))


def speed_table(results: Record, workload: str) -> str:
    """Return what the contenders took on a workload as a Markdown table, the fastest first."""
    head = ["", "samples/s", "ratio to the minimal loop", "to the first step", "whole run", "memory of a rank"]
    head += ["collectives a step", "host reads a step"]
    return markdown(head, (speed_row(*each) for each in contenders_of(results, workload).items()))


def speed_row(name: str, record: Record) -> list[str]:
    """Return the row of one contender."""
    first, wall, memory = (statistics.median(record[what]) for what in ("to_first_step", "wall", "peak_memory"))
    row = [f"**{title(name)}**" if name == "generated" else title(name), f"{statistics.median(record[RATE]):,.0f}"]
    row += ["1" if name == BASELINE else shown(record["ratio"])]
    row += [f"{first:.1f} s", f"{wall:.1f} s", f"{memory / 2**20:,.0f} MiB"]
    return [*row, f"{record['collectives']:.3g}", f"{record['reads']:.3g}"]


def block_table(results: Record) -> str:
    """Return how fast each loop is beside the generated project in the same processes, as a Markdown table."""
    cells, steps = {}, {}
    for record in records(results):
        workload, loop = record["workload"], record["loop"]
        if loop == "generated":
            steps[workload] = f"{1000 * record['seconds']:.3g} ms"
        else:
            cells[PLAIN_LOOPS.get(loop, f"`{loop}`"), workload] = shown(spread(record["ratio_quartiles"]))
    return grid([f"`{workload}`" for workload in steps], {"a step as generated": [*steps.values()]}, cells, [*steps])


def part_table(results: Record) -> str:
    """Return what each part takes of a step as a Markdown table."""
    parts = [(record["part"], spread(record["microseconds"])) for record in records(results)]
    rows = ([what, "{median:.0f} µs ({low:.0f} to {high:.0f})".format(**taken)] for what, taken in parts)
    return markdown(["part of a step", "it takes"], rows)


def optimization_table(results: Record, what: str) -> str:
    """Return what a number becomes where each optimization is taken out, in times of itself, as a Markdown table."""
    measured = [record for record in records(results) if what in record]
    baseline = {record["workload"]: record[what] for record in measured if record["edit"] == AS_GENERATED}
    cells = {
        (record["edit"], record["workload"]): shown(spread(ratios(record[what], baseline[record["workload"]])))
        for record in measured
        if record["edit"] != AS_GENERATED
    }
    return grid([f"`{workload}`" for workload in baseline], {}, cells, [*baseline], "edit")


def guard_table(results: Record) -> str:
    """Return what each guard and each logger takes of a step as a Markdown table."""
    cells = {}
    for record in records(results):
        step, share = (f"`{record['workload']}`: a step", f"`{record['workload']}`: of its time")
        cells[record["guard"], step] = f"{spread(record['microseconds'])['median']:.0f} µs"
        cells[record["guard"], share] = percent(spread(record["share"]))
    columns = [*dict.fromkeys(column for _, column in cells)]
    head = ["of its time" if column.endswith("of its time") else column for column in columns]
    return grid(head, {}, cells, columns)


def grid(
    head: Sequence[str],
    first: Mapping[str, Sequence[str]],
    cells: Mapping[tuple[str, str], str],
    columns: Sequence[str],
    corner: str = "",
) -> str:
    """Return a Markdown table of some first rows, and of cells by row and column; unknown ones are empty."""
    rows = [[name, *row] for name, row in first.items()]
    for name in dict.fromkeys(name for name, _ in cells):
        rows.append([name, *(cells.get((name, column), "") for column in columns)])
    return markdown([corner, *head], rows)


def shown(values: Record) -> str:
    """Return a median ratio, and the smallest and the largest."""
    return f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"


def percent(values: Record) -> str:
    """Return a median share, and the smallest and the largest, in percent."""
    return f"{values['median']:.1%} ({values['low']:.1%} to {values['high']:.1%})"
