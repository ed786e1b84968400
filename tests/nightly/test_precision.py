"""Mixed precision: what torch.amp is told, in which order, and what a checkpoint keeps of it; on GPUs, apex too."""

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Render
from tests.core.test_checkpoints import logged
from tests.support.ranks import on_compute, run_train, train_on_ranks, wrap
from tests.support.training import HAS_GPU, NEEDS_GPU, ON_GPU, checkpoint, train

# With apex.amp, and not only another package of that name.
HAS_APEX = find_spec("apex") is not None and find_spec("apex.amp") is not None
NEEDS_APEX = pytest.mark.skipif(not HAS_GPU or not HAS_APEX, reason="no GPU with apex.amp")


def tell_whether_tf32_will_do() -> None:
    with suppress(SystemExit):
        run_train()
    print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


@pytest.mark.parametrize(
    ("precision", "told"), [("auto", "highest False"), ("tf32-convolutions", "highest True"), ("tf32", "high True")]
)
def test_torch_is_told_whether_tf32_will_do(precision: str, told: str, project: Render, tmp_path: Path) -> None:
    options = ("--max-steps", "1", "--precision", precision)
    [printed] = train_on_ranks(
        project(amp="none"), tmp_path / "run", *options, processes=1, entry=tell_whether_tf32_will_do
    )
    assert printed.splitlines()[-1] == told


def tell_error_of_a_product() -> None:
    """Be a rank that prints in the end how far a product on a GPU is from the true one."""
    with suppress(SystemExit):
        run_train()
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(512, 512, generator=draw, dtype=torch.float64) for _ in range(2))
    product = (left.float().cuda() @ right.float().cuda()).double().cpu()
    print(((product - left @ right).norm() / (left @ right).norm()).item())


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize(("precision", "least", "most"), [("tf32-convolutions", 0.0, 1e-5), ("tf32", 1e-5, 1e-2)])
def test_tf32_keeps_three_digits(precision: str, least: float, most: float, project: Render, tmp_path: Path) -> None:
    options = ("--device", "cuda", "--precision", precision, "--max-steps", "1")
    [printed] = train_on_ranks(
        project(amp="none"), tmp_path / "run", *options, processes=1, entry=tell_error_of_a_product
    )
    assert least <= float(printed.splitlines()[-1]) <= most


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


def watch_steps() -> None:
    """Be a rank that saves in which types a model computes, and the norms of the gradients that are stepped."""
    types: set[tuple[bool, torch.dtype]] = set()  # whether it trains, and the type of its logits
    norms: list[float] = []

    def make_optimizer(build: Any) -> Any:
        def built(model: Any, config: Any) -> Any:
            def note_norm(*_: Any) -> None:
                gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
                norms.append(float(torch.cat(gradients).norm()))

            optimizer = build(model, config)
            optimizer.register_step_pre_hook(note_norm)
            return optimizer

        return built

    on_compute(lambda model, batch: types.add((model.training, model(batch[0]).dtype)))
    wrap("task.build_optimizer", make_optimizer)
    try:
        run_train()
    finally:
        torch.save((types, norms), f"{os.environ['SEEN']}-{os.environ['RANK']}.pt")


@pytest.mark.parametrize(("option", "expected"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_steps_use_the_chosen_type_and_clip_true_gradients(
    option: str, expected: torch.dtype, project: Render, tmp_path: Path
) -> None:
    """Clipped before they are unscaled, their norm would be far below the limit."""
    options = ("--max-steps", "6", "--precision", option, "--clip-norm", "0.5")
    env = {"SEEN": str(tmp_path / "seen")}
    train_on_ranks(project(amp="torch"), tmp_path / "run", *options, env=env, entry=watch_steps)
    for rank in range(2):
        types, norms = torch.load(tmp_path / f"seen-{rank}.pt", weights_only=False)
        assert types == {(True, expected), (False, expected)}
        assert max(norms) == pytest.approx(0.5, rel=1e-4)


def assert_learns_and_goes_on(project: Path, folder: Path, *options: str) -> None:
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
