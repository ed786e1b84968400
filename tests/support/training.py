"""Runs the train.py of a rendered project as its README says, on this machine; reads and compares what it leaves."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import psutil
import pytest
import torch
import yaml

from generator.answers.questions import TEMPLATE, read_questions
from generator.check.train.shards import read_whole
from tests.support.processes import PATH, Env, output_of, started, wait_for_line
from tests.support.schedulers import mpi

ON_CPU = ("--device", "cpu", "--backend", "gloo")
FOR_EVER = ("--epochs", "1000", "--eval-every", "1000")
ON_GPU = ("--device", "cuda", "--backend", "nccl")
HAS_GPU = torch.cuda.device_count() > 0  # unlike is_available(), this lets forked processes do without the GPU
ON_DEVICE = ("--device", "cuda", "--backend", "gloo") if HAS_GPU else ON_CPU  # ranks may share it
EXACTLY = (*ON_DEVICE, "--deterministic")
LAUNCHERS = [choice.value for each in read_questions() if each.key == "launcher" for choice in each.choices]
Started = AbstractContextManager[subprocess.Popen[bytes]]
NEEDS_GPU = pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")


def node_launcher(launcher: str) -> str:
    computed = yaml.safe_load((TEMPLATE / "copier.yml").read_text())["node_launcher"]["default"]
    return str(jinja2.Template(computed).render(launcher=launcher))


def launch_command(launcher: str, processes: int, folder: Path) -> list[str]:
    """Return the command line up to train.py and its number of processes; "mpirun" is Open MPI's, "mpich" MPICH's."""
    agent = ["--standalone", f"--nproc-per-node={processes}", "train.py"]
    return {
        "alone": [sys.executable, "train.py"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", *agent],
        "launch": [sys.executable, "-m", "torch.distributed.launch", *agent],
        "spawn": [sys.executable, "train.py", "--nproc", str(processes)],
        "mpirun": [*mpi.openmpi_command(processes, folder), sys.executable, "train.py"],
        "mpich": [mpi.mpich_mpirun() or "mpirun.mpich", "-np", str(processes), sys.executable, "train.py"],
    }[launcher]


def train(project: Path, run_dir: Path, *options: str, launcher: str = "torchrun", env: Env = None, **how: Any) -> str:
    command = [*launch_command(launcher, 2, run_dir.parent), *ON_CPU, "--run-dir", str(run_dir), *options]
    return output_of(command, project, {**os.environ, **(env or {})}, **how)


def launched(project: Path, run_dir: Path, *options: str, **variables: str) -> Started:
    command = ["./launch.sh", *ON_CPU, "--run-dir", str(run_dir), *options]
    env = {**os.environ, "PATH": PATH, "NPROC_PER_NODE": "2", **variables}
    return started(command, project, run_dir.parent / "output.log", env)


@contextmanager
def running(project: Path, run_dir: Path, launcher: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a training that would take long, and yield its launcher once it has trained some steps."""
    command = [*launch_command(launcher, 2, run_dir.parent), *ON_CPU, "--run-dir", str(run_dir), *FOR_EVER, *options]
    with started(command, project, run_dir.parent / "output.log") as process:
        wait_for_steps(run_dir)
        yield process


def wait_for_steps(run_dir: Path) -> None:
    wait_for_line(run_dir / "train.log", "step 30 ")


def ranks_of(run_dir: Path) -> list[int]:
    """The process numbers of the ranks: the leaves of those that name the run directory, or that such a one spawned."""
    parents, commands = {}, {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            commands[process.pid] = " ".join(process.cmdline())
            parents[process.pid] = process.ppid()
    named = {pid for pid, command in commands.items() if str(run_dir) in command}
    spawned = {pid for pid, command in commands.items() if "multiprocessing.spawn" in command}
    for _ in ("ranks", "their loader workers"):
        named |= {pid for pid in spawned if parents.get(pid) in named}
    return sorted(named - {parents.get(pid) for pid in named})


def checkpoint(run_dir: Path, name: str = "last.pt") -> dict[str, Any]:
    read: dict[str, Any] = torch.load(run_dir / "checkpoints" / name, map_location="cpu", weights_only=True)
    return read


def whole_checkpoint(run_dir: Path, name: str = "last.pt") -> dict[str, Any]:
    """Read a checkpoint, with whole tensors if its model is sharded."""
    return read_whole(run_dir / "checkpoints" / name)


def assert_same_weights(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differences(one["model"], other["model"]) == []


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Name the places where two nested values are not the same, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return [] if same else [place]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for i, (left, right) in pairs for found in differences(left, right, f"{place}/{i}")]
    return [] if one == other or (one != one and other != other) else [place]  # NaN is no difference to NaN


def module_of(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rendered_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
