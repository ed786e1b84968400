"""The exit codes of a project are those that its README lists; the tests beside this one end runs with each of them."""

import gc
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from generator.answers.combinations import Combination, covering
from tests.conftest import Package, Render
from tests.support.hardware import see_gpus
from tests.support.processes import hang_timeout, output_of, wait_until
from tests.support.ranks import error_in, join, on_compute, run_train, start_ranks, train_on_ranks
from tests.support.training import ON_CPU, module_of

ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.12 GiB is free. "
    "Including non-PyTorch memory, this process has 77.98 GiB memory in use."
)
DRIVER = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com for more."
PINNED = f"Caught AcceleratorError in pin memory thread.\nTraceback:\nAcceleratorError: {DRIVER}"
CPU = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 262144 bytes."
NCCL = "unhandled cuda error\nLast error:\nCuda failure 'out of memory'"
# What is raised when a GPU, its pinned memory or the machine is full, and what of it the user should see.
FULL: list[tuple[Exception, str]] = [
    (torch.OutOfMemoryError(ALLOCATOR), "of which 1.12 GiB is free)"),
    (torch.AcceleratorError(DRIVER), "(CUDA error: out of memory)"),
    (torch.AcceleratorError(PINNED), "(AcceleratorError: CUDA error: out of memory)"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), "(CUDA error: CUBLAS_STATUS_ALLOC_FAILED when)"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "(cuDNN error: CUDNN_STATUS_ALLOC_FAILED)"),
    (RuntimeError("STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "_DEVICE_ALLOCATION_FAILED)"),
    (torch.distributed.DistBackendError(NCCL), "(Cuda failure 'out of memory')"),
    (RuntimeError(CPU), f"(RuntimeError {CPU})"),
    (MemoryError(), "(MemoryError)"),
    (RuntimeError("can't start new thread"), "(RuntimeError can't start new thread)"),
    (OSError(12, "Cannot allocate memory"), "(OSError [Errno 12] Cannot allocate memory)"),
]
# Where a rank learns that its GPU is full, and how it is told.
PLACES: dict[str, tuple[Any, Exception]] = {
    "set_device_index": (torch.accelerator, torch.AcceleratorError(DRIVER)),
    "init_process_group": (torch.distributed, torch.distributed.DistBackendError(NCCL)),
}


def test_the_readme_of_every_project_lists_the_exit_codes(legal: Sequence[Combination], project: Render) -> None:
    for combination in covering(legal, 1):
        folder = project(**dict(combination.answers))
        (exits,) = folder.glob("*/runtime/exits.py")
        codes = [int(code) for code in module_of(exits).ExitCode]
        assert [*map(int, re.findall(r"^\| (\d+) \| \w", (folder / "README.md").read_text(), re.MULTILINE))] == [
            *codes,
            130,
        ]
        assert codes == [0, 1, 2, 65, 69, 75]


@pytest.mark.parametrize(("error", "shown"), FULL, ids=repr)
def test_a_rank_that_is_out_of_memory_says_what_to_lower(error: Exception, shown: str, package: Package) -> None:
    exits = package("runtime.exits")
    with pytest.raises(exits.OutOfMemory, match=r"^rank 1 is out of memory.*--accum-steps") as raised:
        exits.raise_for_user(error, 1)
    assert str(raised.value).endswith(shown)


def meet_a_full_gpu() -> None:
    """What rank 1 does whose GPU has no room for it, for NCCL or for the third batch; rank 0 waits for it."""
    place, batches = os.environ["PLACE"], itertools.count(1)
    if place in PLACES:
        see_gpus("A", "B")
        module, error = PLACES[place]
        if os.environ["RANK"] == "1":
            setattr(module, place, Mock(side_effect=error))
        join(None, backend="gloo")

    def fail(model: Any, batch: Any) -> None:
        if torch.distributed.get_rank() == 1 and next(batches) == 3:
            raise torch.OutOfMemoryError(ALLOCATOR)

    on_compute(fail)
    run_train()


@pytest.mark.parametrize("place", [*PLACES, "compute"])
def test_a_full_gpu_ends_all_ranks_in_one_line(place: str, project: Render, tmp_path: Path) -> None:
    one, other = start_ranks(project(), tmp_path / "run", entry=meet_a_full_gpu, env={"PLACE": place})
    assert error_in([other.ends_with(2, timeout=60)]).startswith("error: rank 1 is out of memory: raise --accum-steps")
    if place == "compute":
        assert "error: rank 1 has ended: OutOfMemory " in error_in([one.ends_with(69, timeout=60)])
    one.kill()


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


# The last thing that Python does, after its handlers of signals are gone, is to drop what sys holds. Then there comes a
# signal, or the answer of a store in which a thread hangs when main() has ended.
LATE = """
import os, runpy, sys, time
from ddp_project.runtime.watchdog import Watchdog

store = int(os.environ.get("STORE", 0))

class Late:
    def __del__(self, kill=os.kill, pid=store or os.getpid(), number=18 if store else 15, sleep=time.sleep):
        kill(pid, number)
        sleep(bool(store))

def leave(signs, end, leave=Watchdog.leave):
    if store:
        os.kill(store, 19)
        time.sleep(1)
    leave(signs, end)

Watchdog.leave = leave
sys.late = Late()
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""
STORE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
input(print(store.port, flush=True))
"""


def count_models_at_the_end() -> None:
    """Be a rank that prints how many models DistributedDataParallel wraps when the process group is destroyed."""

    def destroy(destroy: Any = dist.destroy_process_group) -> None:
        print("wrapped models:", sum(type(each) is DistributedDataParallel for each in gc.get_objects()))
        destroy()

    vars(dist)["destroy_process_group"] = destroy
    run_train()


def test_no_model_holds_the_process_group_beyond_its_end(project: Render, tmp_path: Path) -> None:
    """It could abort the process, with exit code 134, while Python ends."""
    options = ("--max-steps", "1", "--save-every", "1")
    printed = train_on_ranks(project(), tmp_path / "run", *options, entry=count_models_at_the_end)
    assert ["wrapped models: 0" in each for each in printed] == [True, True]


def test_a_signal_while_a_rank_ends_does_not_change_its_code(project: Render, tmp_path: Path) -> None:
    options = [*ON_CPU, "--max-steps", "1", "--run-dir", str(tmp_path / "run")]
    output_of([sys.executable, "-c", LATE, *options], project(), os.environ)


def test_a_store_that_answers_while_a_rank_ends_does_not_change_its_code(project: Render) -> None:
    """As one that was frozen may: an answer to a thread aborts Python while it ends, before 3.14."""
    store = subprocess.Popen([sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert store.stdout
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.stdout.readline().decode().strip()}
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        env = os.environ | place | ranks | agent | {"STORE": str(store.pid)}
        output_of([sys.executable, "-c", LATE, *ON_CPU, "--resume", "nowhere"], project(), env, code=2)
    finally:
        store.kill()
