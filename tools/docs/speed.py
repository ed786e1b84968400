"""The tables of how fast generated projects train, made from the results of benchmarks/speed.py and ablation.py."""

from tools.docs.check import Record, markdown

BASELINE = "minimal"
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
    return f"With {', '.join(f'{name} {version}' for name, version in results['peers'].items())}.\n"


def speed_table(results: Record, workload: str) -> str:
    """Return what the contenders took on a workload as a Markdown table, the fastest first."""
    head = ["", "samples/s", "ratio to the minimal loop", "to the first step", "whole run", "memory of a rank"]
    head += ["collectives a step", "host reads a step"]
    contenders = results["workloads"][workload]["contenders"]
    fastest_first = sorted(contenders, key=lambda name: -contenders[name]["ratio"]["median"])
    return markdown(head, (speed_row(name, contenders[name]) for name in fastest_first))


def speed_row(name: str, record: Record) -> list[str]:
    """Return the row of one contender."""
    row = [f"**{title(name)}**" if name == "generated" else title(name), f"{record['samples_per_second']:,.0f}"]
    row += ["1" if name == BASELINE else ratio(record["ratio"])]
    row += [f"{record['to_first_step']:.1f} s", f"{record['wall']:.1f} s", f"{record['peak_memory'] / 2**20:,.0f} MiB"]
    return [*row, f"{record['collectives']:.3g}", f"{record['reads']:.3g}"]


def block_table(results: Record) -> str:
    """Return how fast each loop is beside the generated project in the same processes, as a Markdown table."""
    workloads = results["workloads"]
    names = dict.fromkeys(name for loops in workloads.values() for name in loops)
    titles = PLAIN_LOOPS | {name: f"`{name}`" for name in names if name.startswith("--")}
    rows = [
        [titles[name], *(ratio(loops[name]["ratio"]) for loops in workloads.values())]
        for name in names
        if name in titles
    ]
    steps = (f"{1000 * loops['generated']['seconds']:.3g} ms" for loops in workloads.values())
    return markdown(["", *(f"`{name}`" for name in workloads)], [["a step as generated", *steps], *rows])


def part_table(results: Record) -> str:
    """Return what each part takes of a step as a Markdown table."""
    parts = results["microseconds"]
    rows = ([what, "{median:.0f} µs ({low:.0f} to {high:.0f})".format(**taken)] for what, taken in parts.items())
    return markdown(["part of a step", "it takes"], rows)


def optimisation_table(results: Record, what: str) -> str:
    """Return what a number becomes where each optimisation is taken out, in times of itself, as a Markdown table."""
    measured = {name: record[what] for name, record in results["optimisations"].items() if what in record}
    names = dict.fromkeys(name for ratios in measured.values() for name in ratios)
    rows = [
        [name, *(ratio(ratios[name]) if name in ratios else "" for ratios in measured.values())]
        for name in [*names][1:]  # the first is the project as it is generated
    ]
    return markdown(["edit", *(f"`{workload}`" for workload in measured)], rows)


def guard_table(results: Record) -> str:
    """Return what each guard and each logger takes of a step as a Markdown table."""
    measured = results["guards"].values()
    rows = []
    for name in dict.fromkeys(name for workload in measured for name in workload):
        records = [workload.get(name) for workload in measured]
        rows.append([name, *(cell for record in records for cell in guard_cells(record))])
    head = (cell for workload in results["guards"] for cell in (f"`{workload}`: a step", "of its time"))
    return markdown(["", *head], rows)


def guard_cells(record: Record | None) -> list[str]:
    """Return what a guard takes of a step; empty cells where it was not measured."""
    return [f"{record['microseconds']['median']:.0f} µs", percent(record["share"])] if record else ["", ""]


def ratio(spread: Record) -> str:
    """Return a median ratio, and the smallest and the largest."""
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"


def percent(spread: Record) -> str:
    """Return a median share, and the smallest and the largest, in percent."""
    return f"{spread['median']:.1%} ({spread['low']:.1%} to {spread['high']:.1%})"
