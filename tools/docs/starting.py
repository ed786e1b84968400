"""The tables of what starting a project, loading its data and making it take, from what benchmarks/ measured."""

import statistics

from benchmarks.runner import ratios
from tools.docs.check import Record, markdown, records
from tools.docs.speed import RATE, grid

FIXED_WORK = "a fixed piece of work"
SAME_FILES = "the same files, no questions"  # a template that writes the files of a project as they are


def starting_table(results: Record) -> str:
    """Return what commands take from start to end, as generated and with each optimization taken out."""
    cells = {
        (record["edit"], record["command"]): f"{statistics.median(record['seconds']):.2f} s"
        for record in records(results)
    }
    commands = [*dict.fromkeys(command for _, command in cells)]
    return grid(commands, {}, cells, commands)


def loading_table(results: Record) -> str:
    """Return the samples per second of each number of workers, for each kind of step."""
    cells = {
        (f"computes on {record['step']}", f"`--workers {record['workers']}`"): f"{statistics.median(record[RATE]):,.0f}"
        for record in records(results)
    }
    workers = [*dict.fromkeys(column for _, column in cells)]
    return grid(workers, {}, cells, workers, "a step")


def stream_table(results: Record) -> str:
    """Return the rate of each way to read, to predict and to copy, in times of a plain loop, and its memory."""
    rows = []
    for record in records(results):
        [plain] = records(results, what=record["what"], way="a plain loop")
        rate, memory = statistics.median(record["rate"]), statistics.median(record["memory"])
        times = statistics.median(ratios(record["rate"], plain["rate"]))
        found = f"{rate / 1e6:,.0f} MB" if record["what"] == "a copy" else f"{rate:,.0f}"
        rows.append([record["what"], record["way"], found, f"{times:.2f}", f"{memory / 2**20:.0f} MiB"])
    return markdown(["", "", "per second", "times the plain loop", "memory"], rows)


def copying_table(results: Record) -> str:
    """Return what Copier takes for each template, in seconds and in times of the same files in the same round."""
    rows = []
    for record in records(results):
        name = record["template"]
        taken = {what: f"{statistics.median(record[what]):.2f} s" for what in ("copy", "update")}
        rows.append([name, *(f"{cell} ({times_same_files(results, name, what):.2f})" for what, cell in taken.items())])
    return markdown(["", "`copier copy` (ratio)", "`copier update` (ratio)"], rows)


def times_same_files(results: Record, name: str, what: str) -> float:
    """Return how many times as long as the same files without questions a template takes: the median of the rounds."""
    [own], [same] = (records(results, template=template) for template in (name, SAME_FILES))
    return statistics.median(ratios(own[what], same[what]))


def site_table(results: Record) -> str:
    """Return what a reader of the preview waits for, also in times of a fixed piece of work in the same round."""
    rows = []
    [work] = records(results, what=FIXED_WORK)
    for record in records(results):
        taken = record["milliseconds"]
        times = statistics.median(ratios(taken, work["milliseconds"]))
        rows.append([record["what"], f"{statistics.median(taken):.0f} ms", f"{times:.2f}"])
    return markdown([results["machine"]["browser"], "it takes", "times the fixed work"], rows)
