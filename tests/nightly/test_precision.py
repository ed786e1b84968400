"""Mixed precision: what torch.amp is told, in which order, and what a checkpoint keeps of it; on GPUs, apex too."""

import importlib
import importlib.util
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conftest import Render
from tests.core.test_checkpoints import logged
from tests.support.processes import output_of
from tests.support.ranks import join, train_on_ranks
from tests.support.training import HAS_GPU, NEEDS_GPU, ON_CPU, ON_GPU, checkpoint, train

# ---- float32, with TF32 and without ----

TRAINED = """
import runpy, sys, torch
sys.argv = ["train.py", *sys.argv[1:]]
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
"""
TELLING = f"{TRAINED}print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)"


@pytest.mark.parametrize(
    ("option", "told"),
    [([], "highest False"), (["tf32-convolutions"], "highest True"), (["tf32"], "high True")],
    ids=["default", "tf32-convolutions", "tf32"],
)
def test_torch_is_told_whether_tf32_will_do(option: list[str], told: str, project: Render, tmp_path: Path) -> None:
    given = ["--precision", *option] if option else []
    assert said_after_training(TELLING, project(), tmp_path, *ON_CPU, *given) == told


def said_after_training(program: str, project: Path, folder: Path, *options: str) -> str:
    """Train a step, do what the program does then, and return its last line."""
    command = [sys.executable, "-c", program, *options, "--max-steps", "1", "--run-dir", str(folder / "run")]
    return output_of(command, project, os.environ).splitlines()[-1]


ROUNDED = f"""{TRAINED}
draw = torch.Generator().manual_seed(0)
left, right = (torch.randn(512, 512, generator=draw, dtype=torch.float64) for _ in range(2))
product = left.float().cuda() @ right.float().cuda()
print(((product.double().cpu() - left @ right).norm() / (left @ right).norm()).item())
"""


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize(("precision", "least", "most"), [("tf32-convolutions", 0.0, 1e-5), ("tf32", 1e-5, 1e-2)])
def test_tf32_keeps_three_digits(precision: str, least: float, most: float, project: Render, tmp_path: Path) -> None:
    said = said_after_training(ROUNDED, project(), tmp_path, "--device", "cuda", "--precision", precision)
    assert least <= float(said) <= most


# ---- torch.amp, the whole program ----


@pytest.fixture(scope="module", params=["fp16", "bf16"])
def half(request: pytest.FixtureRequest, project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("half") / str(request.param)
    train_on_ranks(project(amp="torch"), run_dir, "--max-steps", "30", "--precision", run_dir.name)
    return run_dir


def test_training_in_half_precision_learns_and_keeps_float32_weights(half: Path) -> None:
    losses = logged(half, "train/loss")
    assert losses[30] < 0.6 * losses[10]
    saved = checkpoint(half)
    assert {value.dtype for value in saved["model"].values() if value.is_floating_point()} == {torch.float32}
    assert bool(saved["scaler"]) == (half.name == "fp16")


def test_the_types_can_change_at_a_resume(half: Path, project: Render, tmp_path: Path) -> None:
    other = "bf16" if half.name == "fp16" else "fp16"
    options = ("--resume", str(half / "checkpoints" / "last.pt"), "--max-steps", "33", "--precision", other)
    train_on_ranks(project(amp="torch"), tmp_path / "run", *options)
    assert bool(checkpoint(tmp_path / "run")["scaler"]) == (other == "fp16")
    assert logged(tmp_path / "run", "train/loss")[33] < logged(half, "train/loss")[20]


# ---- torch.amp, one step on two ranks ----


def take_single_steps() -> None:
    """What a rank does for the fixture `steps`: it joins the others as train.py does, and saves what it saw."""
    program: Any = importlib.import_module("train")

    def work(config: Any, world: Any, device: torch.device) -> int:
        seen: dict[str, Any] = {}
        for dtype, clip_norm in itertools.product(("fp16", "bf16"), (0.0, 0.5, 1000.0)):
            name = f"step {dtype} {clip_norm}"
            own = replace(config, clip_norm=clip_norm, precision=dtype, run_dir=config.run_dir / name)
            seen[name] = one_step(program, program.Run(own, world, device))
        torch.save(seen, f"{os.environ['SEEN']}-{world.rank}.pt")
        return 0

    join(work)


def one_step(program: Any, run: Any) -> dict[str, Any]:
    """Take a step, and compute its gradient without a scaler: on the same weights, samples and dropout."""
    [(images, labels)] = next(iter(run.training))
    rng = torch.get_rng_state()
    with program.update.autocast(run.config, run.device):
        means = run.ddp((images, labels))
    run.update.backward(*means["loss"], 1)
    expected = gradients_of(run)
    run.optimizer.zero_grad()
    torch.set_rng_state(rng)
    dtypes, applied = [], []
    run.model.classifier[-1].register_forward_hook(lambda layer, args, output: dtypes.append(output.dtype))
    run.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: applied.append(gradients_of(run)))
    program.train_step(run, [(images, labels)], 1e-3)
    run.progress.advance(run.training.sampler.global_micro_batch_size)
    program.evaluate(run)
    return {"expected": expected, "applied": applied[0], "dtypes": [*map(str, dtypes)]}


def gradients_of(run: Any) -> Tensor:
    return torch.cat([weight.grad.flatten().clone() for weight in run.model.parameters()])


@pytest.fixture(scope="module")
def steps(project: Render, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw of single steps."""
    folder = tmp_path_factory.mktemp("steps")
    env = {"SEEN": str(folder / "seen")}
    train_on_ranks(project(amp="torch"), folder / "steps", env=env, entry=take_single_steps)
    return [torch.load(f"{folder / 'seen'}-{rank}.pt", weights_only=True) for rank in range(2)]


def test_clipping_sees_the_true_gradients(steps: list[dict[str, Any]]) -> None:
    for seen in steps:
        clipped, whole = seen["step fp16 0.5"], seen["step fp16 1000.0"]
        norm = whole["expected"].norm().item()
        assert 0.5 < norm < 1000
        assert clipped["applied"].norm().item() == pytest.approx(0.5, rel=1e-4)
        assert whole["applied"].norm().item() == pytest.approx(norm, rel=1e-2)
        for step in (clipped, whole):
            assert F.cosine_similarity(step["applied"], step["expected"], dim=0).item() > 0.999
        assert seen["step bf16 0.5"]["applied"].norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize(("option", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_steps_and_evaluations_use_the_chosen_type(
    option: str, dtype: torch.dtype, steps: list[dict[str, Any]]
) -> None:
    seen = steps[0][f"step {option} 0.0"]["dtypes"]
    assert len(seen) > 1, "a step, and the batches of an evaluation"
    assert {*seen} == {str(dtype)}


# ---- on a GPU ----


def real_apex() -> bool:
    """Whether apex.amp is here, and not only another package of that name."""
    return importlib.util.find_spec("apex") is not None and importlib.util.find_spec("apex.amp") is not None


NEEDS_APEX = pytest.mark.skipif(not HAS_GPU or not real_apex(), reason="no GPU with apex.amp")


def assert_learns_and_goes_on(project: Path, folder: Path, *options: str) -> None:
    """Train on one GPU, stop, go on, and look at the loss."""
    train(project, folder / "run", *ON_GPU, *options, "--max-steps", "40", launcher="alone")
    train(project, folder / "run", *ON_GPU, *options, "--max-steps", "60", "--resume", launcher="alone")
    losses = logged(folder / "run", "train/loss")
    assert losses[60] < losses[40] < losses[10]


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_torch_amp_learns_on_a_gpu(dtype: str, project: Render, tmp_path: Path) -> None:
    assert_learns_and_goes_on(project(amp="torch"), tmp_path, "--precision", dtype, "--clip-norm", "1")


@pytest.mark.gpu
@NEEDS_APEX
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_apex_learns_on_a_gpu(level: str, project: Render, tmp_path: Path) -> None:
    assert_learns_and_goes_on(project(amp="apex"), tmp_path, "--opt-level", level, "--accum-steps", "2")


@pytest.mark.gpu
@NEEDS_APEX
def test_apex_runs_in_float16_throughout_on_a_gpu(project: Render, tmp_path: Path) -> None:
    # Not a word on what it learns: AdamW's second moment gets lost below the smallest number of float16.
    for options in (("--max-steps", "20"), ("--max-steps", "30", "--resume")):
        train(project(amp="apex"), tmp_path / "run", *ON_GPU, "--opt-level", "O3", *options, launcher="alone")
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 30
