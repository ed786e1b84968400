"""Steps with inf or NaN on one rank are left out by all, reach no checkpoint, and end the run where they go on."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Measured, Render
from tests.support.forked_runs import AS_ON_A_GPU, Program, ends_of, run_all, words
from tests.support.ranks import assert_same_state, error_in, train_on_ranks
from tests.support.training import EXACTLY, HAS_GPU, checkpoint, differences
from tools.rewriting import Rewrite, extend

# Appended to data.py: some training batches of the first epoch hold a number that is not finite.
SPOILING = '''

def spoiled(self: Digits, indices: list[int]) -> Any:
    """Spoil the batches of the steps that SPOILED names, on these ranks: not the samples compared at the start."""
    images, labels = fetched(self, indices)
    ranks, steps, bad = os.environ["SPOILED"].split()
    step = place[indices[0]] // 64 + 1
    chosen = os.environ["RANK"] in ranks.split(",") and str(step) in steps.split(",")
    if self.augment and chosen and len(indices) > 1:
        images[0, 0, 0, 0] = float(bad)
    return images, labels


place = {sample: i for i, sample in enumerate(Permutation(1437, 0, 0)[np.arange(1437)].tolist())}
fetched = Digits.__getitems__
Digits.__getitems__ = spoiled
'''
IMPORTS = "import os\nfrom typing import Any\nfrom .runtime.permutation import Permutation\n"
OPTIONS = {"epochs": 1, "save_every": 1, "keep": 99, "log_every": 1}
STEPS = 22  # of the epoch
BAD_STEPS = (3, 9, 10)
LAST_GOOD = 4  # where all steps after it are bad
SGD = '__import__("torch").optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=False)'
# Batches with a negative number do not count, as those of padding alone.
COUNTED = Rewrite('"loss": Mean($X, $Y)', '"loss": Mean($X * (images.min() >= 0), $Y * (images.min() >= 0))', "compute")
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {  # the optimizer, what the project is, and the precision
    "float32": ("", {}, "float32"),
    "float32, decided on the device": ("", {"on_device": True}, "float32"),
    "bfloat16": ("", {}, "bf16"),
    "float16": ("", {}, "fp16"),
    "an optimizer that is not fused": (SGD, {}, "float32"),
    "float16, an optimizer that is not fused": (SGD, {}, "fp16"),
}


@pytest.fixture
def program(own_project: Render, tmp_path: Path) -> Any:
    """Return a program whose data is bad at the start, for some answers and an optimizer."""

    def get(optimizer: str = "", *, on_device: bool = False, **answers: object) -> Program:
        project = own_project(**answers)
        extend(project / "ddp_project" / "data.py", SPOILING, imports=IMPORTS)
        if optimizer:
            Rewrite("AdamW($$$A)", optimizer).apply(project / "ddp_project" / "task.py")
        if on_device:
            AS_ON_A_GPU.apply(project / "ddp_project" / "runtime" / "optimizer_step.py")
        return Program(project, tmp_path / "run", OPTIONS)

    return get


def spoiled(program: Program, ranks: str, steps: tuple[int, ...], bad: str = "nan") -> Program:
    """The program, in a run directory of its own, with a bad number at these steps."""
    told = f"{ranks} {','.join(map(str, steps))} {bad}"
    run_dir = program.run_dir.with_name(f"run-{ranks}-{len(steps)}-{bad}".replace(",", "-"))
    return replace(program, run_dir=run_dir, env={"SPOILED": told})


def saved(program: Program) -> list[dict[str, Any]]:
    files = sorted((program.run_dir / "checkpoints").glob("step-*.pt"))
    return [checkpoint(program.run_dir, file.name) for file in files]


def all_finite(value: Any) -> bool:
    """Whether all numbers of a nested value are finite; the best metric is NaN until the first evaluation."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, dict):
        return all(all_finite(each) for key, each in value.items() if key != "best")
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    return not isinstance(value, float) or abs(value) < float("inf")


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_bad_steps_leave_no_trace(name: str, program: Any, measured: Measured) -> None:
    optimizer, answers, precision = VARIANTS[name]
    base = replace(program(optimizer, **answers), options=OPTIONS | {"precision": precision})
    runs = [spoiled(base, ranks, BAD_STEPS) for ranks in ("0", "1")]
    if not HAS_GPU:  # where each start takes long
        runs += [spoiled(base, "0,1", BAD_STEPS), spoiled(base, "1", BAD_STEPS, "inf")]
    for run in runs:
        train_on_ranks(run.project, run.run_dir, *EXACTLY, *words(run.options), env=run.env)
    first, *others = [saved(run) for run in runs]
    for one in (first, *others):
        assert len(one) == STEPS
        assert all_finite(one), "a checkpoint has a bad number"
        # Whose numbers were bad, and how, is of no account: the step has happened on no rank.
        assert_same_state(one[-1], first[-1], "model", "optimizer", "ranks")
        for step in BAD_STEPS:
            assert differences(one[step - 2]["model"], one[step - 1]["model"]) == [], "the step has left a trace"
            assert differences(one[step - 2]["optimizer"]["state"], one[step - 1]["optimizer"]["state"]) == []
        assert differences(one[-2]["model"], one[-1]["model"]) != [], "good steps are taken"
    for run in runs:
        log = (run.run_dir / "train.log").read_text()
        for step in BAD_STEPS:
            assert f"step {step}  steps left out, since their gradients were not finite: 1" in log
        assert precision == "fp16" or log.count("steps left out") == len(BAD_STEPS), "float16 may overflow by itself"
        assert "done: " in log
    measured("finite", f"{name}: checkpoints with a bad number, of {len(runs) * STEPS}", 0)


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_gpu_leaves_out_a_step_in_which_nothing_counts(precision: str, program: Any) -> None:
    """Its gradients are finite until they are divided by the count, after the scaler has looked at them."""
    base = program(on_device=True, amp="torch" if precision == "fp16" else "none")
    COUNTED.apply(base.project / "ddp_project" / "task.py")
    run = spoiled(replace(base, options=OPTIONS | {"precision": precision}), "0,1", BAD_STEPS, "-1")
    run_all([[run]])
    steps = saved(run)
    assert len(steps) == STEPS
    assert all_finite(steps)
    taken = [differences(one["model"], other["model"]) != [] for one, other in pairwise(steps)]
    assert [number for number, good in enumerate(taken, start=2) if not good] == [*BAD_STEPS], "no other is left out"


def test_a_stop_changes_nothing_of_it(program: Any) -> None:
    whole = spoiled(program(), "1", BAD_STEPS)
    stopped = replace(whole, run_dir=whole.run_dir.with_name("stopped"))
    starts = [replace(stopped, options=OPTIONS | {"max_steps": stop, "log_every": 7}) for stop in (3, 9)]
    starts += [replace(stopped, options=OPTIONS | {"resume": None})]
    starts[1] = replace(starts[1], options=starts[1].options | {"resume": None})
    run_all([[replace(whole, options=OPTIONS | {"log_every": 7})], starts])
    assert_same_state(checkpoint(whole.run_dir), checkpoint(stopped.run_dir), "model", "optimizer", "ranks")


@pytest.mark.parametrize("answers", [{}, {"amp": "torch"}], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("allowed", [1, 5])
def test_a_run_of_bad_steps_alone_ends_and_names_the_last_good_checkpoint(
    allowed: int, answers: dict[str, Any], program: Any, measured: Measured
) -> None:
    run = spoiled(program(**answers), "1", tuple(range(LAST_GOOD + 1, STEPS + 1)))
    run = replace(run, code=65, options=OPTIONS | {"max_bad_steps": allowed})
    [[ended]] = run_all([[run]])
    error = error_in(ended.output)
    last = LAST_GOOD + allowed
    newest = run.run_dir / "checkpoints" / f"step-{last - 1:08d}.pt"
    assert f"the gradients of {allowed} steps in a row, up to step {last}, were not finite: {newest}" in error
    assert [each["progress"]["step"] for each in saved(run)] == [*range(1, last)]
    assert all_finite(saved(run))
    measured("finite", f"the run ends after bad steps in a row, with --max-bad-steps {allowed}", last - LAST_GOOD)


def test_weights_that_are_not_finite_are_not_saved(program: Any) -> None:
    options = {"epochs": 1, "save_every": 5, "lr": 1e39, "warmup_steps": 0}
    run = replace(spoiled(program(), "1", (0,)), code=65, options=options)
    [[ended]] = ends_of([[run]])
    assert ended.codes == [65, 65], ended.output
    assert "error: weights are not finite after step 5: there is no checkpoint yet" in "".join(ended.output)
    assert not (run.run_dir / "checkpoints").exists()
