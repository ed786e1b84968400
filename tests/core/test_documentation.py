"""The documentation says what the template is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from generator.answers.questions import TEMPLATE
from tests.conftest import Render
from tests.support.processes import PATH, output_of
from tests.support.training import LAUNCHERS
from tools.docs.pages import documented_files

ELSEWHERE = {"__init__.py", "uplot.min.js"}  # modules of runtime/ that README does without
MADE_FILES = ["README.md", "README.zh.md", "docs/exact.md", "docs/example/train.py", "docs/faults.md"]
MADE_FILES += ["docs/matrix.md", "docs/speed.md", "docs/updates.md"]
OF_OTHER_PROGRAMS = {
    *("--group", "--index-url", "--upgrade", "--prefix", "--standalone", "--nproc-per-node", "--max-restarts"),
    *("--ntasks", "--nodes", "--signal", "--array", "--wrap", "--head", "--data", "--help", "--to", "--trials"),
    *(
        "--name",
        "--patch",
        "--type",
        "--cascade",
        "--follow",
        "--allow-run-as-root",
        "--backend-store-uri",
        "--port",
        "--serve",
    ),
}


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return documented_files()


@pytest.mark.parametrize("path", MADE_FILES)
def test_made_documentation_is_up_to_date(path: str, made: dict[Path, str]) -> None:
    assert sorted(map(str, made)) == MADE_FILES
    assert (TEMPLATE / path).read_text() == made[Path(path)], "run: ddp-template docs"


def test_the_tests_that_pages_name_exist() -> None:
    pages = [path.read_text() for path in (TEMPLATE / "docs").glob("*.md")]
    named = {path for page in pages for path in re.findall(r"\btests/(?:core|nightly|unit)/[\w/]+\.py\b", page)}
    assert [path for path in sorted(named) if not (TEMPLATE / path).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_readme_names_every_module_of_runtime(page: str) -> None:
    files = (TEMPLATE / "template" / "{{package_name}}" / "runtime").iterdir()
    modules = {found[0] for file in files if (found := re.search(r"[\w.]+?\.(py|js)\b", file.name))}
    assert {name for name in modules if not re.search(rf"\b{name}\b", (TEMPLATE / page).read_text())} == ELSEWHERE


def shown_sessions() -> list[str]:
    """The terminal sessions in docs/matrix.md that need neither an edit nor time."""
    page = (TEMPLATE / "docs" / "matrix.md").read_text()
    sessions = re.findall(r"^```console\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    return [session for session in sessions if not re.match(r"\$ ddp-template (check |diff\n)", session)]


@pytest.mark.parametrize("session", shown_sessions(), ids=lambda session: session.splitlines()[0][2:])
def test_a_command_prints_what_the_page_shows(session: str, tmp_path: Path) -> None:
    for shown in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, expected = shown.split("\n", 1)
        env = {**os.environ, "PATH": PATH}
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True)
        assert re.fullmatch(".*".join(map(re.escape, expected.split("..."))), done.stdout, re.DOTALL), done.stdout


@pytest.mark.parametrize("answers", [*({"launcher": each} for each in LAUNCHERS), {"parallel": "fsdp"}], ids=str)
def test_options_that_a_readme_names_exist(answers: dict[str, str], project: Render) -> None:
    place = project(amp="torch", **answers)
    shown = output_of([sys.executable, "train.py", "--help", "all"], place)
    readme = "".join((place / f"{page}.md").read_text() for page in ("README", "LAUNCHING", "TROUBLESHOOTING"))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", readme)) - OF_OTHER_PROGRAMS
    assert {"--resume", "--run-dir", "--keep"} <= named
    for option in named:
        assert option in shown, f"a page names {option}"


# A job on Ray has variables of its nodes, not those of the worker, by which W&B knows its sweep.
@pytest.mark.parametrize("launcher", [*filter(lambda launcher: launcher != "ray", LAUNCHERS)])
def test_the_sweep_of_wandb_that_a_page_shows_is_one_of_the_project(launcher: str, project: Render) -> None:
    place = project(launcher=launcher, logging="wandb")
    shown = re.findall(r"^```yaml\n(.*?)^```", (place / "LAUNCHING.md").read_text(), re.MULTILINE | re.DOTALL)
    [sweep] = [read for read in map(yaml.safe_load, shown) if "metric" in read]
    assert sweep["metric"]["name"] == "epoch/validation_accuracy"
    given = sweep["parameters"].items()
    options = [f"--{name}={values.get('min', values.get('values', [0])[0])}" for name, values in given]
    program = "from ddp_project.runtime.cli import parse; from ddp_project.config import Config; parse(Config)"
    subprocess.run([sys.executable, "-c", program, *options], cwd=place, check=True)
    words = (place / "sweep.py").read_text()
    assert f"LAUNCH = {json.dumps(sweep['command'][:-1])}" in words, "it starts a run as sweep.py does"
