"""What generated projects are to reach, and whether they do, from what benchmarks/ measured."""

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.runner import ratios
from tools.docs.check import NOT_MEASURED, Record, markdown
from tools.docs.speed import AS_GENERATED, BASELINE, FRAMEWORKS, PLAIN_LOOPS, RATE, TUNED, contenders_of, title
from tools.docs.starting import times_same_files

GENERATED = "generated"
SMALL = "small_cnn"
# Times the samples per second of another contender on the small network.
AT_LEAST = {BASELINE: 1.35, "lightning_trainer": 2.0, "hf_accelerate": 1.4, "ignite_engine": 1.4}
OF_THE_PLAIN_LOOP = {"tiny_mlp": 0.92, SMALL: 0.97, "resnet": 1.0, "transformer": 1.0}  # times the fastest plain loop
AHEAD = 1.0  # times the fastest framework, tuned or not
MEMORY = 1.05  # relative to the minimal loop
FIRST_STEP = 0.2  # seconds after the minimal loop's
GUARDS = 0.02  # of a step's time
LOG = "the log"
STARTING = {"`--help`": 0.3, "an option that does not exist": 0.5}  # seconds
SITE = {"first view": 1.0, "the command of a link": 1.0, "a first answer": 0.3, "an answer changes": 0.3}  # seconds
COPYING = 1.5  # times what the same files take in a template without questions

Goal = tuple[str, str, str, bool]  # what, how much is wanted, how much was measured, whether that is enough


def goal_table(records: Mapping[str, Record]) -> str:
    """Return each goal with what was measured, as a Markdown table; records by the names of their files."""
    goals = [*speed_goals(records["speed"]), *block_goals(records["blocks"]), *guard_goals(records["guards"])]
    goals += [*starting_goals(records["starting"]), *copying_goals(records["copying"]), *site_goals(records["site"])]
    if not goals:
        return NOT_MEASURED
    rows = [[what, wanted, measured, "yes" if met else "**no**"] for what, wanted, measured, met in goals]
    return markdown(["goal", "wanted", "measured", "met"], rows)


def speed_goals(results: Record) -> Iterator[Goal]:
    """Compare the generated project with the other contenders."""
    names = dict.fromkeys(record["workload"] for record in measured_in(results))
    workloads = {name: contenders_of(results, name) for name in names}
    for workload, contenders in workloads.items():
        for other, wanted in AT_LEAST.items() if workload == SMALL else ():
            yield faster(contenders, f"`{workload}`: samples/s, times {title(other)}", other, wanted)
        fastest = next(name for name in contenders if name.removesuffix(TUNED) in FRAMEWORKS)
        what = f"`{workload}`: samples/s, times the fastest framework ({title(fastest)})"
        yield faster(contenders, what, fastest, AHEAD)
    for workload, contenders in workloads.items():
        yield from size_and_start(workload, contenders)


def measured_in(results: Record, **wanted: object) -> list[Record]:
    """Return the measurements with these values, or none."""
    return [record for record in results.get("measurements", ()) if wanted.items() <= record.items()]


def faster(contenders: Record, what: str, other: str, wanted: float) -> Goal:
    """Compare samples per second within each round."""
    measured = statistics.median(ratios(contenders[GENERATED][RATE], contenders[other][RATE]))
    return what, f"at least {wanted:.2f}", shown(measured, wanted, measured >= wanted), measured >= wanted


def shown(measured: float, wanted: float, met: bool) -> str:
    """Return a number with two digits, or with three if the goal is missed by less than a hundredth."""
    missed_by = round(abs(measured - wanted), 9)
    return f"{measured:.2f}" if met or missed_by >= 0.01 else f"{measured:.3f}"


def size_and_start(workload: str, contenders: Record) -> Iterator[Goal]:
    """Compare memory and the time to the first step."""

    def of(name: str, what: str) -> float:
        return float(statistics.median(contenders[name][what]))

    memory = of(GENERATED, "peak_memory") / of(BASELINE, "peak_memory")
    what = f"`{workload}`: memory, relative to the minimal loop"
    yield what, f"at most {MEMORY}", shown(memory, MEMORY, memory <= MEMORY), memory <= MEMORY
    first = of(GENERATED, "to_first_step")
    later = first - of(BASELINE, "to_first_step")
    what = f"`{workload}`: first step, after the minimal loop's"
    yield what, f"at most {FIRST_STEP} s", f"{later:+.2f} s", later <= FIRST_STEP
    others = [of(name, "to_first_step") for name in FRAMEWORKS if name in contenders]
    if others:
        before = min(others) - first
        what = f"`{workload}`: first step, before every framework's"
        yield what, "more than 0 s", f"{before:.2f} s", before > 0


def block_goals(results: Record) -> Iterator[Goal]:
    """Compare the generated project with the faster of the plain loops in the same processes."""
    for workload, wanted in OF_THE_PLAIN_LOOP.items() if results else ():
        loops = [record for record in measured_in(results, workload=workload) if record["loop"] in PLAIN_LOOPS]
        measured = 1 / max(statistics.median(loop["ratio_quartiles"]) for loop in loops)
        what = f"`{workload}`: samples/s, times the fastest plain loop, block by block"
        yield what, f"at least {wanted:.2f}", shown(measured, wanted, measured >= wanted), measured >= wanted


def guard_goals(results: Record) -> Iterator[Goal]:
    """Look at what guards take."""
    found = measured_in(results)
    for workload in dict.fromkeys(record["workload"] for record in found):
        records = [record for record in found if record["workload"] == workload]
        shares = {record["guard"]: statistics.median(record["share"]) for record in records}
        for logger in (name for name in shares if name.startswith(LOG)):
            share = shares[logger] + sum(taken for name, taken in shares.items() if not name.startswith(LOG))
            what = f"`{workload}`: the guards, a bar on a screen and {logger}, of a step's time"
            yield what, f"at most {GUARDS:.0%}", f"{share:.1%}", share <= GUARDS


def starting_goals(results: Record) -> Iterator[Goal]:
    """Look at what commands take."""
    for what, wanted in STARTING.items():
        for record in measured_in(results, edit=AS_GENERATED, command=what):
            measured = statistics.median(record["seconds"])
            yield what, f"at most {wanted} s", f"{measured:.2f} s", measured <= wanted


def copying_goals(results: Record) -> Iterator[Goal]:
    """Look at what Copier takes."""
    for what in ("copy", "update") if results else ():
        measured = times_same_files(results, "this template", what)
        goal = f"`copier {what}`, relative to the same files without questions"
        yield goal, f"at most {COPYING}", shown(measured, COPYING, measured <= COPYING), measured <= COPYING


def site_goals(results: Record) -> Iterator[Goal]:
    """Look at what a reader of the preview waits for."""
    for what, wanted in SITE.items():
        for record in measured_in(results, what=what):
            measured = statistics.median(record["milliseconds"]) / 1000
            yield f"preview: {what}", f"at most {wanted} s", f"{measured:.2f} s", measured <= wanted
