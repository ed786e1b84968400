"""scripts/gpu.sh itself, as far as a machine without a GPU can show it: its steps on a CPU, from what it packs."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import SETTINGS
from generator.answers.questions import TEMPLATE
from tests.support.processes import output_of
from tests.support.projects.apex import STAND_IN, TAG
from tools import gpu
from tools.gpu import STEPS

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
NEEDS_GPU = {"docs": "no speed of a GPU was measured", "build-apex": "a CPU cannot do it"}
NEEDS_GPU |= {"apex-kernels": NEEDS_GPU["build-apex"]}
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
    environment = {**kept, **NO_NETWORK, "PATH": path, "PYTEST_ADDOPTS": "--collect-only"}
    command = ["scripts/gpu.sh", f"--packed={packed}", "--device", "cpu", "--out", "out"]
    printed = output_of(command, copy, environment, code=None, timeout=1200)
    out = copy / "out" / "cpu"
    results = json.loads((out / "results.json").read_text())
    for step in STEPS:
        ended = results[step.name]
        log = "" if ended["result"] == "skipped" else (out / f"{step.name}.log").read_text()
        if step.name in NEEDS_GPU:
            assert (ended["result"], ended["reason"]) == ("skipped", NEEDS_GPU[step.name])
        else:
            assert ended["result"] == "ok", f"{printed}\n{step.name}:\n{log}"
        if "pytest -m gpu" in step.commands and log:
            assert re.search(r"\d+(/\d+)? tests? collected", log), log
    assert "a step waits for the GPU so often: 0.0" in (out / "trace.log").read_text()
    measured = json.loads((out / "gpu.json").read_text())["measurements"]
    assert {one["setting"] for one in measured} == {*SETTINGS}


@pytest.mark.parametrize(("device", "code"), [("cuda", 1), ("cpu", 0)])
def test_a_step_whose_tests_skip_has_failed_on_a_gpu(device: str, code: int, tmp_path: Path) -> None:
    commands = f"cd {TEMPLATE}\n{gpu.tests('full', gpu.DEVICE)}"
    environment = os.environ | gpu.DEVICES[device] | {"WORK": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert "1 skipped" in output_of(["bash", "-euo", "pipefail", "-c", commands], tmp_path, environment, code=code)
