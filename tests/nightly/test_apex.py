"""Mixed precision with apex.amp, on CPUs: what it is told, what it does then, and what a checkpoint keeps of it.

Some tests run with a stand-in for apex and with apex itself: tests/support/projects/apex.py has both.
"""

import importlib
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tests.conftest import Render
from tests.core.test_checkpoints import logged
from tests.support.forked_runs import relative_difference
from tests.support.projects.apex import NotAtHand, put_apex, put_stand_in, read_apex
from tests.support.ranks import assert_same_state, error_in, join, project_module, train_on_ranks
from tests.support.reference import Average
from tests.support.training import assert_same_weights, checkpoint, differences
from tools.rewriting import Rewrite

# A window of four micro-batches of 16: an epoch has 22 of them, and one of a single micro-batch.
WINDOWS = ("--accum-steps", "4", "--clip-norm", "0.5", "--max-steps", "24")
AVERAGED = ("--ema-decay", "0.9", "--accum-steps", "2", "--clip-norm", "0.5")
SAVED = (*AVERAGED, "--max-steps", "30", "--save-every", "13", "--keep", "9")
FEW, BAD_STEP = (*AVERAGED, "--max-steps", "8", "--log-every", "2"), 3  # of these, counted from 0
LARGE = 2.0**24  # the next number after it cannot be told in float32
BOTH = pytest.mark.parametrize("which", ["stand_in", "real"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apex")


@pytest.fixture(scope="module")
def pretended_gpu(project: Render, folder: Path) -> Path:
    """The project for apex, which believes that it computes on a GPU. What it imports as apex is up to the test."""
    copy = shutil.copytree(project(amp="apex"), folder / "pretended-gpu")
    Rewrite("$M.Precision($CONFIG, $DEVICE)", '$M.Precision($CONFIG, torch.device("cuda"))').apply(copy / "train.py")
    return copy


@pytest.fixture(scope="module")
def stand_in(pretended_gpu: Path, folder: Path) -> Path:
    copy = shutil.copytree(pretended_gpu, folder / "stand-in")
    put_stand_in(copy)
    return copy


@pytest.fixture(scope="module")
def real(pretended_gpu: Path, folder: Path) -> Path:
    try:
        files = read_apex()
    except NotAtHand as error:
        pytest.skip(str(error))
    copy = shutil.copytree(pretended_gpu, folder / "real")
    put_apex(copy, files)
    return copy


@pytest.fixture(scope="module")
def float32(project: Render, folder: Path) -> dict[str, Any]:
    train_on_ranks(project(amp="none"), folder / "float32", *WINDOWS)
    return checkpoint(folder / "float32")


@pytest.mark.parametrize("installed", ["nothing", "another package"])
def test_a_gpu_without_apex_is_refused_with_one_line(installed: str, pretended_gpu: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(pretended_gpu, tmp_path / "project")
    if installed == "another package":
        (copy / "apex").mkdir()
        (copy / "apex" / "__init__.py").touch()
    line = error_in(train_on_ranks(copy, tmp_path / "run", "--max-steps", "1", code=2, timeout=100))
    assert line.startswith("error: apex.amp is not installed")
    assert "tag 25.05" in line
    assert "PyPI's apex is another package" in line


def test_scaling_with_apex_changes_no_bit_and_clips_the_weights_that_are_stepped(
    stand_in: Path, float32: dict[str, Any], tmp_path: Path
) -> None:
    # The stand-in's scale is a power of two: scaling, accumulating, reducing, unscaling and clipping in the right order
    # give exactly what they give without it. At O2, what is clipped are the gradients of the float32 weights.
    for level in ("O1", "O2"):
        env = {"APEX_NORMS": str(tmp_path / f"norms-of-{level}")}
        train_on_ranks(stand_in, tmp_path / level, *WINDOWS, "--opt-level", level, env=env)
    assert_same_weights(checkpoint(tmp_path / "O1"), float32)
    assert max(map(float, (tmp_path / "norms-of-O2-0").read_text().split())) == pytest.approx(0.5, rel=1e-4)


@BOTH
@pytest.mark.parametrize("opt_level", ["O1", "O2"])
def test_a_level_learns_and_a_resumed_run_ends_the_same(
    which: str, opt_level: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place, options = request.getfixturevalue(which), (*SAVED, "--opt-level", opt_level)
    train_on_ranks(place, tmp_path / "whole", *options)
    losses = logged(tmp_path / "whole", "train/loss")
    assert all(map(math.isfinite, losses.values()))
    assert losses[30] < 0.6 * losses[10]
    source = str(tmp_path / "whole" / "checkpoints" / "step-00000013.pt")
    train_on_ranks(place, tmp_path / "resumed", *options, "--resume", source)
    whole, resumed = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "resumed")
    assert_same_state(resumed, whole)
    for part in ("precision", "update"):
        assert differences(resumed[part], whole[part]) == [], part
    assert "'unskipped': 30" in str(whole["precision"])


def test_the_level_without_float16_changes_no_bit(real: Path, project: Render, tmp_path: Path) -> None:
    train_on_ranks(real, tmp_path / "O0", *SAVED, "--opt-level", "O0")
    train_on_ranks(project(amp="none"), tmp_path / "float32", *SAVED)
    assert_same_state(checkpoint(tmp_path / "O0"), checkpoint(tmp_path / "float32"))


@BOTH
def test_apex_on_a_cpu_is_float32_and_a_gpu_goes_on_from_there(
    which: str, request: pytest.FixtureRequest, project: Render, float32: dict[str, Any], tmp_path: Path
) -> None:
    run_dir = tmp_path / "cpu"
    printed = train_on_ranks(project(amp="apex"), run_dir, *WINDOWS, "--opt-level", "O2")
    assert "".join(printed).count("apex.amp needs a GPU: this run trains in float32") == 1
    assert (run_dir / "train.log").read_text().count("apex.amp needs a GPU") == 1
    assert_same_weights(checkpoint(run_dir), float32)
    options = ("--opt-level", "O2", "--max-steps", "30", "--log-every", "1")
    source = str(run_dir / "checkpoints" / "last.pt")
    train_on_ranks(request.getfixturevalue(which), tmp_path / "run", *options, "--resume", source)
    before, after = logged(run_dir, "train/loss")[24], logged(tmp_path / "run", "train/loss")
    assert sorted(after) == [25, 26, 27, 28, 29, 30]
    assert max(after.values()) < 1.3 * before, "it must go on from the weights of the checkpoint"


def with_sgd(model: nn.Module, config: Any) -> Optimizer:
    """Return an optimizer with lr_scale, so that it moves as far as the other."""
    return SGD([{"params": [*model.parameters()], "lr_scale": 10}], momentum=0.9)


def with_adamw(model: nn.Module, config: Any) -> Optimizer:
    """Return an optimizer that cannot leave out a step by itself."""
    return AdamW(model.parameters(), fused=False)


def with_two(model: Any, config: Any) -> Any:
    optimizers = with_adamw(model.features, config), with_sgd(model.classifier, config)
    return project_module("runtime.optimizer_step").Optimizers(*optimizers)


def spoil_a_step() -> None:
    """What a rank does for the test below: it trains, with one infinite gradient of rank 1."""
    program: Any = importlib.import_module("train")
    program.task.build_optimizer = {"SGD": with_sgd, "AdamW": with_adamw, "two": with_two}[os.environ["OPTIMIZER"]]
    train_step, states = program.train_step, []

    def watched(run: Any, *arguments: Any) -> None:
        hook = next(run.model.parameters()).register_hook(lambda gradient: torch.full_like(gradient, math.inf))
        if run.progress.step != BAD_STEP or torch.distributed.get_rank() == 0:
            hook.remove()
        before = state_of(run)
        train_step(run, *arguments)
        hook.remove()
        states.append((before, state_of(run)))

    def work(*arguments: Any) -> int:
        program.train_step = watched
        code: int = program.main(*arguments)
        seen = {"states": states, "sum": large_sum(program.metrics)}
        torch.save(seen, f"{os.environ['SEEN']}-{torch.distributed.get_rank()}.pt")
        return code

    join(work)


def state_of(run: Any) -> dict[str, list[Tensor]]:
    """A copy of the weights that are stepped, of their average, and of BatchNorm's statistics."""
    average = run.update.average.averages
    parts = {"weights": run.update.weights, "average": average, "statistics": [*run.model.buffers()]}
    return {name: [each.detach().float().clone() for each in tensors] for name, tensors in parts.items()}


def large_sum(metrics: Any) -> float:
    """The sum over two batches, and over the ranks, of numbers that float32 cannot add."""
    sums = metrics.MetricAccumulator(torch.device("cpu"))
    for number in (LARGE, 1.0):
        sums.add({"loss": metrics.Mean(torch.tensor(number), 1)})
    return float(sums.reduce()[0]["loss"].sum)


@BOTH
@pytest.mark.parametrize(("opt_level", "optimizer"), [("O1", "AdamW"), ("O2", "SGD"), ("O2", "two")])
def test_all_ranks_leave_out_a_bad_step_alone(
    which: str, opt_level: str, optimizer: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Weights are averaged in float32 and metrics summed in float64, whatever apex does to functions of torch."""
    env, options = {"SEEN": str(tmp_path / "seen"), "OPTIMIZER": optimizer}, (*FEW, "--opt-level", opt_level)
    train_on_ranks(request.getfixturevalue(which), tmp_path / "run", *options, env=env, entry=spoil_a_step)
    ranks = [torch.load(tmp_path / f"seen-{rank}.pt", weights_only=True) for rank in range(2)]
    for seen in ranks:
        for part in ("weights", "average", "statistics"):
            taken = [not all(map(torch.equal, before[part], after[part])) for before, after in seen["states"]]
            assert taken == [step != BAD_STEP for step in range(8)], part
        assert seen["sum"] == 2 * (LARGE + 1)
    last = [seen["states"][-1][1]["weights"] for seen in ranks]
    assert all(map(torch.equal, *last)), "the ranks must stay the same"
    told = [line for line in (tmp_path / "run" / "train.log").read_text().splitlines() if "steps left out" in line]
    assert len(told) == 1, told
    assert f"step {BAD_STEP + 1}  steps left out, since their gradients were not finite: 1" in told[0]
    states = ranks[0]["states"]
    average = Average(numbered(states[0][0]["average"]), decay=0.9)
    for step, (_, after) in enumerate(states):
        if step != BAD_STEP:
            average.follow(numbered(after["weights"]))
        assert relative_difference(numbered(after["average"]), average.weights) <= 1e-5, step


def numbered(tensors: list[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}
