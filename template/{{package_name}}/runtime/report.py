"""A page to look at, of one run or several: curves, options, stops. It needs no network and no other file.

It is made from metrics.jsonl and config.json alone, so it also works for a running or killed run. To compare
runs, python -m with the name of this module and the folders of the runs writes the page into the current folder.
"""

import base64
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle, islice
from pathlib import Path

from .exits import UserError, finish
from .records import FILE, LOG, Thinned, metrics_in, thinned
from .storage import atomic_write

PAGE = "report.html"
SHOWN = "shown"  # folder of a run: what show() of task.py returned last
MOST = 60  # metrics to draw
WIDTH, HEIGHT, LEFT = 640, 190, 64  # of a chart, and the room for its labels (pixels)
# By the prefix of a record's name: what it was taken of, and the dashes of its curve.
KINDS = {"epoch/train_": ("epoch", "7 4"), "train/": ("training", "2 3")}
# The dashes of each set that is evaluated on, in turn.
DASHES = {"none": "Solid", "14 3": "Long dashes", "14 3 2 3": "Dashes with a dot", "14 3 2 3 2 3": "Dashes with two"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f7f7f")  # one for each run, in turn
LEGEND = "Dashed: training, over an epoch. Dotted: training, since the record before."
Curve = tuple[int, str, list[tuple[int, float]]]  # which run, of which record, steps and values
TOP = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
STYLE = """
:root { color-scheme: light dark; background: canvas; font: 15px/1.5 system-ui, sans-serif }
section { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1em 2em }
figure { margin: 0 } img { max-width: 100%; image-rendering: pixelated }
svg { width: 100% } svg text { font-size: 11px; fill: currentColor; text-anchor: end }
path { fill: none; stroke-width: 1.8; stroke-linecap: round; pointer-events: none }
circle { opacity: 0 } circle:hover { opacity: 1 }
line { stroke: currentColor; opacity: .2 } .mark { opacity: 1; stroke-width: 2; stroke-dasharray: 1 3 }
.other { font-weight: bold } .scroll { overflow-x: auto } th, td { text-align: left; padding-right: 1em }
"""


@dataclass
class History:
    """What is drawn of a run."""

    name: str
    started: str = ""  # when, where and with what: at the last start
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # by record: steps and values
    marks: list[tuple[int, str]] = field(default_factory=list)  # steps at which it was resumed or has ended, and how
    options: dict[str, object] = field(default_factory=dict)
    sets: list[str] = field(default_factory=lambda: ["validation"])  # that are evaluated on

    def split(self, name: str) -> tuple[str, str, str]:
        """Return the metric of a record, what it was taken of, and the dashes of its curve."""
        sets = zip(self.sets, cycle(DASHES))
        kinds = KINDS | {f"epoch/{each}_": (each, dashes) for each, dashes in sets}
        prefix = max(filter(name.startswith, kinds), key=len, default="")
        return name.removeprefix(prefix), *kinds.get(prefix, ("", "none"))


def read_history(run_dir: Path, recorded: Thinned | None = None) -> History:
    """Return what is drawn of a run; its records are read, unless they are given. Raises UserError if it is no run."""
    try:
        records = (recorded or thinned(run_dir)).records()
        options = json.loads((run_dir / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir} is no run with {FILE} and config.json: name folders such as runs/*") from error
    history = History(run_dir.resolve().name, options=options)
    for record in records:
        step, event = record["step"], record.get("event", "started")
        if "about" in record:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["time"]))
            history.started = f"{when}: {record['about']}"
            history.sets = record.get("sets", history.sets)
        if event not in ("started", "done"):
            history.marks.append((step, event))
        for name, value in metrics_in(record).items():
            history.curves.setdefault(name, []).append((step, value))
    for curve in history.curves.values():
        curve.sort(key=lambda point: point[0])  # clocks of nodes differ
    return history


def number(value: float) -> str:
    """Return four digits of a number, or all of a large one."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def chart(metric: str, curves: Sequence[Curve], runs: Sequence[History]) -> str:
    """Return a figure of a metric, of training and validation, with a colour for each run; "" if nothing is finite."""
    finite = [point for *_, curve in curves for point in curve if math.isfinite(point[1])]
    if not finite:
        return ""
    low, high = min(value for _, value in finite), max(value for _, value in finite)
    last = max(1, *(step for step, _ in finite))

    def place(step: int, value: float) -> tuple[str, str]:
        x = LEFT + (WIDTH - LEFT) * step / last
        return f"{x:.1f}", f"{HEIGHT * (high / 2 - value / 2) / ((high / 2 - low / 2) or 1):.1f}"  # the largest floats

    parts = [f'<text x="{WIDTH}" y="{HEIGHT + 16}">step {last:,}</text>']
    for value in (low, low / 2 + high / 2, high):
        y = place(0, value)[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y}" dy="4">{number(value)}</text>')
    for name, step, what in ((run.name, *mark) for run in runs for mark in run.marks):
        x = place(step, low)[0]
        text = f"<title>{escape(name)}: {what} at step {step:,}</title>"
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}">{text}</line>')
    for i, name, curve in curves:
        _, kind, dashes = runs[i].split(name)
        label = escape(f"{runs[i].name} {kind}".rstrip())
        colour, line, pen = COLOURS[i % len(COLOURS)], "", "M"
        for step, value in curve:
            if not math.isfinite(value):
                pen = "M"  # a gap
                continue
            x, y = place(step, value)
            line, pen = f"{line}{pen}{x},{y}{'h0' if pen == 'M' else ''}", "L"  # also one point alone is seen
            text = f"<title>{label}, step {step:,}: {number(value)}</title>"
            parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}">{text}</circle>')
        parts.append(f'<path d="{line}" stroke="{colour}" stroke-dasharray="{dashes}"/>')
    size = f'viewBox="0 -10 {WIDTH + 8} {HEIGHT + 30}" role="img" aria-label="{escape(metric)}"'
    return f"<figure><figcaption><b>{escape(metric)}</b></figcaption><svg {size}>{''.join(parts)}</svg></figure>"


def about(runs: Sequence[History]) -> Iterator[str]:
    """Yield a line for each run: its colour, where it was started, and where it was stopped or resumed."""
    for i, run in enumerate(runs):
        marks = ", ".join(f"{what} at step {step:,}" for step, what in run.marks) or "neither stopped nor resumed"
        colour = f'<span style="color: {COLOURS[i % len(COLOURS)]}" aria-hidden="true">&#9632;</span>'
        yield f"<p>{colour} <b>{escape(run.name)}</b> {escape(run.started)}; {marks}</p>"


def legend(runs: Sequence[History]) -> str:
    """Return what the dashes of the curves mean."""
    sets = dict.fromkeys(each for run in runs for each in run.sets)
    named = " ".join(f"{how}: {escape(name)}." for name, how in zip(sets, cycle(DASHES.values())))
    return f"<p>{named} {LEGEND}</p>"


def options_table(runs: Sequence[History]) -> Iterator[str]:
    """Yield the rows of a table of all options, a column for each run; those that differ are marked."""
    yield "<tr><th>option</th>" + "".join(f"<th>{escape(run.name)}</th>" for run in runs) + "</tr>"
    for name in dict.fromkeys(name for run in runs for name in run.options):
        values = [str(run.options.get(name, "")) for run in runs]
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        yield f'<tr{" class=other" if len({*values}) > 1 else ""}><td>--{name.replace("_", "-")}</td>{cells}</tr>'


def figures(folder: Path) -> str:
    """Return the HTML of what was shown last."""
    parts = []
    for file in sorted(folder.glob("*.*")):
        content, name = file.read_bytes(), escape(file.stem)
        if file.suffix == ".png":
            data = base64.b64encode(content).decode()
            inner = f'<img src="data:image/png;base64,{data}" alt="{name}">'
        else:
            inner = content.decode() if file.suffix == ".svg" else f"<pre>{escape(content.decode())}</pre>"
        parts.append(f"<figure><figcaption><b>{name}</b>, at the last evaluation</figcaption>{inner}</figure>")
    return "".join(parts)


def write_page(run_dirs: Sequence[Path], page: Path, recorded: Thinned | None = None) -> None:
    """Write the page of some runs, or of one whose records are given.

    Raises UserError if a folder is no run, or if the disk does not take the page.
    """
    runs = [read_history(run_dir, recorded) for run_dir in run_dirs]
    metrics: dict[str, list[Curve]] = {}
    for i, run in enumerate(runs):
        for name, curve in run.curves.items():
            metrics.setdefault(run.split(name)[0], []).append((i, name, curve))
    metrics.pop("epoch", None)
    charts = "".join(chart(metric, curves, runs) for metric, curves in islice(metrics.items(), MOST))
    more = f"<p>{FILE} has {len(metrics) - MOST:,} metrics more.</p>" if len(metrics) > MOST else ""
    shown = "".join(figures(run_dir / SHOWN) for run_dir in run_dirs)
    table = f"<div class=scroll tabindex=0><table>{''.join(options_table(runs))}</table></div>"
    head = f"{TOP}<title>{escape(', '.join(run.name for run in runs))}</title><style>{STYLE}</style>"
    with atomic_write(page, sync=False) as file:
        text = f"{head}<main>{''.join(about(runs))}{legend(runs)}<section>{charts}{shown}</section>{more}{table}</main>"
        file.write(text.encode(errors="backslashreplace"))  # names may hold what is no text


if __name__ == "__main__":
    given = [Path(each) for each in sys.argv[1:]] or [Path()]
    begun = [each for each in given if (each / FILE).exists() or (each / LOG).exists()]  # runs/* may have other folders
    sys.exit(finish(lambda: write_page(begun or given, Path(PAGE))))
