"""Mixed precision: what torch.amp is told, in which order, and what a checkpoint keeps of it; on GPUs, apex too."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Render
from tests.core.test_checkpoints import logged
from tests.support.processes import output_of
from tests.support.ranks import run_train, train_on_ranks, wrap
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


def said_after_training(program: str, project: Path, folder: Path, *options: str) -> str:
    """Train a step, do what the program does then, and return its last line."""
    command = [sys.executable, "-c", program, *options, "--max-steps", "1", "--run-dir", str(folder / "run")]
    return output_of(command, project, os.environ).splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "highest False"),
        (["--precision", "tf32-convolutions"], "highest True"),
        (["--precision", "tf32"], "high True"),
    ],
    ids=["default", "tf32-convolutions", "tf32"],
)
def test_torch_is_told_whether_tf32_will_do(given: list[str], told: str, project: Render, tmp_path: Path) -> None:
    assert said_after_training(TELLING, project(), tmp_path, *ON_CPU, *given) == told


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


@pytest.mark.parametrize(("first", "second"), [("fp16", "bf16"), ("bf16", "fp16")])
def test_half_precision_learns_keeps_float32_weights_and_may_change_at_a_resume(
    first: str, second: str, project: Render, tmp_path: Path
) -> None:
    train_on_ranks(project(amp="torch"), tmp_path / "run", "--max-steps", "30", "--precision", first)
    losses, saved = logged(tmp_path / "run", "train/loss"), checkpoint(tmp_path / "run")
    assert losses[30] < 0.6 * losses[10]
    assert {value.dtype for value in saved["model"].values() if value.is_floating_point()} == {torch.float32}
    assert bool(saved["scaler"]) == (first == "fp16")
    train_on_ranks(project(amp="torch"), tmp_path / "run", "--resume", "--max-steps", "33", "--precision", second)
    assert bool(checkpoint(tmp_path / "run")["scaler"]) == (second == "fp16")
    assert logged(tmp_path / "run", "train/loss")[33] < losses[20]


def norm_of_gradients(model: torch.nn.Module) -> float:
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return float(torch.cat(gradients).norm())


def watch_steps() -> None:
    """Be a rank that saves in which types a model computes, and the norms of the gradients that are stepped."""
    types: set[tuple[bool, torch.dtype]] = set()  # whether it trains, and the type of its logits
    norms: list[float] = []

    def make_compute(compute: Any) -> Any:
        def watched(model: Any, batch: Any) -> Any:
            types.add((model.training, model(batch[0]).dtype))
            return compute(model, batch)

        return watched

    def make_optimizer(build: Any) -> Any:
        def built(model: Any, config: Any) -> Any:
            optimizer = build(model, config)
            optimizer.register_step_pre_hook(lambda *_: norms.append(norm_of_gradients(model)))
            return optimizer

        return built

    wrap("task.compute", make_compute)
    wrap("task.build_optimizer", make_optimizer)
    try:
        run_train()
    finally:
        torch.save((types, norms), f"{os.environ['SEEN']}-{os.environ['RANK']}.pt")


@pytest.mark.parametrize(("option", "clip_norm"), [("fp16", 0.5), ("fp16", 1000.0), ("bf16", 0.5)])
def test_steps_use_the_chosen_type_and_clip_true_gradients(
    option: str, clip_norm: float, project: Render, tmp_path: Path
) -> None:
    """Clipped before they are unscaled, their norm would be that of the limit, or far below it."""
    options = ("--max-steps", "6", "--precision", option, "--clip-norm", str(clip_norm))
    env = {"SEEN": str(tmp_path / "seen")}
    train_on_ranks(project(amp="torch"), tmp_path / "run", *options, env=env, entry=watch_steps)
    for rank in range(2):
        types, norms = torch.load(tmp_path / f"seen-{rank}.pt", weights_only=False)
        expected = torch.float16 if option == "fp16" else torch.bfloat16
        assert types == {(True, expected), (False, expected)}
        assert norms
        if clip_norm == 0.5:
            assert max(norms) == pytest.approx(0.5, rel=1e-4)
        else:
            assert all(0.5 < norm < 1000 for norm in norms)


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
    # Not a word on what O3 learns: AdamW's second moment gets lost below the smallest number of float16.
    assert 60 in losses if "O3" in options else losses[60] < losses[40] < losses[10]


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_torch_amp_learns_on_a_gpu(dtype: str, project: Render, tmp_path: Path) -> None:
    assert_learns_and_goes_on(project(amp="torch"), tmp_path, "--precision", dtype, "--clip-norm", "1")


@pytest.mark.gpu
@NEEDS_APEX
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_apex_learns_on_a_gpu(level: str, project: Render, tmp_path: Path) -> None:
    assert_learns_and_goes_on(project(amp="apex"), tmp_path, "--opt-level", level, "--accum-steps", "2")
