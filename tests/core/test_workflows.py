"""Workflows on GitHub are valid, and what they decide is right; the generator's imports are those of pyproject.toml."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.answers.questions import TEMPLATE
from generator.cli.matrix import jobs_as_json
from generator.render.git import run as git
from tests.conftest import Render
from tests.support.processes import output_of, write_program

FOLDER = TEMPLATE / ".github" / "workflows"
MAY = {  # the others only read
    "release.yml": {"contents": "write"},
    "site.yml": {"contents": "read", "pages": "write", "id-token": "write"},
}
NAMES = ["ci.yml", "nightly.yml", *MAY]
OURS = "actions/(checkout|setup-python|cache/restore|cache/save|upload-(pages-)?artifact|deploy-pages)@v[0-9]+"
BIN = Path(sys.executable).parent
RESULTS = ("success", "failure", "cancelled", "skipped")
SOME, NONE = jobs_as_json([{"shard": "1/1", "combinations": 1}]), jobs_as_json([])
SHARDS = [
    ("ci.yml", SOME, "main"),  # a pull request compares with a commit of its base branch
    ("ci.yml", SOME, ""),  # a push takes all combinations
    ("nightly.yml", SOME, ""),
    ("ci.yml", "broken", "main"),
    ("ci.yml", "broken", ""),
    ("ci.yml", SOME, "no-such-branch"),
]


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def script_of(name: str, job: str) -> str:
    (script,) = [step["run"] for step in read(name)["jobs"][job]["steps"] if "run" in step]
    return str(script)


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.sh").write_text(script)
    own = {**os.environ, **environment}
    return subprocess.run(["bash", "-e", "script.sh"], cwd=folder, env=own, capture_output=True, text=True)


def test_actionlint_finds_nothing_in_any_workflow_and_shellcheck_in_no_script(project: Render, tmp_path: Path) -> None:
    """actionlint hands the scripts of workflows to shellcheck, but not those of actions."""
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(NAMES)
    rendered = [project(launcher=launcher) for launcher in ("torchrun", "kubernetes")]
    files = [FOLDER / name for name in NAMES]
    files += [file for place in rendered for file in (place / ".github" / "workflows").iterdir()]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    output_of([BIN / "actionlint", "-no-color", *files], tmp_path, environment)
    action = yaml.safe_load((TEMPLATE / ".github" / "actions" / "install" / "action.yml").read_text())
    for step in action["runs"]["steps"]:
        (tmp_path / "script.sh").write_text(step.get("run", ""))
        output_of([BIN / "shellcheck", "--shell=bash", "--norc", "script.sh"], tmp_path)


def test_imports_point_one_way() -> None:
    output_of([BIN / "lint-imports", "--no-cache"], TEMPLATE)


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_may_do_little_and_uses_official_actions_alone(name: str) -> None:
    workflow = read(name)
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert workflow["permissions"] == MAY.get(name, {"contents": "read"})
    assert set(workflow["concurrency"]) == {"group", "cancel-in-progress"}
    # GitHub puts expressions into a script as they are: a branch with a strange name would be run.
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(f"{OURS}|./.github/actions/install", action)] == []
    assert all(job["timeout-minutes"] <= 120 and "permissions" not in job for job in workflow["jobs"].values())


def passes(name: str, results: dict[str, str], outputs: dict[str, str], folder: Path) -> bool:
    """Whether the job `pass` is content with what the other jobs came to."""
    (step,) = read(name)["jobs"]["pass"]["steps"]
    values = {f"needs.{job}.result": result for job, result in results.items()}
    values |= {f"needs.shards.outputs.{key}": value for key, value in outputs.items()}
    environment = {key: values[value.removeprefix("${{ ").removesuffix(" }}")] for key, value in step["env"].items()}
    done = run(step["run"], folder, **environment)
    for job, result in results.items():
        assert f"{job}: {result}" in done.stdout
    return done.returncode == 0


def test_a_pull_request_passes_where_nothing_was_to_check(tmp_path: Path) -> None:
    """A job that did not succeed has no outputs; should it have some, they count for nothing."""
    passed = []
    for shards, check, matrix in itertools.product(RESULTS, RESULTS, (SOME, NONE, "")):
        results = {"tests": "success", "macos": "success", "shards": shards, "check": check}
        if (shards == "success" or matrix) and passes("ci.yml", results, {"matrix": matrix}, tmp_path):
            passed.append((shards, check, matrix))
    assert passed == [("success", "success", SOME), ("success", "success", ""), ("success", "skipped", NONE)]
    assert read("ci.yml")["jobs"]["check"]["if"] == f"needs.shards.outputs.matrix != '{NONE}'"


@pytest.mark.parametrize("name", ["ci.yml", "nightly.yml"])
def test_all_jobs_must_succeed_and_none_may_skip(name: str, tmp_path: Path) -> None:
    """The last job depends on all others and always runs; a night runs every slice."""
    jobs = read(name)["jobs"]
    *others, last = jobs
    assert (last, jobs[last]["needs"], jobs[last]["if"]) == ("pass", others, "always()")
    assert not [other for other in others if "continue-on-error" in jobs[other]]
    good, outputs = dict.fromkeys(others, "success"), {"matrix": SOME}
    assert passes(name, good, outputs, tmp_path)
    for job, result in itertools.product(others, RESULTS[1:]):
        assert not passes(name, good | {job: result}, outputs, tmp_path), f"{job}: {result}"
    *_, step = jobs["tests"]["steps"]
    assert step["env"]["NO_SKIPS"] == 1
    assert "--preserve-env=PATH,NO_SKIPS " in step["run"]
    if name == "nightly.yml":
        slices = jobs["tests"]["strategy"]["matrix"]["slice"]
        assert slices == [f"{number}/{len(slices)}" for number in range(1, len(slices) + 1)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose command records how it is called, and prints a matrix; MATRIX=broken makes it fail."""
    clone = tmp_path / "clone"
    does = 'printf "%s\\n" "$@" >>called\n[ "$MATRIX" != broken ] || exit 2\n[ "$1" = check ] || echo "$MATRIX"'
    write_program(clone / ".venv" / "bin" / "ddp-template", does)
    git(clone, "init", "--quiet")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "base")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")
    return clone


@pytest.mark.parametrize(("name", "matrix", "base"), SHARDS)
def test_the_shards_are_handed_on_or_their_job_fails(name: str, matrix: str, base: str, clone: Path) -> None:
    output = clone / "output"
    done = run(script_of(name, "shards"), clone, GITHUB_OUTPUT=str(output), MATRIX=matrix, BASE=base)
    if matrix == "broken" or base == "no-such-branch":
        assert (done.returncode != 0, output.exists()) == (True, False)
        return
    assert done.returncode == 0, done.stderr
    handed_on = dict(line.split("=", 1) for line in output.read_text().splitlines())
    since = git(clone, "rev-parse", "origin/main") if base else ""
    assert handed_on == {"matrix": SOME} | ({"since": since} if name == "ci.yml" else {})
    compared = ["--since", since] if base else []
    assert (clone / "called").read_text().splitlines() == ["matrix", *compared, "--shards", "auto", "--format", "json"]


@pytest.mark.parametrize(("name", "since"), [("ci.yml", "0a437a3"), ("ci.yml", ""), ("nightly.yml", "")])
def test_a_shard_is_checked_and_reports_beside_its_projects(name: str, since: str, clone: Path) -> None:
    """The reports are uploaded also if a check fails, and other shards go on."""
    job, place = read(name)["jobs"]["check"], clone / "check"
    done = run(script_of(name, "check"), clone, TMPDIR=str(place), SHARD="2/4", SINCE=since, MATRIX="")
    assert done.returncode == 0, done.stderr
    reports = ["--junit", f"{place}/junit.xml", "--json", f"{place}/report.json", "--html", f"{place}/report.html"]
    options = ["--no-cache"] if name == "nightly.yml" else ["--since", since] if since else []
    assert (clone / "called").read_text().splitlines() == ["check", "--shard", "2/4", *options, *reports]
    given = {"TMPDIR": str(clone / "other"), "SHARD": "2/4", "SINCE": since, "MATRIX": "broken"}
    assert run(script_of(name, "check"), clone, **given).returncode == 2
    [check] = [step for step in job["steps"] if "ddp-template check" in step.get("run", "")]
    [upload] = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert (upload["if"], upload["with"]["path"]) == ("${{ !cancelled() }}", check["env"]["TMPDIR"])
    assert job["strategy"]["fail-fast"] is False
