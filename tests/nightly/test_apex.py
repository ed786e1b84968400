"""Mixed precision with apex.amp, on CPUs: what it is told, what it does then, and what a checkpoint keeps of it.

Some tests run with a stand-in for apex and with apex itself: tests/support/projects/apex.py has both.
"""

import importlib
import math
import os
import shutil
from collections.abc import Callable
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
# O3 only has to run, and without clipping: the squares of small gradients, which AdamW divides by, are 0 in float16.
OPTIONS = {"O0": SAVED, "O1": SAVED, "O2": SAVED, "O3": ("--accum-steps", "2", "--max-steps", "30")}


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


Level = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def level(request: pytest.FixtureRequest, folder: Path) -> Level:
    """Return the run directory of a run with one of the two, such as level("real", "O1"), which is run once."""

    def get(which: str, opt_level: str) -> Path:
        run_dir = folder / f"{which}-{opt_level}"
        if not run_dir.exists():
            train_on_ranks(request.getfixturevalue(which), run_dir, *OPTIONS[opt_level], "--opt-level", opt_level)
        return run_dir

    return get


# ---- without apex ----


@pytest.fixture(scope="module")
def float32(project: Render, folder: Path) -> dict[str, Any]:
    """The checkpoint of a run without mixed precision."""
    train_on_ranks(project(amp="none"), folder / "float32", *WINDOWS)
    return checkpoint(folder / "float32")


@pytest.fixture(scope="module")
def on_cpu(project: Render, folder: Path) -> tuple[Path, str]:
    """The run directory of the project for apex on a CPU, and what its ranks printed."""
    printed = train_on_ranks(project(amp="apex"), folder / "on-cpu", *WINDOWS, "--opt-level", "O2")
    return folder / "on-cpu", "".join(printed)


def test_apex_on_a_cpu_is_float32_and_says_so_once(on_cpu: tuple[Path, str], float32: dict[str, Any]) -> None:
    run_dir, printed = on_cpu
    assert printed.count("apex.amp needs a GPU: this run trains in float32") == 1
    assert (run_dir / "train.log").read_text().count("apex.amp needs a GPU") == 1
    assert_same_weights(checkpoint(run_dir), float32)


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


# ---- with the stand-in ----


def saved_scale(saved: dict[str, Any]) -> dict[str, Any]:
    """The state of apex.amp in a checkpoint, on its own or beside other things to go on with."""
    held = [saved["precision"], *(value for value in saved["precision"].values() if isinstance(value, dict))]
    [scale] = [value for value in held if "loss_scaler0" in value]
    return dict(scale)


@pytest.fixture(scope="module")
def apex_run(stand_in: Path, folder: Path) -> Path:
    train_on_ranks(stand_in, folder / "apex", *WINDOWS, "--opt-level", "O1")
    return folder / "apex"


def test_scaling_with_apex_changes_no_bit(apex_run: Path, float32: dict[str, Any]) -> None:
    # The stand-in's scale is a power of two: scaling, accumulating, reducing, unscaling and clipping in the right order
    # give exactly what they give without it.
    assert_same_weights(checkpoint(apex_run), float32)


# ---- with the stand-in, and with apex itself ----

LEVELS = [("stand_in", "O1"), ("real", "O1"), ("real", "O2")]
BOTH = pytest.mark.parametrize("which", ["stand_in", "real"])


@pytest.mark.parametrize(("which", "opt_level"), [*LEVELS, ("real", "O0"), ("real", "O3")])
def test_every_level_trains(which: str, opt_level: str, level: Level) -> None:
    losses = logged(level(which, opt_level), "train/loss")
    assert {10, 20, 30} <= losses.keys()
    assert all(map(math.isfinite, losses.values()))
    assert opt_level == "O3" or losses[30] < 0.6 * losses[10]


def test_the_level_without_float16_changes_no_bit(level: Level, project: Render, folder: Path) -> None:
    train_on_ranks(project(amp="none"), folder / "saved-in-float32", *SAVED)
    assert_same_state(checkpoint(level("real", "O0")), checkpoint(folder / "saved-in-float32"))


@pytest.mark.parametrize(("which", "opt_level"), LEVELS)
def test_a_resumed_run_ends_the_same(
    which: str, opt_level: str, level: Level, request: pytest.FixtureRequest, folder: Path
) -> None:
    whole = level(which, opt_level)
    source = str(whole / "checkpoints" / "step-00000013.pt")
    resumed, options = folder / f"{whole.name}-resumed", (*SAVED, "--opt-level", opt_level, "--resume", source)
    train_on_ranks(request.getfixturevalue(which), resumed, *options)
    assert_same_state(checkpoint(resumed), checkpoint(whole))
    for part in ("precision", "update"):
        assert differences(checkpoint(resumed)[part], checkpoint(whole)[part]) == [], part
    assert saved_scale(checkpoint(whole))["loss_scaler0"]["unskipped"] == 30


@pytest.mark.parametrize(("which", "opt_level"), LEVELS)
def test_apex_resumes_a_checkpoint_of_a_cpu(
    which: str, opt_level: str, request: pytest.FixtureRequest, on_cpu: tuple[Path, str], folder: Path
) -> None:
    source = str(on_cpu[0] / "checkpoints" / "last.pt")
    options = ("--opt-level", opt_level, "--max-steps", "30", "--log-every", "1", "--resume", source)
    run_dir = folder / f"{which}-{opt_level}-from-cpu"
    train_on_ranks(request.getfixturevalue(which), run_dir, *options)
    before, after = logged(on_cpu[0], "train/loss")[24], logged(run_dir, "train/loss")
    assert sorted(after) == [25, 26, 27, 28, 29, 30]
    assert max(after.values()) < 1.3 * before, "it must go on from the weights of the checkpoint"


# ---- a gradient that is not finite ----

BAD_STEP = 3  # of those below, counted from 0
FEW = (*AVERAGED, "--max-steps", "8", "--log-every", "2")
LARGE = 2.0**24  # the next number after it cannot be told in float32


def with_sgd(model: nn.Module, config: Any) -> Optimizer:
    """Return an optimizer with lr_scale, so that it moves as far as the other."""
    return SGD([{"params": [*model.parameters()], "lr_scale": 10}], momentum=0.9)


def with_adamw(model: nn.Module, config: Any) -> Optimizer:
    """Return an optimizer that cannot leave out a step by itself."""
    return AdamW(model.parameters(), fused=False)


def with_two(model: Any, config: Any) -> Optimizer:
    optimizers = with_adamw(model.features, config), with_sgd(model.classifier, config)
    both: Optimizer = project_module("runtime.update").Optimizers(*optimizers)
    return both


OPTIMIZERS = {"SGD": with_sgd, "AdamW": with_adamw, "two": with_two}


def spoil_a_step() -> None:
    """What a rank does for the fixture `spoiled`: it trains, with one infinite gradient of rank 1."""
    program: Any = importlib.import_module("train")
    program.task.build_optimizer = OPTIMIZERS[os.environ["OPTIMIZER"]]
    train_step, states = program.train_step, []

    def watched(run: Any, *arguments: Any) -> None:
        hook = next(run.model.parameters()).register_hook(spoil)
        if run.progress.step != BAD_STEP or torch.distributed.get_rank() == 0:
            hook.remove()
        before = state_of(run)
        train_step(run, *arguments)
        hook.remove()
        states.append((before, state_of(run)))

    def work(*arguments: Any) -> int:
        program.train_step = watched
        code: int = program.main(*arguments)
        seen = {"states": states, "sum": large_sum(program.meter)}
        torch.save(seen, f"{os.environ['SEEN']}-{torch.distributed.get_rank()}.pt")
        return code

    join(work)


def spoil(gradient: Tensor) -> Tensor:
    return torch.full_like(gradient, math.inf)


def state_of(run: Any) -> dict[str, list[Tensor]]:
    """A copy of the weights that are stepped, of their average, and of BatchNorm's statistics."""
    average = run.update.average.averages
    parts = {"weights": run.update.weights, "average": average, "statistics": [*run.model.buffers()]}
    return {name: [each.detach().float().clone() for each in tensors] for name, tensors in parts.items()}


def large_sum(meter: Any) -> float:
    """The sum over two batches, and over the ranks, of numbers that float32 cannot add."""
    sums = meter.Meter(torch.device("cpu"))
    for number in (LARGE, 1.0):
        sums.add({"loss": meter.Mean(torch.tensor(number), 1)})
    total: float = sums.reduce()[0]["loss"].sum
    return total


Spoiled = Callable[[str, str, str], tuple[list[dict[str, Any]], str]]
SPOILED = pytest.mark.parametrize(
    ("which", "opt_level", "optimizer"),
    [
        ("stand_in", "O1", "AdamW"),
        ("stand_in", "O1", "two"),
        ("real", "O1", "AdamW"),
        ("real", "O2", "SGD"),
        ("real", "O2", "two"),
    ],
)


@pytest.fixture(scope="module")
def spoiled(request: pytest.FixtureRequest, folder: Path) -> Spoiled:
    """Return what each of two ranks saw of a run with a bad step, and the log of that run, which is run once."""

    def get(which: str, opt_level: str, optimizer: str) -> tuple[list[dict[str, Any]], str]:
        run_dir = folder / f"{which}-{opt_level}-{optimizer}-spoiled"
        if not run_dir.exists():
            env = {"SEEN": str(run_dir.with_suffix(".seen")), "OPTIMIZER": optimizer}
            options = (*FEW, "--opt-level", opt_level)
            train_on_ranks(request.getfixturevalue(which), run_dir, *options, env=env, entry=spoil_a_step)
        seen = [torch.load(f"{run_dir.with_suffix('.seen')}-{rank}.pt", weights_only=True) for rank in range(2)]
        return seen, (run_dir / "train.log").read_text()

    return get


@SPOILED
def test_all_ranks_leave_out_a_bad_step_alone(which: str, opt_level: str, optimizer: str, spoiled: Spoiled) -> None:
    ranks, log = spoiled(which, opt_level, optimizer)
    for seen in ranks:
        for part in ("weights", "average", "statistics"):
            taken = [not all(map(torch.equal, before[part], after[part])) for before, after in seen["states"]]
            assert taken == [step != BAD_STEP for step in range(8)], part
    last = [seen["states"][-1][1]["weights"] for seen in ranks]
    assert all(map(torch.equal, *last)), "the ranks must stay the same"
    told = [line for line in log.splitlines() if "steps left out" in line]
    assert len(told) == 1, log
    assert f"step {BAD_STEP + 1}  steps left out, since their gradients were not finite: 1" in told[0]


@SPOILED
def test_the_average_is_of_float32_weights(which: str, opt_level: str, optimizer: str, spoiled: Spoiled) -> None:
    seen = spoiled(which, opt_level, optimizer)[0][0]["states"]
    average = Average(numbered(seen[0][0]["average"]), decay=0.9)
    for step, (_, after) in enumerate(seen):
        if step != BAD_STEP:
            average.follow(numbered(after["weights"]))
        assert relative_difference(numbered(after["average"]), average.weights) <= 1e-5, step


def numbered(tensors: list[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}


@BOTH
def test_sums_are_of_float64(which: str, spoiled: Spoiled) -> None:
    ranks, _ = spoiled(which, "O1", "AdamW")
    assert [seen["sum"] for seen in ranks] == [2 * (LARGE + 1)] * 2
