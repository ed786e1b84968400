"""Fixtures that tests of every folder share, time limits, the order of the files, and skips that count as failures."""

import importlib
import json
import os
import re
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from plumbum import local

from benchmarks.runner import store
from generator.answers.combinations import Combination
from generator.check.train.forking import free_ports
from generator.render.cache import Cache
from generator.render.git import SETTINGS
from generator.render.project import render
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers, legal_combinations, speed_up_copier
from tests.support.cli import ddp_template
from tests.support.schedulers.slurm import Cluster
from tests.support.versions import history, made_up, old_project, ready, scratch, workers
from tools import slurm

__all__ = ["history", "made_up", "old_project", "ready", "scratch", "workers"]
Render = Callable[..., Path]
Package = Callable[..., Any]
Logged = Callable[[], list[str]]
Measured = Callable[[str, str, float], None]
PORTS = free_ports()  # that nobody listens at, and that no other process of the tests takes
TESTS = Path(__file__).parent
DURATIONS = TESTS / "durations.json"  # seconds by test, which pytest-split stores
# Seconds that only a hang takes, with shared fixtures, on any machine; pyproject.toml has those of tests/nightly.
TIMEOUTS = {"unit": 600, "core": 3600}
# Reasons to skip that hold on GitHub, too. APEX_SOURCE: apex cannot be cloned; a quota takes root.
MAY_SKIP = re.compile("no GPU|APEX_SOURCE|no quota of CPUs")

# A shell starts what is to run in the background with SIGINT ignored, nohup with SIGHUP: what tests start would inherit
# that, but no handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, lambda *_: None)
# git, also as Copier runs it and whatever the tests start, has no settings of the user and leaves nothing running. No
# Python leaves bytecode in the projects that tests share: others compare what lies there.
ENVIRONMENT = {**SETTINGS, "PYTHONDONTWRITEBYTECODE": "1"}
os.environ.update(ENVIRONMENT)
local.env.update(ENVIRONMENT)
sys.dont_write_bytecode = True


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return take_snapshot(tmp_path_factory.mktemp("template") / "snapshot")


@pytest.fixture(scope="session")
def legal(snapshot: Path) -> list[Combination]:
    """Every legal combination, in the order of copier.yml: the commands that tests run find it in the same cache."""
    with Workers() as workers:
        return legal_combinations(snapshot, workers, Cache())


@pytest.fixture(scope="session")
def all_names() -> list[str]:
    return ddp_template("matrix", "--format", "names").stdout.splitlines()


def without_git() -> AbstractContextManager[object]:
    """Inside, Copier does not find git, which it asks about each file that it writes."""
    found: AbstractContextManager[object] = local.env(PATH="")
    return found


@pytest.fixture(scope="session")
def project(snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Return the project of some answers, such as project(launcher="spawn"), rendered once. Do not write to it."""
    speed_up_copier()

    @cache
    def get(**answers: object) -> Path:
        place = tmp_path_factory.mktemp("projects") / "project"
        with without_git():
            render(place, answers, template=snapshot)
        return place

    return get


@pytest.fixture
def own_project(project: Render, tmp_path: Path) -> Render:
    """Return a copy of the project of some answers that the test may change."""

    def get(**answers: object) -> Path:
        return shutil.copytree(project(**answers), tmp_path / "project")

    return get


@pytest.fixture(scope="module")
def package(project: Render) -> Iterator[Callable[..., Any]]:
    """Return what imports modules of the project of some answers, such as "runtime.metrics", until the module ends."""

    def get(module: str, **answers: object) -> Any:
        name = "_".join(["ddp_project", *map(str, answers.values())])
        patch.syspath_prepend(str(project(**answers, package_name=name) if answers else project()))
        return importlib.import_module(f"{name}.{module}")

    with pytest.MonkeyPatch.context() as patch:
        yield get
    for name in [name for name in sys.modules if name.startswith("ddp_project")]:
        del sys.modules[name]


def of_package(module: str) -> Any:
    """Make a fixture: this module of the default project."""

    @pytest.fixture(scope="module")
    def get(package: Package) -> Any:
        return package(module)

    return get


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    caplog.set_level("INFO")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def free_port() -> int:
    return next(PORTS)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm cluster of two nodes, n1 and n2, on this machine."""
    reason = slurm.missing()
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the main process alone store durations: pytest-split fails in workers, which have no terminal."""
    config.option.store_durations &= not hasattr(config, "workerinput")
    if config.option.measured and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measurements(config.option.measured))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Set the time limits. Where files run beside each other, start the longest first, once pytest-split has chosen."""
    yield
    seconds: dict[Path, float] = defaultdict(float)
    durations = json.loads(DURATIONS.read_text())
    for item in items:
        if limit := TIMEOUTS.get(item.path.relative_to(TESTS).parts[0]):
            item.add_marker(pytest.mark.timeout(limit))
        seconds[item.path] += durations.get(item.nodeid, 1)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (-seconds[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With NO_SKIPS=1, as on GitHub, turn a skip into a failure, unless its reason is allowed."""
    report = yield
    if os.environ.get("NO_SKIPS") and report.skipped and isinstance(report.longrepr, tuple):  # an xfail has no tuple
        reason = report.longrepr[2]
        if not MAY_SKIP.search(reason):
            report.outcome, report.longrepr = "failed", f"{reason} (NO_SKIPS is set: see MAY_SKIP in tests/conftest.py)"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take where to write the numbers that tests measure."""
    parser.addoption("--measured", metavar="FILE", help="write to this file what tests measure of what docs/ promises")


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """Note the number of a case of a guarantee, where --measured says which file takes it."""

    def note(guarantee: str, case: str, number: float) -> None:
        value = float(number) if isinstance(number, float) else int(number)  # xdist cannot send those of NumPy
        record_property("measured", {"guarantee": guarantee, "case": case, "value": value})

    return note


class Measurements:
    """Writes what tests note with measured(), from the one process to which all others report."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.guarantees: set[str] = set()  # with a number of this session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, record in report.user_properties if report.when == "teardown" else ():
            if name == "measured" and isinstance(record, dict):
                # What earlier sessions have measured of a guarantee may not be measured any more.
                known = record["guarantee"] in self.guarantees
                self.guarantees.add(record["guarantee"])
                key = ("guarantee", "case") if known else ("guarantee",)
                store(Path(self.file), [record], key, None, f"scripts/test.sh --measured {self.file}")
