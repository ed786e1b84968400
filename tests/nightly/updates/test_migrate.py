"""`ddp-template migrate` moves an updated project of version 1 to version 2, and loses no edit of its owner."""

import sys
from pathlib import Path

import pytest

from generator.render.git import run
from generator.render.project import read_files
from generator.update.history import NEXT, clone_history, read_releases
from generator.update.migrate import MOVED, is_to_be_moved
from generator.update.replay import commit_all, copy_project, put_under_git, update
from tests.support.cli import ddp_template
from tests.support.processes import output_of
from tests.support.ranks import output_of_fork
from tests.support.versions import append, replace

OWN = '''"""Metrics of my own."""

from pkg.runtime import meter
from pkg.runtime.command_line import Amount
from pkg.runtime.heartbeat import {name}
from pkg.runtime.launcher import World

LIMIT: Amount = 1.0


def place(world: "World") -> "World":
    return world


def totals() -> object:
    return meter.Meter, {name}
'''


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of version 1.1.0 with edits, after `copier update`."""
    place = tmp_path_factory.mktemp("moved")
    history = clone_history(place / "history", read_releases())
    project = place / "project"
    copy_project(history.folder, "v1.1.0", {"package_name": "pkg", "task": "tabular"}, project)
    put_under_git(project)
    runtime = project / "pkg" / "runtime"
    replace(runtime / "reproducibility.py", "    torch.manual_seed(seed)\n", "    torch.manual_seed(seed + 1)\n")
    replace(runtime / "heartbeat.py", "BEAT = ", "BEAT = 2 * ")
    replace(runtime / "heartbeat.py", "class SignsOfLife", "class MySignsOfLife")
    options = "    tolerance: Amount = 0.5\n    rounds: Count = 3\n"
    replace(project / "pkg" / "config.py", "    static_graph: ", f"{options}    static_graph: ")
    (project / "pkg" / "own.py").write_text(OWN.format(name="SILENT"), encoding="utf-8-sig")  # with a BOM
    commit_all(project)
    update(project, NEXT)
    return project


@pytest.fixture
def project(updated: Path, tmp_path: Path) -> Path:
    run(updated, "add", "--all")
    output_of(["cp", "-r", updated, tmp_path / "project"], tmp_path)
    return tmp_path / "project"


def help_of(project: Path, code: int) -> str:
    return output_of([sys.executable, "train.py", "--help"], project, code=code)


def test_a_project_moves_with_its_edits(project: Path, pytestconfig: pytest.Config) -> None:
    assert "`ddp-template migrate .` moves them (UPDATING.md)" in help_of(project, 2)
    done = ddp_template("migrate", project, code=1)
    said = done.output.splitlines()
    assert "your edits of pkg/runtime/reproducibility.py are in pkg/runtime/seeding.py now" in said
    [left] = [line for line in said if line.startswith("left to do: ")]
    assert left.startswith("left to do: your edits of pkg/runtime/heartbeat.py do not fit pkg/runtime/watchdog.py: ")
    assert "+class MySignsOfLife" in (project / "edits-of-version-1" / "heartbeat.py.diff").read_text()
    assert "seed + 1" in (project / "pkg" / "runtime" / "seeding.py").read_text()
    own = (project / "pkg" / "own.py").read_text()
    assert "from pkg.runtime import NonNegativeFloat, metrics\nfrom pkg.runtime.watchdog import SILENT\n" in own
    assert 'def place(world: "DistEnv") -> "DistEnv":' in own
    assert "return metrics.MetricAccumulator, SILENT" in own
    config = (project / "pkg" / "config.py").read_text()
    assert "    tolerance: NonNegativeFloat = 0.5\n    rounds: PositiveInt = 3\n" in config
    assert not is_to_be_moved(project)
    assert not {path.split("/")[-1] for path in read_files(project)} & {path.split("/")[-1] for path in MOVED}
    for module in ("pkg.own", "pkg.task", "pkg.model", "pkg.data", "pkg.options"):
        output_of_fork(f"import {module}", project=project)
    cache = pytestconfig.cache.mkdir("mypy_of_rendered_code")
    for tool in (["ruff", "check"], ["black", "--check"], ["mypy", "--cache-dir", str(cache)]):
        output_of([sys.executable, "-m", *tool, "pkg/task.py", "pkg/model.py", "pkg/options.py"], project)
    assert "usage: " in help_of(project, 0)
    before = read_files(project)
    assert "nothing to move" in ddp_template("migrate", project).output
    assert read_files(project) == before
    commit_all(project)
    update(project, NEXT)
    assert read_files(project) == before, "another update brings nothing back"


def test_what_is_gone_is_left_to_do(project: Path) -> None:
    (project / "pkg" / "own.py").write_text(OWN.format(name="Whereabouts"))
    (project / "pkg" / "old.py").write_bytes(b"# coding: latin-1\n# \xe9\n")
    append(project / "train.py", "\n\ndef rank() -> int:\n    return world.rank\n")
    output = ddp_template("migrate", project, code=1).output
    assert "left to do: pkg/own.py:4: watchdog has no Whereabouts" in output
    assert "left to do: pkg/old.py is no Python in UTF-8, and stays as it is: " in output
    line = len((project / "train.py").read_text().splitlines())
    assert f"left to do: train.py:{line}: world is env in version 2\n" in output


def test_it_is_refused_in_one_line_and_nothing_changes(project: Path, tmp_path: Path) -> None:
    append(project / "train.py", "<<<<<<< before updating\n")
    before = read_files(project)
    assert "error: train.py has a conflict: resolve it first" in ddp_template("migrate", project, code=2).output
    assert read_files(project) == before
    replace(project / "train.py", "<<<<<<< before updating\n", "")
    heartbeat = project / "pkg" / "runtime" / "heartbeat.py"
    text = heartbeat.read_bytes()
    heartbeat.write_bytes(b"# coding: latin-1\n# \xe9\n" + text)
    assert "heartbeat.py is not text in UTF-8" in ddp_template("migrate", project, code=2).output
    heartbeat.write_bytes(text)
    append(project / "pkg" / "runtime" / "storage.py", "def (\n")
    assert "storage.py is no Python: " in ddp_template("migrate", project, code=2).output
    replace(project / "pkg" / "runtime" / "storage.py", "def (\n", "")
    for other in (tmp_path, tmp_path / "nowhere"):
        output = ddp_template("migrate", other, code=2).output
        assert "is no project of version 2: copier update comes first" in output
    output_of(["rm", "-rf", ".git"], project)
    assert "error: " in ddp_template("migrate", project, code=2).output
    assert (project / "pkg" / "runtime" / "heartbeat.py").exists()
