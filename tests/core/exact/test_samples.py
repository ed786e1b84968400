"""Every sample is trained on and evaluated as often as it should be, and metrics are those of one process."""

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.support import reference
from tests.support.forked_runs import TELLING, Program, fetched, metrics, run_all

WORLD_SIZES = (1, 2, 3, 4)
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "log_every": 100}
# Appended to data.py: a rank prints when a forward pass of the training begins, and when a step has been taken.
WORKING = """

def at_forward(module: Any, batch: Any) -> None:
    if type(module).__name__ == "DistributedDataParallel":
        print("forward", flush=True)


from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
register_module_forward_pre_hook(at_forward)
register_optimizer_step_post_hook(lambda *_: print("step", flush=True))
"""


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_epoch_trains_on_and_evaluates_each_sample_once(world_size: int, small: Render, tmp_path: Path) -> None:
    [[ended]] = run_all([[Program(small(TELLING), tmp_path / "run", OPTIONS, world_size)]])
    trained = fetched(ended)
    micro_batches = 119 // 12
    for epoch in range(2):
        own = [batches[epoch * micro_batches : (epoch + 1) * micro_batches] for batches in trained]
        assert {len(batch) for rank in own for batch in rank} == {12 // world_size}
        samples = [*chain(*chain(*own))]
        assert len(samples) == len(set(samples)) == micro_batches * 12
        assert set(samples) <= set(range(119))
    evaluated = [*chain(*chain(*fetched(ended, "validation")))]
    assert sorted(evaluated) == sorted([*range(10)] * 2), "ten samples, in each of two evaluations"


def test_a_micro_batch_is_loaded_when_the_one_before_is_done(small: Render, tmp_path: Path) -> None:
    """So a step needs the memory of one of its micro-batches, not of all."""
    projects = [small(TELLING + WORKING, amp=amp) for amp in ("none", "torch", "apex")]
    ends = run_all([[Program(each, tmp_path / str(i), OPTIONS)] for i, each in enumerate(projects)])
    two, one = ["fetched training", "forward"] * 2 + ["step"], ["fetched training", "forward", "step"]
    for [ended] in ends:
        for output in ended.output:
            assert re.findall("^(?:fetched training|forward|step$)", output, re.MULTILINE) == 2 * (4 * two + one)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_metrics_are_those_of_one(
    world_size: int, plain_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    """Without learning, the metrics are those of the first weights, whoever computes them."""
    run_all([[Program(plain_project, tmp_path / "run", OPTIONS | {"lr": 0.0}, world_size)]])
    recorded = metrics(tmp_path / "run")
    trained = reference.evaluate(reference.model(), orders[0][: 119 // 12 * 12])
    validated = reference.evaluate(reference.model(), range(10))
    kinds = {"train/": trained, "epoch/train_": trained, "epoch/validation_": validated}
    expected = {f"{kind}{name}": value for kind, means in kinds.items() for name, value in means.items()}
    found = {name: recorded[name][0][1] for name in expected}
    assert found == pytest.approx(expected, rel=1e-6)
    largest = max(abs(found[name] - value) / value for name, value in expected.items())
    measured("metrics", f"world size {world_size}", largest)
