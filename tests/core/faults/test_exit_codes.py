"""The exit codes of a project are those that its README lists; the tests beside this one end runs with each of them."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from generator.answers.combinations import Combination, covering
from tests.conftest import Render
from tests.launching import module_of
from tests.ranks import run_train, start_ranks


def test_the_readme_of_every_project_lists_the_exit_codes(legal: Sequence[Combination], project: Render) -> None:
    for combination in covering(legal, 1):
        folder = project(**dict(combination.answers))
        (exits,) = folder.glob("*/runtime/exits.py")
        codes = [int(code) for code in module_of(exits).ExitCode]
        assert [
            int(code) for code in re.findall(r"^\| (\d+) \| \w", (folder / "README.md").read_text(), re.MULTILINE)
        ] == codes
        assert codes == [0, 1, 2, 65, 69, 75]


TOLD_BY_CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB of which 1.12 GiB is free. "
    "Including non-PyTorch memory, this process has 77.98 GiB memory in use."
)


def train_on_a_full_gpu() -> None:
    """What rank 1 does whose GPU has no room for the third batch; rank 0 has."""
    task: Any = importlib.import_module("ddp_project.task")
    compute, batches = task.compute, []

    def compute_or_fail(model: Any, batch: Any) -> Any:
        batches.append(batch)
        if torch.distributed.get_rank() == 1 and len(batches) == 3:
            raise torch.OutOfMemoryError(TOLD_BY_CUDA)
        return compute(model, batch)

    task.compute = compute_or_fail
    run_train()


def test_a_rank_that_is_out_of_memory_says_what_to_lower(project: Render, tmp_path: Path) -> None:
    one, other = start_ranks(project(), tmp_path / "run", entry=train_on_a_full_gpu)
    printed = other.ends_with(2, timeout=60)
    [error] = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: rank 1 is out of memory: raise --accum-steps")
    assert error.endswith("of which 1.12 GiB is free)")
    assert "Traceback" not in printed
    assert "error: rank 1 has ended: it is out of memory" in one.ends_with(69, timeout=60)
