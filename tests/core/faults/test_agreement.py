"""Ranks that differ in their options, code, data or versions are found at the start and named, in two exchanges."""

import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Measured, Render
from tests.support.ranks import error_in, run_train, train_on_ranks
from tests.support.versions import append
from tools.rewriting import Rewrite, extend

OTHER = "other_project"  # beside the project, for rank 1
DIFFERENCES = [
    ("option", "--lr is 0.003 on rank 0 and 0.5 on rank 1"),
    ("torch", f"torch is {torch.__version__} on rank 0 and 2.12.0 on rank 1"),
    ("train.py", "train.py is "),
    ("ddp_project/model.py", "model.py is "),
]


def be_different() -> None:
    if os.environ["RANK"] == "1":
        match os.environ["DIFFERS"]:
            case "option":
                sys.argv += ["--lr", "0.5"]
            case "torch":
                torch.__version__ = "2.12.0"  # type: ignore[assignment]
            case _:
                project = Path.cwd().with_name(OTHER)
                os.chdir(project)
                sys.path.insert(0, str(project))
    run_train()


def counting_collectives() -> None:
    """Tell which collectives this rank calls until its run is refused."""
    with torch.profiler.profile() as profile:
        try:
            runpy.run_path("train.py", run_name="__main__")
        finally:
            profile.stop()
            calls = sum(event.count for event in profile.key_averages() if event.key.startswith("gloo:"))
            print(f"collectives: {calls}", flush=True)


@pytest.mark.parametrize(("what", "expected"), DIFFERENCES)
def test_ranks_that_differ_are_refused(what: str, expected: str, own_project: Render, tmp_path: Path) -> None:
    project = own_project()
    other = shutil.copytree(project, project.with_name(OTHER))
    if what.endswith(".py"):
        append(other / what, "# edited\n")
    run: dict[str, Any] = {"entry": be_different, "env": {"DIFFERS": what}, "timeout": 30}
    error = error_in(train_on_ranks(project, tmp_path / "run", code=2, **run))
    assert error.startswith(f"error: the ranks must be the same: {expected}")
    assert error.count(" on rank 0 and ") == 1, "only what differs is named"
    assert not (tmp_path / "run").exists()


def test_data_of_another_length_is_named(own_project: Render, tmp_path: Path, measured: Measured) -> None:
    project = own_project()
    data = project / "ddp_project" / "data.py"
    shorter = '$FIRST, $REST = order[: $SIZE - int(os.environ["RANK"])], order[$SIZE:]'
    Rewrite("$FIRST, $REST = order[:$SIZE], order[$SIZE:]", shorter, "load_data").apply(data)
    extend(data, imports="import os\n")
    printed = train_on_ranks(project, tmp_path / "run", code=2, entry=counting_collectives, timeout=30)
    assert "the length of the training set is 1437 on rank 0 and 1436 on rank 1" in printed[0]
    # Each exchange is an all_gather_object: of the lengths, then of the pickles. Is the data there, and the same?
    counts = {int(count) for text in printed for count in re.findall(r"^collectives: (\d+)$", text, re.MULTILINE)}
    assert counts == {4}, "two exchanges, before any other"
    measured("agreement", "exchanges at the start", counts.pop() / 2)


RANK = 'int(os.environ["RANK"])'
ORDERS = {
    "own": f"lambda size, seed, epoch: np.roll(np.arange(size), {RANK})",
    "own, later": f"lambda size, seed, epoch: np.roll(np.arange(size), epoch * {RANK})",
    "tokens": f"tokens_per_batch([8] * 1000 + [1] * (len(train) - 1000), 160 + 80 * {RANK})",
}


@pytest.mark.parametrize("kind", ORDERS)
def test_orders_that_differ_are_refused(kind: str, own_project: Render, tmp_path: Path) -> None:
    """Functions of an owner, and batches of a number of tokens."""
    project = own_project()
    load = "\n\ndef load_data(config, load=load_data):\n    train, evaluation = load(config)\n"
    returned = f"    return Data(train, evaluation, order={ORDERS[kind]})\n"
    imports = "import os\nimport numpy as np\nfrom .runtime import Data, tokens_per_batch\n"
    extend(project / "ddp_project" / "data.py", load + returned, imports=imports)
    error = error_in(train_on_ranks(project, tmp_path / "run", code=2, timeout=30))
    assert error.startswith("error: data.py: the order of the samples is not the same on all ranks")
