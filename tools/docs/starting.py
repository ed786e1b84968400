"""The tables of what starting a project, loading its data and making it take, from what benchmarks/ measured."""

import statistics

from tools.docs.check import NOT_MEASURED, Record, markdown
from tools.docs.speed import ratio

FIXED_WORK = "a fixed piece of work"
SAME_FILES = "the same files, no questions"  # a template that writes the files of a project as they are


def gpu_table(results: Record) -> str:
    """Return the samples per second on a GPU beside a plain loop, and how often a step waits for the GPU."""
    rows = []
    for name, record in results["settings"].items():
        rates = [statistics.median(record["samples_per_second"][who]) for who in ("plain", "generated")]
        cells = [*(f"{rate:,.0f}" for rate in rates), ratio(record["ratio"]), f"{record['waits_of_a_step']:.2g}"]
        rows.append([name, *cells])
    head = ["", "plain loop, samples/s", "generated project", "ratio", "waits a step"]
    return markdown(head, rows) if rows else NOT_MEASURED


def starting_table(results: Record) -> str:
    """Return what commands take from start to end, as generated and with each optimisation taken out."""
    medians = results["medians"]
    commands = list(next(iter(medians.values())))
    rows = [[name, *(f"{taken[what]:.2f} s" for what in commands)] for name, taken in medians.items()]
    return markdown(["", *commands], rows)


def loading_table(results: Record) -> str:
    """Return the samples per second of each number of workers, for each kind of step."""
    rates = results["samples_per_second"]
    workers = list(next(iter(rates.values())))
    rows = [[f"computes on {kind}", *(f"{found[each]:,.0f}" for each in workers)] for kind, found in rates.items()]
    return markdown(["a step", *(f"`--workers {each}`" for each in workers)], rows)


def copying_table(results: Record) -> str:
    """Return what Copier takes for each template, in seconds and in times of the same files in the same round."""
    rows = []
    for name, both in results["seconds"].items():
        ratios = {what: times_same_files(results, name, what) for what in both}
        rows.append([name, *(f"{statistics.median(both[what]):.2f} s ({ratios[what]:.2f})" for what in both)])
    return markdown(["", *(f"`copier {what}` (ratio)" for what in next(iter(results["seconds"].values())))], rows)


def times_same_files(results: Record, name: str, what: str) -> float:
    """Return the median ratio of a template's time to that of the same files without questions in the same round."""
    same, own = results["seconds"][SAME_FILES][what], results["seconds"][name][what]
    return statistics.median(float(one / other) for one, other in zip(own, same, strict=True))


def site_table(results: Record) -> str:
    """Return what a reader of the preview waits for, also in times of a fixed piece of work in the same round."""
    rows = []
    work = results["milliseconds"][FIXED_WORK]
    for what, taken in results["milliseconds"].items():
        times = statistics.median(float(one / other) for one, other in zip(taken, work, strict=True))
        rows.append([what, f"{statistics.median(taken):.0f} ms", f"{times:.2f}"])
    return markdown([results["machine"]["browser"], "it takes", "times the fixed work"], rows)
