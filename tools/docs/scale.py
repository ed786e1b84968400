"""The tables of what many samples and many ranks cost, made from the results of benchmarks/scale.py."""

from collections.abc import Sequence

from tools.docs.check import Record, markdown, records

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def training_table(results: Record) -> str:
    """Return what the first batch of an epoch takes, at its start and late in it, beside torch's sampler."""
    trained = records(results, part="training")
    head = ["samples", "first batch", "first batch, late", f"the same, {largest_world(trained):,} ranks"]
    head += ["each batch", "memory", "torch's sampler: first batch", "memory"]
    numbers = dict.fromkeys(record["samples"] for record in trained)
    return markdown(head, (training_row(samples, results, largest_world(trained)) for samples in numbers))


def training_row(samples: int, results: Record, most: int) -> list[str]:
    """Return the row of a number of samples, which may be too few for many ranks."""
    trained = records(results, part="training", samples=samples)
    found = {(record["ranks"], record["place"]): record for record in trained}
    start, late, many = found[1, "start"], found[1, "late"], found.get((most, "late"))
    row = [f"{samples:,}", *(seconds(record["first_batch"]) for record in (start, late))]
    row += [seconds(many["first_batch"]) if many else "", seconds(start["batch"]), size(start["memory"])]
    [other] = records(results, part="torch", samples=samples, ranks=1)
    return [*row, *cells_of_torch(other)]


def cells_of_torch(record: Record) -> list[str]:
    """Return the time and the memory of torch's sampler; what did not fit was not measured."""
    if "needed" in record:
        return ["-", f"about {size(record['needed'])}"]
    return [seconds(record["first_batch"]), size(record["memory"])]


def orders_table(results: Record) -> str:
    """Return what each order of the training set takes on one rank, as a Markdown table."""
    rows = [
        [each["order"], seconds(each["first_batch"]), seconds(each["batch"]), size(each["memory"])]
        for each in records(results, part="orders")
    ]
    return markdown(["order", "first batch", "each batch", "memory"], rows)


def evaluation_table(results: Record) -> str:
    """Return what an evaluation takes on one rank and on the most ranks, as a Markdown table."""
    ranks = largest_world(records(results, part="evaluation"))
    many = {record["samples"]: record for record in records(results, part="evaluation", ranks=ranks)}
    ones = records(results, part="evaluation", ranks=1)
    head = ["samples", "first batch", "each batch", "memory", f"first batch, {ranks:,} ranks"]
    return markdown(head, (row_of_evaluation(one, many.get(one["samples"])) for one in ones))


def row_of_evaluation(one: Record, many: Record | None) -> list[str]:
    """Return the row of a number of samples, which may be too few for many ranks."""
    row = [f"{one['samples']:,}", seconds(one["first_batch"]), seconds(one["batch"]), size(one["memory"])]
    return [*row, seconds(many["first_batch"]) if many else ""]


def checkpoint_table(results: Record) -> str:
    """Return what checkpoints of more and more ranks take, as a Markdown table."""
    head = ["what differs from rank to rank", "ranks", "file", "save, rank 0", "memory", "verify, rank 0"]
    head += ["load, each rank", "memory"]
    return markdown(head, map(checkpoint_row, records(results, part="checkpoints")))


def checkpoint_row(record: Record) -> list[str]:
    """Return the row of one network on a number of ranks."""
    saved = [size(record["size"]), seconds(record["save"]), size(record["memory_of_save"]), seconds(record["verify"])]
    loaded = [seconds(record["load"]), size(record["memory_of_load"])]
    return [record["network"], f"{record['ranks']:,}", *saved, *loaded]


def agreement_table(results: Record) -> str:
    """Return what it takes to compare the ranks at the start, but for the network, as a Markdown table."""
    found = records(results, part="agreement")
    rows = [[f"{record['ranks']:,}", seconds(record["time"]), size(record["memory"])] for record in found]
    return markdown(["ranks", "time on each", "memory"], rows)


def largest_world(found: Sequence[Record]) -> int:
    """Return the largest number of ranks."""
    return max(int(record["ranks"]) for record in found)


def seconds(time: float) -> str:
    """Return a time in the unit that suits it."""
    return in_units(time, UNITS)


def size(number: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    return in_units(number, SIZES)


def in_units(value: float, units: dict[str, float] | dict[str, int]) -> str:
    """Return two digits, or all of an integer, in the largest unit of which there is at least one."""
    fitting = [unit for unit, scale in units.items() if value >= scale] or [next(iter(units))]
    number = value / units[fitting[-1]]
    return f"{number:.{0 if number >= 10 or not value else 1}f} {fitting[-1]}"
