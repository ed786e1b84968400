"""Compares the generated project with other ways to train.

All train the same network on the same data with the same optimizer, on two Gloo processes. Each contender runs once in
a round.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from generator.answers.questions import TEMPLATE
from tools.docs.speed import BASELINE, FRAMEWORKS, TUNED, contenders_of, title

from . import runner
from .contenders.workloads import ON_CPUS, WORKLOADS
from .runner import RESULTS, CommandError, Record, in_turn, python_with, say
from .trials import Contender, Trial, check_same, render_project

PINNED = TEMPLATE / "benchmarks" / "peers.txt"
PEERS = ("tutorial", *FRAMEWORKS)
NAMES = (BASELINE, "bare_tuned", "generated", *(name for peer in PEERS for name in (peer, peer + TUNED)))
TRIES = 3  # of a run, since contenders can abort or hang when they end
PLOT = TEMPLATE / "docs" / "speed.svg"
GENERATED, TUNED_PEER, PEER = "#c44e52", "#8172b3", "#b8b8c8"


@dataclass
class Benchmark(runner.Benchmark):
    """Samples per second, time to the first step, wall time, memory, collectives and host reads."""

    workloads: tuple[str, ...] = ON_CPUS
    contenders: tuple[str, ...] = NAMES
    """The minimal loop runs in any case."""
    steps: int = 0
    """Train only this many steps (0: as many as the workload has)."""
    plot: bool = False
    """Draw docs/speed.svg from the results, and measure nothing."""

    key: ClassVar = ("workload",)  # the ratios of a workload are those of one run

    def machine(self) -> Record:
        """Return the machine, and the versions of the frameworks."""
        return runner.machine() | {"frameworks": pinned_versions()}

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of a workload up to each round."""
        if self.plot:
            draw(json.loads((self.out or RESULTS / "speed.json").read_text()))
            return
        names = [*dict.fromkeys((BASELINE, *self.contenders))]
        if unknown := [*{*names} - {*NAMES}, *{*self.workloads} - {*WORKLOADS}]:
            raise CommandError(f"there is no {unknown[0]}: choose of {', '.join((*NAMES, *WORKLOADS))}")
        python, project = python_with(PINNED), render_project(folder / "project")
        programs = {name: contender(name, project) for name in names}
        for workload in self.workloads:
            trial = Trial(workload, WORKLOADS[workload].shortened(self.steps), python)
            say(f"{workload}, what each step does")
            # It comes first: so no timed run compiles Python files or reads libraries from the disk.
            counts = {name: tried(partial(trial.count, program)) for name, program in programs.items()}
            check_same(counts)
            runs = {name: partial(tried, partial(trial.run, program)) for name, program in programs.items()}
            for found in in_turn(runs, self.rounds):
                about = {"workload": workload, "steps": trial.workload.steps}
                yield [{**about, "contender": name, **found[name], **without(counts[name], "about")} for name in names]


def without(record: Record, field: str) -> Record:
    """Return a record without a field."""
    return {name: value for name, value in record.items() if name != field}


def contender(name: str, project: Path) -> Contender:
    """Return the program of a name."""
    if name == "generated":
        return Contender(str(project))
    return Contender(BASELINE if name == "bare_tuned" else name.removesuffix(TUNED), tuned=name.endswith(TUNED))


def tried(run: Callable[[], Record]) -> Record:
    """Return what a run gives. Raises CommandError if it fails each time."""
    for _ in range(TRIES - 1):
        try:
            return run()
        except CommandError as error:
            print(error, file=sys.stderr)
    return run()


def pinned_versions() -> dict[str, str]:
    """Return the versions that are compared."""
    pinned = dict(line.split("==") for line in PINNED.read_text().splitlines() if "==" in line)
    return {name: pinned[name] for name in ("torch", "lightning", "accelerate", "pytorch-ignite", "transformers")}


def draw(results: Record) -> None:
    """Draw each contender's samples per second, in times of the minimal loop's, with the spread of the rounds."""
    import matplotlib
    from matplotlib.figure import Figure

    # Without these, identifiers would be random, and the text would need the font.
    matplotlib.rcParams.update({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 9})
    workloads = [*dict.fromkeys(record["workload"] for record in results["measurements"])]
    figure = Figure(figsize=(4.6 * len(workloads), 4.6), layout="constrained")
    # All in the order of the first workload, so that a contender has one line.
    names = [*contenders_of(results, workloads[0])][::-1]
    for axes, workload in zip(
        figure.subplots(1, len(workloads), sharey=True, squeeze=False)[0], workloads, strict=True
    ):
        found = contenders_of(results, workload)
        drawn = {name: found[name]["ratio"] for name in names if name in found}
        medians = [ratio["median"] for ratio in drawn.values()]
        below = [ratio["median"] - ratio["low"] for ratio in drawn.values()]
        above = [ratio["high"] - ratio["median"] for ratio in drawn.values()]
        axes.barh([*map(title, drawn)], medians, xerr=[below, above], color=[*map(color, drawn)], ecolor="#333333")
        axes.axvline(1, color="#333333", linewidth=0.8, linestyle=":")
        axes.set_title(workload)
        axes.set_xlabel(f"samples/s, ratio to the {title(BASELINE)}")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, format="svg", metadata={"Date": None})


def color(name: str) -> str:
    """Return the color of a contender: the generated project stands out, and tuned ones differ from the others."""
    return GENERATED if name == "generated" else TUNED_PEER if name.endswith(TUNED) else PEER
