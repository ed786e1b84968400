"""Draws benchmarks/results/speed.json as docs/speed.svg: python -m benchmarks.speed_plot."""

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from generator.answers.questions import TEMPLATE
from tools.docs.speed import BASELINE, TUNED, title

from .speed import RESULTS

PLOT = TEMPLATE / "docs" / "speed.svg"
GENERATED, TUNED_PEER, PEER = "#c44e52", "#8172b3", "#b8b8c8"


def main(
    results: Annotated[Path, typer.Option(metavar="FILE", help="What was measured.")] = RESULTS,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the plot goes.")] = PLOT,
) -> None:
    """Draw each contender's samples per second, in times of the minimal loop's, with the spread of the rounds."""
    workloads = json.loads(results.read_text())["workloads"]
    # Without these, identifiers would be random, and the text would need the font.
    matplotlib.rcParams.update({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(4.6 * len(workloads), 4.6), layout="constrained")
    # All in the order of the first workload, so that a contender has one line.
    first = next(iter(workloads.values()))["contenders"]
    names = sorted(first, key=lambda name: first[name]["ratio"]["median"])
    many = figure.subplots(1, len(workloads), sharey=True, squeeze=False)
    for axes, (workload, measured) in zip(many[0], workloads.items(), strict=True):
        draw(axes, workload, [(name, measured["contenders"][name]) for name in names if name in measured["contenders"]])
    figure.savefig(out, format="svg", metadata={"Date": None})
    typer.echo(f"plot: {out}")


def draw(axes: Axes, workload: str, contenders: list[tuple[str, dict[str, Any]]]) -> None:
    """Draw one workload: a bar for each contender, and a line from its slowest to its fastest round."""
    names = [title(name) for name, _ in contenders]
    ratios = [record["ratio"] for _, record in contenders]
    medians = [ratio["median"] for ratio in ratios]
    below = [ratio["median"] - ratio["low"] for ratio in ratios]
    above = [ratio["high"] - ratio["median"] for ratio in ratios]
    axes.barh(names, medians, xerr=[below, above], color=[color(name) for name, _ in contenders], ecolor="#333333")
    axes.axvline(1, color="#333333", linewidth=0.8, linestyle=":")
    axes.set_title(workload)
    axes.set_xlabel(f"samples/s, ratio to the {title(BASELINE)}")
    axes.spines[["top", "right"]].set_visible(False)


def color(name: str) -> str:
    """The generated project stands out, and what is tuned differs from what is not."""
    if name == "generated":
        return GENERATED
    return TUNED_PEER if name.endswith(TUNED) else PEER


if __name__ == "__main__":
    typer.run(main)
