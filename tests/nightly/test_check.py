"""`ddp-template check` of a broken template, of a new choice, and whatever ends it early."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.cli import COMMAND, check, environment, flowing
from tests.support.processes import scaled, wait_until
from tests.support.versions import append, append_to_last_block, clone_of_the_template, left_behind
from tools.rewriting import Rewrite, extend

CSV = "partials/tracking/csv.py.jinja"
ONE = ("launcher=torchrun", "task=digits", "backend=auto", "amp=none", "sync_bn=false", "logging=csv")


@pytest.fixture
def clone() -> Iterator[Path]:
    """A copy of this repository whose template a test may change."""
    with clone_of_the_template() as place:
        yield place


def test_a_template_that_cannot_be_rendered_fails_where_it_is_used(clone: Path) -> None:
    append_to_last_block(clone / CSV, "{{ no_such_answer }}\n")
    printed = check(clone, *ONE[:-1], "logging=csv,console", code=1)
    assert "2 combinations: 1 passed, 1 failed" in printed
    assert "no_such_answer" in printed


def test_a_syntax_error_is_told_by_every_stage_and_of_its_projects_alone(clone: Path) -> None:
    append_to_last_block(clone / CSV, "\n\nclass Broken(NoTracker:\n    pass\n")
    printed = check(clone, *ONE[:-1], "logging=csv,console", "--json", "out/check.json", code=1)
    assert "2 combinations: 1 passed, 1 failed" in printed
    (failed,) = [
        each for each in json.loads((clone / "out" / "check.json").read_text())["combinations"] if each["failures"]
    ]
    assert failed["name"] == "digits-torchrun-auto-none-false-csv"
    assert {failure["stage"] for failure in failed["failures"]} == {"format", "lint", "types", "train"}


def test_an_owners_file_that_depends_on_the_launcher_is_trained_with_it(clone: Path) -> None:
    """Though another task is trained with this launcher, and this task with another one."""
    append(
        clone / "partials/tasks/digits/task.py.jinja", "{% if launcher == 'slurm' %}\n\n\nassert not F\n{% endif %}\n"
    )
    some = ("task=digits,tabular", "launcher=torchrun,slurm", *ONE[2:])
    printed = check(clone, *some, "--json", "out/check.json", code=1)
    assert "4 combinations: 3 passed, 1 failed" in printed
    failed = [
        each for each in json.loads((clone / "out" / "check.json").read_text())["combinations"] if each["failures"]
    ]
    assert [each["name"] for each in failed] == ["digits-slurm-auto-none-false-csv"]
    assert [failure["stage"] for failure in failed[0]["failures"]] == ["train"]


JSON_LINES = """
    json lines:
      value: jsonl"""


def test_an_added_choice_is_checked_with_no_other_edit(clone: Path) -> None:
    questions = (clone / "copier.yml").read_text()
    assert questions.count("      value: csv") == 1
    (clone / "copier.yml").write_text(questions.replace("      value: csv", f"      value: csv{JSON_LINES}"))
    console = (clone / "partials" / "tracking" / "console.py.jinja").read_text()
    (clone / "partials" / "tracking" / "jsonl.py.jinja").write_text(console)
    printed = check(clone, *ONE[1:5], "logging=jsonl", "launcher=torchrun,slurm")
    assert "2 combinations: 2 passed, 0 failed" in printed
    assert "logging=jsonl: only its metrics.jsonl was read" in flowing(printed)


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
        wait_until(lambda: training(process.pid) or process.poll() is not None, 120, lambda: members(process.pid))
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
    printed = check(clone, *ONE[1:5], "launcher=torchrun,spawn", "logging=csv", *reports)
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in printed
    assert left_behind(clone) == []
    results = json.loads((clone / "out" / "check.json").read_text())
    assert len({outcome["weights"] for outcome in results["combinations"]} - {""}) == 1, "two programs, one number"
    suites = ElementTree.parse(clone / "out" / "junit.xml").getroot()
    cases = suites.findall(".//testcase")
    assert len(cases) >= 12
    assert not suites.findall(".//failure")
    assert "digits-torchrun-auto-none-false-csv" in (clone / "out" / "page.html").read_text()

    again = check(clone, *ONE)
    assert "1 combinations: 1 passed, 0 failed; 1 taken from the cache" in again.replace(
        "combination:", "combinations:"
    )
    fresh = check(clone, *ONE, "--no-cache")
    assert "0 taken from the cache" in fresh
    append_to_last_block(clone / CSV, '\n\nEDITED = "once"\n')
    edited = check(clone, *ONE[:5], "logging=csv,console")
    assert "2 combinations: 2 passed, 0 failed; 0 taken from the cache" in edited
    append_to_last_block(clone / CSV, 'EDITED_AGAIN = "twice"\n')
    edited_again = check(clone, *ONE[:5], "logging=csv,console")
    assert "render: 1 of 1 " in edited_again, "the other project does not read that partial"
    assert "2 combinations: 2 passed, 0 failed; 1 taken from the cache" in edited_again


def test_a_failure_is_shown_again_by_the_command_that_is_printed(clone: Path) -> None:
    package, model = clone / "template" / "{{package_name}}", clone / "partials/tasks/digits/model.py.jinja"
    append(clone / "template" / "train.py.jinja", "#black wants a space\n")
    extend(model, imports="import os\n")
    Rewrite("logits: Tensor = $X", "logits: int = $X").apply(model)
    Rewrite("set_generator_states($X)", "pass").apply(package / "runtime" / "checkpoint.py")
    printed = check(clone, *ONE[:2], *ONE[3:], "backend=auto,gloo", code=1)
    assert "2 combinations: 0 passed, 2 failed" in printed
    found = ("black would change it", "F401", "error: Incompatible", "the weights from step 4 on")
    assert [words for words in found if words not in flowing(printed)] == []
    (folder,) = left_behind(clone)
    assert (folder / "digits-torchrun-auto-none-false-csv" / "project" / "train.py").is_file()

    commands = re.findall(r"ddp-template check [^\n]*launcher=torchrun backend=gloo[^\n]*", printed)
    assert len({*commands}) == 1
    program, *arguments = shlex.split(commands[0])
    assert program == "ddp-template"
    again = check(clone, *arguments[1:], code=1)
    assert [words for words in found if words not in flowing(again)] == []
