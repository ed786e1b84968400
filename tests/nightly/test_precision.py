"""Mixed precision: what torch.amp is told, in which order, and what a checkpoint keeps of it; on GPUs, apex too."""

import importlib
import importlib.util
import itertools
import math
import os
import subprocess
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
from tests.support.ranks import assert_same_state, train_on_ranks
from tests.support.training import HAS_GPU, NEEDS_GPU, ON_CPU, ON_GPU, checkpoint, train

STEPS = ("--max-steps", "30")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of this module are."""
    return tmp_path_factory.mktemp("precision")


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
    [
        ([], "highest False"),
        (["--precision", "tf32-convolutions"], "highest True"),
        (["--precision", "tf32"], "high True"),
    ],
)
def test_the_program_tells_torch_whether_tf32_will_do(
    option: list[str], told: str, project: Render, folder: Path
) -> None:
    run_dir = folder / told.replace(" ", "-")
    arguments = [*ON_CPU, "--max-steps", "1", "--run-dir", str(run_dir), *option]
    command = [sys.executable, "-c", TELLING, *arguments]
    done = subprocess.run(command, cwd=project(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == told


ROUNDED = f"""{TRAINED}
draw = torch.Generator().manual_seed(0)
left, right = (torch.randn(512, 512, generator=draw, dtype=torch.float64) for _ in range(2))
product = left.float().cuda() @ right.float().cuda()
print(((product.double().cpu() - left @ right).norm() / (left @ right).norm()).item())
"""


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize(("precision", "least", "most"), [("tf32-convolutions", 0.0, 1e-5), ("tf32", 1e-5, 1e-2)])
def test_tf32_rounds_to_three_digits(
    precision: str, least: float, most: float, project: Render, tmp_path: Path
) -> None:
    arguments = ["--device", "cuda", "--max-steps", "1", "--run-dir", str(tmp_path / "run"), "--precision", precision]
    done = subprocess.run([sys.executable, "-c", ROUNDED, *arguments], cwd=project(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert least <= float(done.stdout.splitlines()[-1]) <= most, done.stderr


# ---- torch.amp, the whole program ----


@pytest.fixture(scope="module")
def fp16(project: Render, folder: Path) -> Path:
    """The run directory of a run in float16."""
    options = (*STEPS, "--precision", "fp16", "--clip-norm", "0.5", "--save-every", "13", "--keep", "9")
    train_on_ranks(project(amp="torch"), folder / "fp16", *options)
    return folder / "fp16"


@pytest.fixture(scope="module")
def bf16(project: Render, folder: Path) -> Path:
    """The run directory of a run in bfloat16."""
    train_on_ranks(project(amp="torch"), folder / "bf16", *STEPS, "--precision", "bf16")
    return folder / "bf16"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_training_in_half_precision_learns_and_keeps_float32_weights(
    dtype: str, request: pytest.FixtureRequest
) -> None:
    run_dir: Path = request.getfixturevalue(dtype)
    losses = logged(run_dir, "train/loss")
    assert losses[30] < 0.6 * losses[10]
    floating = {value.dtype for value in checkpoint(run_dir)["model"].values() if value.is_floating_point()}
    assert floating == {torch.float32}


def test_a_resumed_run_in_float16_ends_the_same_with_its_scaler(project: Render, fp16: Path, folder: Path) -> None:
    source = str(fp16 / "checkpoints" / "step-00000013.pt")
    options = (*STEPS, "--precision", "fp16", "--clip-norm", "0.5", "--resume", source)
    train_on_ranks(project(amp="torch"), folder / "fp16-resumed", *options)
    whole, resumed = checkpoint(fp16), checkpoint(folder / "fp16-resumed")
    assert_same_state(resumed, whole)
    assert resumed["scaler"] == whole["scaler"]
    scaler = whole["scaler"]
    # The scale begins at 65536, halves at each overflow, and each step without one counts towards its growth.
    overflows = round(math.log2(65536 / scaler["scale"]))
    assert 0 <= overflows < 10
    assert 30 - 10 <= scaler["_growth_tracker"] <= 30 - overflows


def test_the_scale_of_a_checkpoint_is_gone_on_with(project: Render, fp16: Path, folder: Path) -> None:
    saved = checkpoint(fp16, "step-00000013.pt")
    saved["scaler"] |= {"scale": 1024.0, "_growth_tracker": 1998}
    torch.save(saved, folder / "about-to-grow.pt")
    options = ("--max-steps", "17", "--precision", "fp16", "--resume", str(folder / "about-to-grow.pt"))
    train_on_ranks(project(amp="torch"), folder / "grown", *options)
    # After 2000 steps without overflow the scale doubles, and the count begins anew.
    scaler = checkpoint(folder / "grown")["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (2048.0, 2)


def test_bfloat16_saves_no_scaler_and_the_types_can_change_on_resume(
    project: Render, fp16: Path, bf16: Path, folder: Path
) -> None:
    assert checkpoint(bf16)["scaler"] == {}
    for run_dir, dtype in ((fp16, "bf16"), (bf16, "fp16")):
        other = folder / f"{run_dir.name}-then-{dtype}"
        source = str(run_dir / "checkpoints" / "last.pt")
        train_on_ranks(project(amp="torch"), other, "--resume", source, "--max-steps", "33", "--precision", dtype)
        saved = checkpoint(other)
        assert saved["progress"]["step"] == 33
        assert bool(saved["scaler"]) == (dtype == "fp16")
        assert logged(other, "train/loss")[33] < logged(run_dir, "train/loss")[20]


# ---- torch.amp, one step on two ranks ----


def take_single_steps() -> None:
    """What a rank does for the fixture `steps`: it joins the others as train.py does, and saves what it saw."""
    distributed: Any = importlib.import_module("ddp_project.runtime.process_group")
    config_module: Any = importlib.import_module("ddp_project.config")
    command_line: Any = importlib.import_module("ddp_project.runtime.command_line")
    program: Any = importlib.import_module("train")

    def work(config: Any, world: Any, device: torch.device) -> int:
        seen: dict[str, Any] = {}

        def new_run(name: str, dtype: str, clip_norm: float) -> Any:
            own = replace(config, clip_norm=clip_norm, precision=dtype, run_dir=config.run_dir / name)
            return program.Run(own, world, device)

        for dtype, clip_norm in itertools.product(("fp16", "bf16"), (0.0, 0.5, 1000.0)):
            name = f"step {dtype} {clip_norm}"
            seen[name] = one_step(program, new_run(name, dtype, clip_norm))
            if dtype == "fp16":
                name = f"overflow {clip_norm}"
                seen[name] = overflow_on_one_rank(program, new_run(name, dtype, clip_norm))
        torch.save(seen, f"{os.environ['SEEN']}-{world.rank}.pt")
        return 0

    sys.exit(distributed.run_rank(work, command_line.parse(config_module.Config), distributed.read_world()))


def weights_of(run: Any) -> list[Tensor]:
    """A copy of the weights."""
    return [weight.detach().clone() for weight in run.model.parameters()]


def overflow_on_one_rank(program: Any, run: Any) -> dict[str, Any]:
    """Take a step in which the gradient of rank 1 is infinite before it is reduced, and one more."""
    window = [*next(iter(run.training))]
    finite_before_reduction = []

    def spoil(gradient: Tensor) -> Tensor:
        spoiled = torch.full_like(gradient, math.inf) if torch.distributed.get_rank() == 1 else gradient
        finite_before_reduction.append(bool(spoiled.isfinite().all()))
        return spoiled

    hook = next(run.model.parameters()).register_hook(spoil)
    weights, scales = [weights_of(run)], [run.scaler.get_scale()]
    for _ in range(2):
        program.train_step(run, window, 1e-3)
        weights.append(weights_of(run))
        scales.append(run.scaler.get_scale())
        hook.remove()
    return {"weights": weights, "scales": scales, "finite": finite_before_reduction}


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
    """A copy of all gradients, as one vector."""
    return torch.cat([weight.grad.flatten().clone() for weight in run.model.parameters()])


@pytest.fixture(scope="module")
def steps(project: Render, folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks saw of single steps."""
    env = {"SEEN": str(folder / "seen")}
    train_on_ranks(project(amp="torch"), folder / "steps", env=env, entry=take_single_steps)
    return [torch.load(f"{folder / 'seen'}-{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_an_infinite_gradient_of_one_rank_makes_all_skip_the_step(
    clip_norm: float, steps: list[dict[str, Any]]
) -> None:
    ranks = [seen[f"overflow {clip_norm}"] for seen in steps]
    assert [rank["finite"] for rank in ranks] == [[True], [False]]
    for rank in ranks:
        assert rank["scales"] == [65536, 32768, 32768]
        start, skipped, stepped = rank["weights"]
        assert all(map(torch.equal, start, skipped))
        assert not any(map(torch.equal, skipped, stepped))
    assert all(map(torch.equal, ranks[0]["weights"][2], ranks[1]["weights"][2]))


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
def test_training_and_evaluation_compute_in_the_chosen_type(
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
