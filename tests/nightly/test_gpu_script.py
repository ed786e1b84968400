"""scripts/gpu.sh itself, as far as a machine without a GPU can show it: its steps on a CPU, from what it packs."""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import venv
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import SETTINGS
from generator.answers.questions import TEMPLATE
from tests.support.processes import is_running, output_of
from tests.support.projects.apex import STAND_IN, TAG
from tools import gpu
from tools.gpu import STEPS, Step

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
NO_NETWORK |= {"PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0", "APEX_SOURCE": "/nowhere"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What --pack fetches, with a stand-in for apex."""
    folder = tmp_path_factory.mktemp("packed")
    download = [*PIP, "download", "--no-deps", "--dest", str(folder / "tried"), "wheel"]
    if subprocess.run(download, capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    source = shutil.copytree(STAND_IN.parent, folder / "source")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm apex", f"tag {TAG}"):
        subprocess.run(["git", "-C", str(source), *words.split()], check=True)
    command = [sys.executable, "-m", "tools.gpu", "--pack", str(folder / "all"), "--python", VERSION]
    assert f"packed: {folder / 'all'}, " in output_of(command, TEMPLATE, os.environ | {"APEX_SOURCE": str(source)})
    assert (folder / "all" / "apex.tar.gz").exists()
    return folder / "all"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a python3 that has torch, and what torch requires, and nothing else."""
    place = tmp_path_factory.mktemp("machine") / "python"
    venv.create(place, with_pip=True, symlinks=True)
    folder = place / "lib" / f"python{VERSION}" / "site-packages"
    names, packages = ["torch"], dict[str, metadata.Distribution]()
    while names:
        if (name := names.pop()) not in packages:
            packages[name] = metadata.distribution(name)
            required = [Requirement(line) for line in metadata.requires(name) or []]
            names += [each.name for each in required if not each.marker or each.marker.evaluate({"extra": ""})]
    for package in packages.values():
        for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(package.locate_file(name))))
    return place / "bin"


def test_what_is_packed_is_enough_for_every_step_that_a_cpu_can_do(packed: Path, machine: Path, tmp_path: Path) -> None:
    """Tests are collected alone: they run with the others. It needs no network, and no package of this Python."""
    left_out = shutil.ignore_patterns(".git", ".venv", ".cache", ".*_cache", "__pycache__", "*.egg-info", "gpu-results")
    copy = shutil.copytree(TEMPLATE, tmp_path / "repository", ignore=left_out)
    path = f"{machine}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin"
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
    environment = {**kept, **NO_NETWORK, "PATH": path, "PYTEST_ADDOPTS": "--collect-only", "OMP_NUM_THREADS": "1"}
    command = ["scripts/gpu.sh", f"--packed={packed}", "--device", "cpu", "--out", "out", "--minutes", "100"]
    printed = output_of(command, copy, environment, code=None, timeout=2400)
    assert f"python3 has torch {metadata.version('torch')}, built for " in printed
    out = copy / "out" / "cpu"
    assert (out / "results.json").exists(), printed
    results = json.loads((out / "results.json").read_text())
    assert [*results] == [step.name for step in STEPS]
    for step in STEPS:
        log = (out / f"{step.name}.log").read_text()
        assert results[step.name]["result"] == "ok", f"{printed}\n{step.name}:\n{log}"
        if "python -m pytest" in step.commands:
            assert re.search(r"\d+(/\d+)? tests? collected", log), log
    measured = json.loads((out / "gpu.json").read_text())["measurements"]
    assert {one["setting"] for one in measured} == {*SETTINGS}
    compared = [one for one in measured if one["setting"] not in ("memory", "saves")]
    assert all(len(one["samples_per_second"]) >= 3 and one["waits_of_a_step"] == 0 for one in compared), measured
    report = (out / "report.md").read_text()
    assert str(tmp_path) not in report
    told = json.loads(report.partition("```json\n")[2].partition("\n```")[0])
    assert told["steps"] == results
    assert told["figures"]["measurements"] == measured


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what starts steps whose limit is a few seconds, as on a CPU, until so many seconds have passed."""
    monkeypatch.setattr(gpu, "LIMITS", {"cpu": 4.0})
    monkeypatch.setattr(gpu, "LEAST", 1.0)

    def start(*steps: Step, seconds: float = 3600, fresh: bool = False) -> dict[str, tuple[str, str]]:
        found = gpu.run_all(steps, tmp_path, tmp_path / "packed", "cpu", time.time() + seconds, fresh=fresh)
        return {name: (each.result, each.reason) for name, each in found.items()}

    return start


WORKS = Step("works", "", 'echo once >>"$OUT/works"')
PLACES = "/data/secret/d.py:3 and file:///data/secret/e 10.1.2.3 GPU-12345678-90ab https://pytorch.org/docs"
FAILS = Step(
    "fails", "", f'echo "at $PWD/a.py of $(hostname) in $HOME/b/c.py for $(whoami), $OUT"; echo {PLACES}; exit 3'
)
HANGS = Step("hangs", "", 'sleep 1000 & echo $! >"$OUT/child"; echo half; setsid sleep 1000')


def test_a_step_that_hangs_or_fails_leaves_the_others(started: Any, tmp_path: Path) -> None:
    found = started(HANGS, FAILS, WORKS)
    assert found == {"hangs": ("failed", "no end after 4 s"), "fails": ("failed", "exit code 3"), "works": ("ok", "")}
    assert not is_running(int((tmp_path / "child").read_text()))
    report = (tmp_path / "report.md").read_text()
    assert "## The end of hangs.log\n\n```text\nhalf\n```\n" in report, "what it had written is kept"
    assert "\nat a.py of HOST in " in report
    assert "\n.../d.py:3 and .../e ADDRESS GPU https://pytorch.org/docs\n" in report
    assert not any(str(place) in report for place in (TEMPLATE, tmp_path, Path.home()))
    for name in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", report)


def test_another_start_takes_what_has_not_succeeded_and_what_failed_last(started: Any, tmp_path: Path) -> None:
    first, last, order = started(FAILS, WORKS), Step("later", "", "echo later >>$OUT/order"), "echo fails >>$OUT/order"
    assert first["works"] == ("ok", "")
    mended = Step("fails", "", order)
    assert started(mended, WORKS, last) == dict.fromkeys(("fails", "works", "later"), ("ok", ""))
    assert (tmp_path / "order").read_text().split() == ["later", "fails"]
    assert (tmp_path / "works").read_text() == "once\n"
    started(WORKS, fresh=True)
    assert (tmp_path / "works").read_text() == "once\nonce\n"


def test_no_step_goes_on_when_the_time_is_over(started: Any, tmp_path: Path) -> None:
    cut = started(HANGS, WORKS, seconds=3)
    assert cut["hangs"][0] == "skipped"
    assert re.fullmatch(r"no time left: no end after [123] s", cut["hangs"][1])
    assert cut["works"] == ("skipped", "no time left")
    assert not (tmp_path / "works").exists()
    assert "| works | skipped | no time left |" in (tmp_path / "report.md").read_text()


def test_a_machine_without_torch_is_told_in_one_line() -> None:
    run = partial(output_of, ["scripts/gpu.sh"], TEMPLATE, os.environ | {"PYTHON": "/bin/false"})
    [line] = run(code=2).splitlines()
    assert line.startswith("error: none of /bin/false has torch: install ")


@pytest.mark.parametrize(("device", "code"), [("cuda", 1), ("cpu", 0)])
def test_a_step_whose_tests_skip_has_failed_on_a_gpu(device: str, code: int, tmp_path: Path) -> None:
    commands = f"cd {TEMPLATE}\n{gpu.tests('full', gpu.DEVICE)}"
    environment = os.environ | gpu.DEVICES[device] | {"WORK": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert "1 skipped" in output_of(["bash", "-euo", "pipefail", "-c", commands], tmp_path, environment, code=code)
