"""`ddp-template check`, as a maintainer starts it: what it says, what it leaves, how it ends, and what it remembers."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clones import append, check, clone_of_the_template, flowing, left_behind
from tests.commands import ddp_template
from tools.rewriting import Rewrite, extend

CSV = "partials/tracking/csv.py.jinja"
ONE = ("launcher=torchrun", "backend=auto", "amp=none", "sync_bn=false", "logging=csv")


@pytest.fixture
def clone() -> Iterator[Path]:
    """A copy of this repository whose template a test may change."""
    with clone_of_the_template() as place:
        yield place


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
    append(clone / CSV, '\n\nEDITED = "once"\n')
    edited = check(clone, *ONE[:4], "logging=csv,console")
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in edited
    append(clone / CSV, 'EDITED_AGAIN = "twice"\n')
    edited_again = check(clone, *ONE[:4], "logging=csv,console")
    assert "render: 1 of 1 " in edited_again, "the other project does not read that partial"
    assert "2 combinations: 2 passed, 0 failed; 1 taken from the cache" in edited_again


def test_a_failure_is_shown_again_by_the_command_that_is_printed(clone: Path) -> None:
    package = clone / "template" / "{{package_name}}"
    append(clone / "template" / "train.py.jinja", "#black wants a space\n")
    extend(package / "model.py", imports="import os\n")
    Rewrite("logits: Tensor = $X", "logits: int = $X").apply(package / "model.py")
    Rewrite("set_generator_states($X)", "pass").apply(package / "checkpoint.py")
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
def test_a_selection_that_makes_no_sense_is_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = ddp_template("check", *arguments, code=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line
