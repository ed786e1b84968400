"""Every sample is trained on and evaluated as often as it should be, and metrics are those of one process."""

from itertools import chain
from pathlib import Path

import pytest

from tests import plain_loop as plain
from tests.conftest import Measured, Render
from tests.programs import TELLING, Program, fetched, metrics, run_all

WORLD_SIZES = (1, 2, 3, 4)
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "log_every": 100}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_an_epoch_trains_on_each_sample_once_and_evaluates_each_once(
    world_size: int, small: Render, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_metrics_are_those_of_one_process(
    world_size: int, plain_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    """Without learning, the metrics are those of the first weights, whoever computes them."""
    run_all([[Program(plain_project, tmp_path / "run", OPTIONS | {"lr": 0.0}, world_size)]])
    recorded = metrics(tmp_path / "run")
    used = 119 // 12 * 12
    expected = {
        **{f"train/{name}": value for name, value in plain.evaluate(plain.model(), orders[0][:used]).items()},
        **{f"epoch/train_{name}": value for name, value in plain.evaluate(plain.model(), orders[0][:used]).items()},
        **{f"epoch/validation_{name}": value for name, value in plain.evaluate(plain.model(), range(10)).items()},
    }
    found = {name: recorded[name][0][1] for name in expected}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    largest = max(abs(found[name] - value) / value for name, value in expected.items())
    measured("metrics", f"world size {world_size}", largest)
