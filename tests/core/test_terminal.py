"""In a terminal, a run shows a row for each evaluation and a bar, and leaves it in order; elsewhere, plain lines."""

import io
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Package, Render
from tests.support.processes import PATH, Session, output_of, run_in_terminal
from tests.support.training import FOR_EVER, ON_CPU
from tests.support.versions import append

COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
# pytest-xdist sets COLUMNS, which rich takes for the width.
WITHOUT_COLUMNS = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
ALONE = (sys.executable, "train.py")
NOTES = """
import atexit, os, pathlib, sys

def note():
    found = [name for name in ("rich", "torch", "tyro") if name in sys.modules]
    pathlib.Path(os.environ["NOTES"], os.environ.get("RANK", "none")).write_text(" ".join(found))

if sys.argv[0].endswith("train.py"):
    atexit.register(note)
"""
KILLED = """
import os as _os

def lr_at(step: int, *_: object) -> float:
    if step == 30 and _os.environ["RANK"] == "0":
        _os.kill(_os.getpid(), 9)
    return 0.001
"""
DIVERGING = ("--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1", "--epochs", "1")
ENDS = [
    (DIVERGING, "", "error: the gradients of 1 steps in a row", 65),
    (FOR_EVER, KILLED, "rank 0 was ended by SIGKILL", 137),
]
Start = Callable[..., Session]


@pytest.fixture
def start(own_project: Render) -> Start:
    """Return what starts two ranks by launch.sh in a terminal, or another command, in a project of the test."""
    place = own_project()

    def run(*options: str, command: Sequence[str] = ("./launch.sh",), edit: str = "", **how: Any) -> Session:
        append(place / "ddp_project" / "task.py", edit)
        env = {**WITHOUT_COLUMNS, "TERM": "xterm-256color", "PATH": PATH, "NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
        return run_in_terminal([*command, *ON_CPU, *options], place, {**env, **how.pop("env", {})}, **how)

    return run


def places(line: str) -> list[int]:
    """Where the words of a line end."""
    return [found.end() for found in re.finditer(r"\S+", line)]


def test_a_terminal_shows_rows_and_a_bar_and_where_everything_is(start: Start) -> None:
    session = start("--epochs", "5")
    text = "\n".join(session.lines)
    assert Session(session.shown, 0, columns=100).lines == session.lines, "a line is longer than 100 columns"
    first = re.search(r"^run directory: (runs/\S+)\nwatch it: (.*)$", text, re.MULTILINE)
    assert first, text
    run_dir = first[1]
    assert first[2] == f"open {run_dir}/report.html, or tail -f {run_dir}/train.log"
    done, *ends = session.lines[-3:]
    assert re.fullmatch(r"done: best validation accuracy 0\.\d+ at step \d+ of 110, in \d:\d\d:\d\d", done)
    assert ends == [
        f"page: {run_dir}/report.html",
        f"next: python evaluate.py {run_dir}, or export.py and then predict.py",
    ]
    sets, names, *rows = session.lines[-10:-3]
    assert sets.split() == ["train", "validation", "validation"]
    assert names.split() == ["step", "epoch", "loss", "loss", "accuracy", "lr", "samples/s", "left"]
    assert [places(row) for row in rows] == [places(names)] * 5
    assert [row.split()[:2] for row in rows] == [[str(22 * epoch), str(epoch)] for epoch in range(1, 6)]
    digits = [number.partition("e")[0].lstrip("0.").replace(".", "") for row in rows for number in row.split()[2:6]]
    assert {*map(len, digits)} == {4}
    assert rows[-1].endswith(" 0:00:00")
    drawn = [int(step) for step in re.findall(r"step (\d+) of 110 ", session.plain)]
    assert drawn == sorted(drawn), "one bar over the whole run"
    assert re.search(r"loss \d\.\d+  \d:\d\d:\d\d left", session.plain)
    assert COLOURS.search(session.shown)
    assert not session.screen.cursor.hidden


def test_the_log_is_the_same_without_a_terminal(start: Start, project: Render, tmp_path: Path) -> None:
    options = ["--epochs", "2", "--run-dir", str(tmp_path / "run")]
    start(*options, command=ALONE)
    log = (tmp_path / "run" / "train.log").read_text()
    options[-1] = str(tmp_path / "other")
    env = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", "OMP_NUM_THREADS": "1"}
    printed = output_of([*ALONE, *ON_CPU, *options], project(), env)
    assert printed == (tmp_path / "other" / "train.log").read_text(), "neither colours nor a bar"
    of_clock = r"\d\S*[-:]\d\S*|/(run|other)\b|  (samples_per_second|device/\S+|waiting/\S+) \S+"
    assert re.sub(of_clock, "", log) == re.sub(of_clock, "", printed)
    assert re.findall(r"step (\d+)  epoch", printed) == ["22", "44"]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=lambda env: "=".join(*env.items()))
def test_colours_can_be_declined(env: dict[str, str], start: Start) -> None:
    session = start("--max-steps", "2", command=ALONE, env=env)
    assert "best validation accuracy" in session.lines[-3]
    assert not COLOURS.search(session.shown)
    assert ("\x1b" in session.shown) == ("TERM" not in env)
    assert ("rank 0 INFO" in session.lines[-3]) == ("TERM" in env)


def test_ctrl_c_ends_with_what_was_reached_and_how_to_resume(start: Start) -> None:
    session = start(*FOR_EVER, interrupt=" left")
    stopped, reached, page, following = session.lines[-4:]
    step = re.findall(r"stopped after step (\d+); --resume goes on from here", stopped)
    assert step, session.shown
    assert reached.startswith(f"stopped: step {step[0]}, no evaluation yet, in 0:")
    assert re.fullmatch("page: runs/.*/report.html", page)
    assert following == "next: the same command with --resume"
    assert (session.code, session.screen.cursor.hidden, session.screen.cursor.x) == (75, False, 0)


@pytest.mark.parametrize(("options", "edit", "line", "code"), ENDS, ids=["an error", "a kill"])
def test_a_run_that_fails_takes_the_bar_away(options: list[str], edit: str, line: str, code: int, start: Start) -> None:
    session = start(*options, edit=edit)
    assert session.lines[-1].startswith(line), session.shown
    assert " of 22" in session.shown, "there was a bar"
    bar = re.search(r"[\d?] left", "\n".join(session.lines))
    assert bar is None or code == 137, "only what torch writes by itself can follow the bar of a killed rank"
    assert (session.code, session.screen.cursor.hidden, session.screen.cursor.x) == (code, False, 0)


def test_rich_is_imported_by_rank_0_alone_and_not_for_help(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NOTES)
    env = {"PYTHONPATH": str(tmp_path), "NOTES": str(tmp_path)}
    start("--help", command=ALONE, env=env)
    start("--max-steps", "1", env=env)
    noted = {name: (tmp_path / name).read_text() for name in ("none", "0", "1")}
    assert noted == {"none": "tyro", "0": "rich torch tyro", "1": "torch tyro"}


class Stream(io.StringIO):
    """What seems to be a terminal, until its window is closed."""

    closed_window = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.closed_window:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.fixture
def shown() -> Stream:
    return Stream()


@pytest.fixture
def terminal(package: Package, shown: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLUMNS", raising=False)
    module = package("runtime.terminal")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", shown)
        terminal = module.Terminal()
    terminal.console.file = shown  # pytest sets sys.stderr anew for the test
    yield terminal
    terminal.end()


def add_rows(terminal: Any) -> None:
    """Show three evaluations whose numbers have many forms."""
    for step, value in ((8, 1.25e-7), (12_345, 1.0), (1_234_567, -98_765.4)):
        found = {"train": {"loss": value, "accuracy": math.nan}, "validation": {"loss": math.inf, "accuracy": 0.5}}
        found["validation"] |= {"a\nb": 1e9, "精度[red]": 2.0, "\udcff": 3.0}
        progress = SimpleNamespace(step=step, epoch=step // 1000, lr=0.001, is_best_step=lambda: True)
        terminal.add_evaluation(progress, found, "validation\naccuracy")


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (150, "step epoch loss accuracy loss accuracy b 精度[red] ? lr samples/s left"),
        (100, "step epoch loss loss accuracy b samples/s left"),
        (80, "step epoch loss loss accuracy samples/s left"),
        (68, "step epoch loss accuracy samples/s left"),
        (40, "step accuracy left"),
        (12, "step"),
    ],
)
def test_a_narrow_terminal_loses_columns_and_no_alignment(
    columns: int, names: str, terminal: Any, shown: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    add_rows(terminal)
    lines = Session(shown.getvalue().replace("\n", "\r\n"), 0, columns).lines
    *_, above, one, two, three = lines
    assert above.replace("\udcff", "?").split() == names.split()
    assert len(lines) == (6 if "b" in names.split() else 5 if columns > 12 else 4), "names once, and nothing wraps"
    ends = [places(line) for line in (above, one, two, three)]
    assert ends[columns == 150 :] == [ends[1]] * (4 - (columns == 150)), "pyte counts a wide letter once"
    assert (one.split()[0], three.split()[0]) == ("8", "1,234,567")


def test_the_bar_is_drawn_a_few_times_a_second(terminal: Any, shown: Stream) -> None:
    """However short the steps are; to draw it takes as long as some steps."""
    terminal.begin(0, 10**9)
    began, step = time.monotonic(), 0
    while time.monotonic() - began < 1:
        terminal.advance(step := step + 1)
    assert step > 1000
    assert 2 <= shown.getvalue().count(" of 1,000,000,000") <= 10


def test_a_line_of_another_thread_or_process_replaces_the_bar(
    terminal: Any, package: Package, shown: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not come back below it: the process may end there."""
    exits = package("runtime.exits")
    for redirected in (True, False):
        monkeypatch.setattr(sys, "stderr", shown)
        terminal.begin(0, 10)
        if not redirected:
            monkeypatch.setattr(sys, "stderr", shown)  # as in another process
        exits.print_alone("error: this is the end")
        lines = Session(shown.getvalue().replace("\n", "\r\n"), 0).lines
        assert (lines[-1], "left" in "".join(lines)) == ("error: this is the end", False)
        terminal.end()


def test_a_window_that_is_closed_ends_no_run(terminal: Any, shown: Stream) -> None:
    shown.closed_window = True
    terminal.begin(0, 10)
    terminal.advance(1)
    terminal.emit(logging.LogRecord("root", logging.WARNING, "", 0, "a message", None, None))
    add_rows(terminal)
    terminal.show_test({"test": {"loss": 1.0}})
    terminal.end()
    shown.closed_window = False
    terminal.emit(logging.LogRecord("root", logging.WARNING, "", 0, "another", None, None))
    assert "warning: another" in shown.getvalue()
