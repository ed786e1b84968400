"""Runs on streams: any number of ranks and workers equals one, and a stop after any step changes no bit."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Measured, Render
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.support import reference
from tests.support.forked_runs import Program, ends_of, metrics, owned_by, relative_difference, run_all
from tests.support.ranks import errors_in
from tests.support.training import checkpoint, whole_checkpoint
from tools.rewriting import extend

# 45 samples in shards of unequal sizes, of which two are empty, and 7 to evaluate on: with 12 samples in a batch, an
# epoch ends with batches that have fewer, and some ranks have none.
DATA = f"""
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

from .runtime import Data, Stream

SIZES = [0, 9, 1, 20, 0, 2, 3, 10]


class Counting:
    place = 0

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is None  # else it would deal itself out, as many iterables do
        while self.place < 45:
            self.place += 1
            yield sample(self.place - 1)

    def state_dict(self) -> dict[str, int]:
        return {{"place": self.place}}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def sample(number: int) -> Any:
    rng = torch.Generator().manual_seed(number)
    return torch.randn({reference.FEATURES}, generator=rng), torch.randint(0, {reference.CLASSES}, (), generator=rng)


def read(shard: int) -> Iterable[Any]:
    return map(sample, range(sum(SIZES[:shard]), sum(SIZES[: shard + 1])))


def load_data(config: object) -> Data:
    evaluation = {{"validation": Stream([3, 0, 5, 2], read), "more": Stream([2], read)}}
    return Data(train=STREAM, evaluation=evaluation, test=Stream([5, 6], read))
"""
STREAMS = {"shards": "Stream(range(8), read, shuffle=9)", "an iterable": "Counting()"}
OPTIONS: dict[str, Any] = {"global_batch_size": 12, "steps": 13, "warmup_steps": 2, "log_every": 3, "lr": 0.01}
# Ranks and options.
OTHERS: list[tuple[int, dict[str, Any]]] = [
    (2, {}),
    (4, {"workers": 1}),
    (2, {"accum_steps": 3, "workers": 2}),
    (3, {"accum_steps": 2}),
]


@pytest.fixture(params=STREAMS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def with_stream(kind: str, project: Path, place: Path) -> Path:
    shutil.copytree(project, place)
    (place / "ddp_project" / "data.py").write_text(DATA.replace("STREAM", STREAMS[kind]))
    return place


@pytest.fixture
def streaming(kind: str, plain_project: Path, tmp_path: Path) -> Path:
    return with_stream(kind, plain_project, tmp_path / "project")


def test_any_number_of_ranks_and_workers_ends_where_one_does(
    kind: str, streaming: Path, sharded_project: Path, tmp_path: Path, measured: Measured
) -> None:
    """Also with shards, on four ranks of which some have no samples."""
    alone = Program(streaming, tmp_path / "alone", OPTIONS, world_size=1)
    others = [
        replace(alone, run_dir=tmp_path / str(place), options=OPTIONS | more, world_size=ranks)
        for place, (ranks, more) in enumerate(OTHERS)
    ]
    sharded = with_stream(kind, sharded_project, tmp_path / "sharded_project")
    others.append(Program(sharded, tmp_path / "sharded", OPTIONS | {"accum_steps": 3}, world_size=4))
    run_all([[each] for each in (alone, *others)])
    expected, records = checkpoint(alone.run_dir), metrics(alone.run_dir)
    for other in others:
        saved = whole_checkpoint(other.run_dir)
        assert relative_difference(saved["model"], expected["model"]) < 1e-5, other.run_dir.name
        for name in ("epoch", "samples_in_epoch", "samples_seen", "stream"):
            assert saved["progress"][name] == expected["progress"][name], name
        for name, values in metrics(other.run_dir).items():
            assert dict(values) == pytest.approx(dict(records[name]), rel=1e-5), name
    if "stream" in expected["progress"]:
        measured("streams", "samples of two epochs, once each", expected["progress"]["samples_seen"])


# Appended to task.py: what a rank without samples must leave as it is, and what a single sample lacks.
WITH_OTHERS = """

def compute(model, batch, config, compute=compute):
    means = compute(model, batch, config)
    number = reduce_tensor(torch.tensor(float(len(batch[1]))), "sum")
    spread = model(batch[0]).std(dim=0).mean()
    loss = Mean(means["loss"].sum + spread * len(batch[1]), len(batch[1]))
    return means | {"loss": loss, "in_batch": Mean(number * len(batch[1]), len(batch[1]))}
"""
TWO_SHARDS = """
from .runtime import Data, Stream


def load_data(config):
    def read(shard):
        rng = torch.Generator().manual_seed(shard)
        return ((torch.randn(FEATURES, generator=rng), torch.tensor(shard)) for _ in range([20, 4][shard]))

    return Data(train=Stream([0, 1], read), evaluation=Stream([0], read))
"""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_rank_without_samples_changes_nothing(parallel: str, project: Render, tmp_path: Path) -> None:
    place = owned_by(project(logging="csv", parallel=parallel), reference.BATCH_NORM_MODEL, tmp_path / "project")
    code = TWO_SHARDS.replace("FEATURES", str(reference.FEATURES))
    (place / "ddp_project" / "data.py").write_text(f"import torch\n{code}")
    extend(place / "ddp_project" / "task.py", WITH_OTHERS, imports="import torch\nfrom .runtime import reduce_tensor\n")
    program = Program(place, tmp_path / "run", OPTIONS | {"global_batch_size": 8, "steps": 4, "log_every": 1})
    run_all([[program]])
    assert "left out" not in (program.run_dir / "train.log").read_text()
    assert [dict(metrics(program.run_dir)["train/in_batch"])[step] for step in range(1, 5)] == [8, 4, 4, 4]
    batches = whole_checkpoint(program.run_dir)["ranks"]["buffers"]["1.num_batches_tracked"]
    assert batches.tolist() == [8, 2], "each counts twice"


def test_one_sample_is_too_few_for_batch_norm(project: Render, tmp_path: Path) -> None:
    place = owned_by(project(logging="csv"), reference.BATCH_NORM_MODEL, tmp_path / "project")
    code = TWO_SHARDS.replace("FEATURES", str(reference.FEATURES)).replace("[20, 4]", "[20, 5]")
    (place / "ddp_project" / "data.py").write_text(f"import torch\n{code}")
    program = Program(place, tmp_path / "run", OPTIONS | {"global_batch_size": 8})
    [[ended]] = ends_of([[program]])
    assert 2 in ended.codes
    assert any("BatchNorm cannot train on one sample" in error for error in errors_in(ended.output))


def test_stopped_after_some_steps_it_ends_the_same(kind: str, streaming: Path, tmp_path: Path) -> None:
    assert_stops_of_streams_change_nothing(streaming, tmp_path, range(1 if kind == "shards" else 3, 13, 4))


def assert_stops_of_streams_change_nothing(streaming: Path, folder: Path, stops: Iterable[int]) -> None:
    """Compare a run with those that are stopped after each of some steps and resumed."""
    whole = Program(streaming, folder / "whole", OPTIONS | {"workers": 1})
    sequences = [stopped_at(whole, stop) for stop in stops]
    run_all([[whole], *sequences])
    for programs in sequences:
        assert_ends_like(whole, programs[-1])
