"""`ddp-template check`, as a maintainer starts it: what it says, what it leaves, how it ends, and what it remembers."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from generator.questions import TEMPLATE
from generator.snapshot import PARTS
from tests.launching import output_of
from tests.pace import seconds

COMMAND = Path(sys.executable).with_name("ddp-template")
ONE = ("launcher=torchrun", "backend=auto", "amp=none", "sync_bn=false", "logging=csv")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of this repository whose template a test may change; it has no cache."""
    place = tmp_path / "clone"
    for part in (*PARTS, "generator"):
        copy = shutil.copytree if (TEMPLATE / part).is_dir() else shutil.copy2
        place.mkdir(exist_ok=True)
        copy(TEMPLATE / part, place / part)
    return place


def environment(clone: Path) -> dict[str, str]:
    """In which the command is the one of the clone, and leaves its projects beside it."""
    temporary = clone.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(temporary), "COLUMNS": "100"}


def check(clone: Path, *arguments: str, code: int = 0) -> str:
    """Run the command of the clone, and give all that it printed. Fails where it ends with another exit code."""
    return output_of([COMMAND, "check", *arguments], clone, environment(clone), code=code)


def left_behind(clone: Path) -> list[Path]:
    """The temporary folders of the check that are still there."""
    return sorted((clone.parent / "temporary").glob("ddp-template-check-*"))


def flowing(printed: str) -> str:
    """What was printed, without the line breaks and spaces of tables."""
    return " ".join(printed.split())


def edit(clone: Path, path: str, old: str, new: str) -> None:
    """Change a file of the clone."""
    text = (clone / path).read_text()
    assert text.count(old) == 1
    (clone / path).write_text(text.replace(old, new))


def test_what_is_right_is_told_reported_remembered_and_tidied(clone: Path) -> None:
    reports = ["--junit", "out/junit.xml", "--json", "out/check.json", "--html", "out/page.html"]
    printed = check(clone, *ONE[1:4], "launcher=torchrun,spawn", "logging=csv", *reports)
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in printed
    assert left_behind(clone) == []
    results = json.loads((clone / "out" / "check.json").read_text())
    assert len({outcome["weights"] for outcome in results["combinations"]} - {""}) == 1, "two programs, one number"
    suites = ElementTree.parse(clone / "out" / "junit.xml").getroot()
    cases = suites.findall(".//testcase")
    assert len(cases) >= 12
    assert not suites.findall(".//failure")
    assert "torchrun-auto-none-false-csv" in (clone / "out" / "page.html").read_text()

    again = check(clone, *ONE)
    assert "1 combinations: 1 passed, 0 failed; 1 taken from the cache" in again.replace(
        "combination:", "combinations:"
    )
    fresh = check(clone, *ONE, "--no-cache")
    assert "0 taken from the cache" in fresh
    edit(clone, "partials/tracking/csv.py.jinja", "Record metrics of a step.", "Record the metrics of a step.")
    edited = check(clone, *ONE[:4], "logging=csv,console")
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in edited
    edit(clone, "partials/tracking/csv.py.jinja", "Record the metrics of a step.", "Record metrics of one step.")
    edited_again = check(clone, *ONE[:4], "logging=csv,console")
    assert "render: 1 of 1 " in edited_again, "the other project does not read that partial"
    assert "2 combinations: 2 passed, 0 failed; 1 taken from the cache" in edited_again


def test_a_failure_is_shown_again_by_the_command_that_is_printed(clone: Path) -> None:
    edit(clone, "template/train.py.jinja", "run.stop.agreed = stops > 0", "run.stop.agreed = (stops > 0)")
    edit(
        clone,
        "template/{{package_name}}/model.py",
        "from torch import Tensor, nn",
        "import os\nfrom torch import Tensor, nn",
    )
    edit(clone, "template/{{package_name}}/model.py", "logits: Tensor = ", "logits: int = ")
    edit(clone, "template/{{package_name}}/checkpoint.py", 'set_generator_states(state["generators"])', "pass")
    printed = check(clone, "launcher=torchrun", "backend=auto,gloo", "amp=none", "sync_bn=false", "logging=csv", code=1)
    assert "2 combinations: 0 passed, 2 failed" in printed
    found = ("black would change it", "F401", "error: Incompatible", "the weights from step 4 on")
    assert [words for words in found if words not in flowing(printed)] == []
    (folder,) = left_behind(clone)
    assert (folder / "torchrun-auto-none-false-csv" / "project" / "train.py").is_file()

    commands = re.findall(r"ddp-template check [^\n]*launcher=torchrun backend=gloo[^\n]*", printed)
    assert len({*commands}) == 1
    program, *arguments = shlex.split(commands[0])
    assert program == "ddp-template"
    again = check(clone, *arguments[1:], code=1)
    assert [words for words in found if words not in flowing(again)] == []


def test_a_template_that_cannot_be_rendered_fails_where_it_is_used(clone: Path) -> None:
    edit(clone, "partials/tracking/csv.py.jinja", "class Tracker", "{{ no_such_answer }}class Tracker")
    printed = check(clone, *ONE[:-1], "logging=csv,console", code=1)
    assert "2 combinations: 1 passed, 1 failed" in printed
    assert "no_such_answer" in printed


def test_a_syntax_error_is_told_by_every_stage_and_of_its_projects_alone(clone: Path) -> None:
    edit(clone, "partials/tracking/csv.py.jinja", "class Tracker(NoTracker):", "class Tracker(NoTracker:")
    printed = check(clone, *ONE[:-1], "logging=csv,console", "--json", "out/check.json", code=1)
    assert "2 combinations: 1 passed, 1 failed" in printed
    (failed,) = [
        each for each in json.loads((clone / "out" / "check.json").read_text())["combinations"] if each["failures"]
    ]
    assert failed["name"] == "torchrun-auto-none-false-csv"
    assert {failure["stage"] for failure in failed["failures"]} == {"format", "lint", "types", "train"}


JSON_LINES = """
    json lines (metrics.jsonl):
      value: jsonl"""


def test_an_added_choice_is_checked_with_no_other_edit(clone: Path) -> None:
    edit(clone, "copier.yml", "      value: csv", f"      value: csv{JSON_LINES}")
    console = (clone / "partials" / "tracking" / "console.py.jinja").read_text()
    (clone / "partials" / "tracking" / "jsonl.py.jinja").write_text(console)
    printed = check(clone, "logging=jsonl", "launcher=torchrun,slurm", "backend=auto", "sync_bn=false", "amp=none")
    assert "2 combinations: 2 passed, 0 failed" in printed
    assert "logging=jsonl: only its train.log was read" in flowing(printed)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["launcher=srun"], "launcher=srun is no choice: launcher may be torchrun, "),
        (["scheduler=slurm"], "scheduler is no question with choices: those are launcher, "),
        (["torchrun"], "torchrun is neither KEY=VALUE nor the name of a combination"),
        (["launcher=spawn", "backend=mpi"], "no legal combination has launcher=spawn backend=mpi"),
        (["--shard", "5/4"], "--shard 5/4 does not exist"),
        (["--cover", "9"], "--cover 9 is impossible: choose 1 to 5"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused_in_one_line(arguments: list[str], reason: str, clone: Path) -> None:
    printed = check(clone, *arguments, code=2)
    (line,) = printed.splitlines()
    assert line.startswith("error: ")
    assert reason in line
    assert left_behind(clone) == []


def members(session: int) -> list[str]:
    """The processes of a session that are not yet gone."""
    listed = subprocess.run(["ps", "-ww", "-o", "stat=,pid=,args=", "-s", str(session)], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def training(session: int) -> bool:
    """Whether ranks are at work: the forking process has children."""
    children = [line for line in members(session) if "forkserver" in line]
    return len(children) >= 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_no_process_behind(number: signal.Signals, clone: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "check", "launcher=torchrun,spawn", "backend=auto", "logging=csv,console"],
        cwd=clone,
        env=environment(clone),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + seconds(120)
        while not training(process.pid):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, members(process.pid)
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(timeout=seconds(20))
        until = time.monotonic() + seconds(10)
        while members(process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        assert members(process.pid) == []
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)])
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert "Traceback" not in process.communicate()[0]
        assert left_behind(clone) == []
