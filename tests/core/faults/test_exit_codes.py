"""The exit codes of a project are those that its README lists; the tests beside this one end runs with each of them."""

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import torch

from generator.answers.combinations import Combination, covering
from tests.conftest import Render
from tests.support.chaos import run_in_session
from tests.support.hardware import see_gpus
from tests.support.processes import hang_timeout, output_of, wait_until
from tests.support.ranks import Rank, error_in, join, newest_step, run_train, start_ranks, wrap
from tests.support.training import ON_CPU, module_of


def test_the_readme_of_every_project_lists_the_exit_codes(legal: Sequence[Combination], project: Render) -> None:
    for combination in covering(legal, 1):
        folder = project(**dict(combination.answers))
        (exits,) = folder.glob("*/runtime/exits.py")
        codes = [int(code) for code in module_of(exits).ExitCode]
        told = re.findall(r"^\| (\d+) \| \w", (folder / "README.md").read_text(), re.MULTILINE)
        assert [*map(int, told)] == codes
        assert codes == [0, 1, 2, 65, 69, 75]


ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.12 GiB is free. "
    "Including non-PyTorch memory, this process has 77.98 GiB memory in use."
)
DRIVER = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more."
# What CUDA and its libraries raise when a GPU is full, or memory for copies to it, and what of it the user should see.
ON_GPU: dict[str, tuple[Exception, str]] = {
    "a tensor": (torch.OutOfMemoryError(ALLOCATOR), "of which 1.12 GiB is free)"),
    "pinned memory": (torch.AcceleratorError(DRIVER), "(CUDA error: out of memory)"),
    "pinned memory, in the thread of a loader": (
        torch.AcceleratorError(
            f"Caught AcceleratorError in pin memory thread.\nTraceback:\nAcceleratorError: {DRIVER}"
        ),
        "(AcceleratorError: CUDA error: out of memory)",
    ),
    "cuBLAS": (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "(CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`)",
    ),
    "cuDNN": (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "(cuDNN error: CUDNN_STATUS_ALLOC_FAILED)"),
    "cuDNN 9": (
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        "(cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)",
    ),
}
# The same of a machine without free memory: as PyTorch, Python and the system raise it.
ON_MACHINE: dict[str, tuple[Exception, str]] = {
    "a tensor on the CPU": (
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 262144 bytes."),
        "(RuntimeError [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 262144 bytes.)",
    ),
    "an object": (MemoryError(), "(MemoryError)"),
    "a thread": (RuntimeError("can't start new thread"), "(RuntimeError can't start new thread)"),
    "a process": (OSError(12, "Cannot allocate memory"), "(OSError [Errno 12] Cannot allocate memory)"),
}
FULL = ON_GPU | ON_MACHINE


def train_without_memory() -> None:
    """What rank 1 does that has no room for the third batch; rank 0 has."""
    batches = itertools.count(1)

    def make(compute: Any) -> Any:
        def compute_or_fail(model: Any, batch: Any) -> Any:
            if torch.distributed.get_rank() == 1 and next(batches) == 3:
                raise FULL[os.environ["FULL"]][0]
            return compute(model, batch)

        return compute_or_fail

    wrap("task.compute", make)
    run_train()


def assert_one_line_says_what_to_lower(rank: Rank, shown: str) -> None:
    """Rank 1 shows one line of error, with what it was told."""
    error = error_in([rank.ends_with(2, timeout=60)])
    assert error.startswith("error: rank 1 is out of memory")
    assert "--accum-steps" in error
    assert error.endswith(shown)


@pytest.mark.parametrize("what", FULL)
def test_a_rank_that_is_out_of_memory_says_what_to_lower(what: str, project: Render, tmp_path: Path) -> None:
    one, other = start_ranks(project(), tmp_path / "run", entry=train_without_memory, env={"FULL": what})
    assert_one_line_says_what_to_lower(other, FULL[what][1])
    assert "error: rank 1 has ended: OutOfMemory " in error_in([one.ends_with(69, timeout=60)])


# By which function a rank that joins the others learns that its GPU is full, and what the user should see of the error.
JOINING: dict[str, tuple[ModuleType, Exception, str]] = {
    "set_device": (torch.cuda, torch.AcceleratorError(DRIVER), "(CUDA error: out of memory)"),
    "init_process_group": (
        torch.distributed,
        torch.distributed.DistBackendError("unhandled cuda error\nLast error:\nCuda failure 'out of memory'"),
        "(Cuda failure 'out of memory')",
    ),
}


def join_with_a_full_gpu() -> None:
    """What rank 1 does whose GPU has no room for it, or for NCCL; rank 0 waits for it."""
    see_gpus("A", "B")
    if os.environ["RANK"] == "1":
        module, error, _ = JOINING[os.environ["FULL"]]
        setattr(module, os.environ["FULL"], Mock(side_effect=error))
    join(None, backend="gloo")


@pytest.mark.parametrize("name", JOINING)
def test_a_gpu_that_is_full_before_it_starts_is_named_in_one_line(name: str, project: Render, tmp_path: Path) -> None:
    one, other = start_ranks(project(), tmp_path / "run", entry=join_with_a_full_gpu, env={"FULL": name})
    assert_one_line_says_what_to_lower(other, JOINING[name][2])
    one.kill()


def test_a_killed_loader_worker_ends_all_ranks_in_one_line(project: Render, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ("--workers", "1", "--save-every", "1", "--epochs", "1000")
    one, other = start_ranks(project(), run_dir, *options, entry=run_in_session)
    wait_until(lambda: newest_step(run_dir) >= 3 or not one.process.is_alive(), told=one.output.read_text)
    psutil.Process(other.process.pid).children()[0].kill()
    assert "error: rank 1: a process that loads its data has gone" in error_in([other.ends_with(69, timeout=20)])
    assert "error: rank 1 has ended: LoaderLost " in one.ends_with(69, timeout=20)


def test_a_task_of_slurm_that_refuses_keeps_its_code(project: Render) -> None:
    """Though srun sends TERM, as soon as another one has left, to those that wait for it to speak."""
    place = {"STEP_TASKS_PER_NODE": "2", "PROCID": "1", "LOCALID": "1", "NODEID": "0"}
    env = os.environ | {f"SLURM_{name}": value for name, value in place.items()}
    command = [sys.executable, "train.py", "--epochs", "0"]
    rank = subprocess.Popen(command, cwd=project(launcher="slurm"), env=env, stderr=subprocess.DEVNULL)

    def ignores_term() -> bool:
        assert rank.poll() is None
        status = Path(f"/proc/{rank.pid}/status").read_text()
        return bool(int(status.partition("SigIgn:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)

    wait_until(ignores_term, 30, pause=0)
    rank.terminate()
    assert rank.wait(hang_timeout(10)) == 2


# The last thing that Python does, after its handlers of signals are gone, is to drop what sys holds.
SIGNALLED_LATE = """
import os, runpy, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 15)

sys.late = Late()
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


def test_a_signal_while_a_rank_ends_does_not_change_its_code(project: Render, tmp_path: Path) -> None:
    options = [*ON_CPU, "--max-steps", "1", "--run-dir", str(tmp_path / "run")]
    output_of([sys.executable, "-c", SIGNALLED_LATE, *options], project(), os.environ)


STORE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
input(print(store.port, flush=True))
"""
# Its thread hangs in the store when main() has ended, and is answered when Python has said that it ends.
ANSWERED_LATE = """
import os, runpy, sys, time
from ddp_project.runtime.heartbeat import SignsOfLife

def leave(signs, end, leave=SignsOfLife.leave):
    os.kill(int(os.environ["STORE"]), 19)
    time.sleep(1)
    leave(signs, end)

class Late:
    def __del__(self, kill=os.kill, pid=int(os.environ["STORE"]), sleep=time.sleep):
        kill(pid, 18)
        sleep(1)

SignsOfLife.leave = leave
sys.late = Late()
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


def test_a_store_that_answers_while_a_rank_ends_does_not_change_its_code(project: Render) -> None:
    """As one that was frozen may: an answer to a thread aborts Python while it ends, before 3.14."""
    store = subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert store.stdout
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.stdout.readline().decode().strip()}
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        env = os.environ | place | ranks | {"TORCHELASTIC_USE_AGENT_STORE": "True", "STORE": str(store.pid)}
        command = [sys.executable, "-c", ANSWERED_LATE, *ON_CPU, "--resume", "nowhere"]
        rank = subprocess.run(command, cwd=project(), env=env, stderr=subprocess.PIPE, text=True)
        assert rank.returncode == 2, rank.stderr
    finally:
        store.kill()
