"""`ddp-template check` of a broken template, of a new choice, and whatever ends it early."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import COMMAND, check, environment, flowing, members
from tests.support.processes import scaled, wait_until
from tests.support.versions import append, append_to_last_block, clone_of_the_template, left_behind
from tools.rewriting import Rewrite, extend

CSV = "partials/tracking/csv.py.jinja"
ONE = ("launcher=torchrun", "task=digits", "backend=auto", "amp=none", "parallel=ddp", "sync_bn=false", "logging=csv")
TASKS = ("launcher=torchrun,slurm", "task=digits,tabular", *ONE[2:])
SYNTAX, OF_SYNTAX = "\n\nclass Broken(NoTracker:\n    pass\n", {"format", "lint", "types", "train"}
ONLY_SLURM = "{% if launcher == 'slurm' %}\n\n\nassert not F\n{% endif %}\n"
Edit = Callable[[Path, str], None]
MISTAKES = [
    (append_to_last_block, CSV, SYNTAX, (*ONE[:6], "logging=csv,console"), "digits-torchrun", OF_SYNTAX),
    # Though another task is trained with this launcher, and this task with another one.
    (append, "partials/tasks/digits/task.py.jinja", ONLY_SLURM, TASKS, "digits-slurm", {"train"}),
]


@pytest.fixture
def clone() -> Iterator[Path]:
    with clone_of_the_template() as place:
        yield place


@pytest.mark.parametrize(
    ("edit", "file", "text", "answers", "failed", "stages"),
    MISTAKES,
    ids=["a syntax error", "an owner's file that depends on the launcher"],
)
def test_a_mistake_fails_in_the_projects_that_have_it_and_in_no_other(
    edit: Edit, file: str, text: str, answers: tuple[str, ...], failed: str, stages: set[str], clone: Path
) -> None:
    edit(clone / file, text)
    both = [answer.replace("parallel=ddp", "parallel=ddp,fsdp") for answer in answers]
    check(clone, *both, "--json", "out/check.json", code=1)
    checked = json.loads((clone / "out" / "check.json").read_text())["combinations"]
    found = {each["name"]: {failure["stage"] for failure in each["failures"]} for each in checked}
    assert len(found) > 1
    assert {name: where for name, where in found.items() if where} == {
        f"{failed}-auto-none-{parallel}-false-csv": stages for parallel in ("ddp", "fsdp")
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_no_process_behind(number: signal.Signals, clone: Path) -> None:
    command: list[str | Path] = [COMMAND, "check", "launcher=torchrun,spawn", "backend=auto", "logging=csv,console"]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=clone, env=environment(clone), start_new_session=True, **how)
    try:
        wait_until(  # until ranks are at work: the forking process has children
            lambda: process.poll() is not None or sum("forkserver" in line for line in members(process.pid)) >= 3,
            120,
            lambda: members(process.pid),
        )
        assert process.poll() is None, process.communicate()[0]
        process.send_signal(number)
        process.wait(timeout=scaled(20))
        wait_until(lambda: not members(process.pid), 10, lambda: members(process.pid))
    finally:
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)])
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert "Traceback" not in process.communicate()[0]
        assert left_behind(clone) == []


def test_what_is_right_is_told_reported_remembered_and_tidied(clone: Path) -> None:
    reports = ["--junit", "out/junit.xml", "--json", "out/check.json", "--html", "out/page.html"]
    printed = check(clone, *ONE[1:6], "launcher=torchrun,spawn", "logging=csv", *reports)
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in printed
    assert left_behind(clone) == []
    results = json.loads((clone / "out" / "check.json").read_text())
    assert len({outcome["weights"] for outcome in results["combinations"]} - {""}) == 1, "two programs, one number"
    junit, page = ((clone / "out" / name).read_text() for name in ("junit.xml", "page.html"))
    assert junit.count("<testcase") >= 12
    assert "<failure" not in junit
    assert "digits-torchrun-auto-none-ddp-false-csv" in page

    assert ": 1 passed, 0 failed; 1 taken from the cache" in check(clone, *ONE)
    assert "0 taken from the cache" in check(clone, *ONE, "--no-cache")
    append_to_last_block(clone / CSV, '\n\nEDITED = "once"\n')
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in check(clone, *ONE[:6], "logging=csv,console")
    append_to_last_block(clone / CSV, 'EDITED_AGAIN = "twice"\n')
    edited_again = check(clone, *ONE[:6], "logging=csv,console")
    assert "render: 1 of 1 " in edited_again, "the other project does not read that partial"
    assert "2 combinations: 2 passed, 0 failed; 1 taken from the cache" in edited_again


def test_a_failure_is_shown_again_by_the_command_that_is_printed(clone: Path) -> None:
    model = clone / "partials" / "tasks" / "digits" / "model.py.jinja"
    append(clone / "template" / "train.py.jinja", "#black wants a space\n")
    extend(model, imports="import os\n")
    Rewrite("logits: Tensor = $X", "logits: int = $X").apply(model)
    Rewrite("set_generator_states($X)", "pass").apply(clone / "partials" / "checkpoint" / "base.py.jinja")
    printed = check(clone, *ONE[:2], *ONE[3:], "backend=auto,gloo", code=1)
    assert "2 combinations: 0 passed, 2 failed" in printed
    found = ("black would change it", "F401", "error: Incompatible", "the weights from step 4 on")
    assert [words for words in found if words not in flowing(printed)] == []
    (folder,) = left_behind(clone)
    assert (folder / "digits-torchrun-auto-none-ddp-false-csv" / "project" / "train.py").is_file()

    commands = re.findall(r"ddp-template check [^\n]*launcher=torchrun backend=gloo[^\n]*", printed)
    assert len({*commands}) == 1
    program, *arguments = shlex.split(commands[0])
    assert program == "ddp-template"
    again = check(clone, *arguments[1:], code=1)
    assert [words for words in found if words not in flowing(again)] == []
