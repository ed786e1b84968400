"""A model that is sharded trains as a plain loop and as replicas do; its checkpoints resume on any number of ranks."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Measured, Render
from tests.core.exact.test_processes import CLIP_NORM, OPTIONS, UNEVEN, recipe
from tests.core.exact.test_resume import assert_ends_like, stopped_at
from tests.core.exact.test_world_size import changing
from tests.support import reference
from tests.support.forked_runs import (
    AS_ON_A_GPU,
    SHARDED_MODEL,
    Program,
    metrics,
    owned_by,
    relative_difference,
    run_all,
)
from tests.support.ranks import error_in
from tests.support.training import checkpoint, differences, whole_checkpoint
from tools.rewriting import extend

LATER = 7  # steps after which a run is stopped


def difference(run_dir: Path, expected: Any) -> float:
    return relative_difference(whole_checkpoint(run_dir)["model"], expected)


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_shards_arrive_where_plain_pytorch_does(
    accum_steps: int, sharded_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    options = OPTIONS | {"accum_steps": accum_steps, "log_every": 1}
    further: dict[str, tuple[int, dict[str, Any]]] = {
        "1": (1, {}),
        "2": (2, {}),
        "4": (4, {}),
        "4, --hsdp 2": (4, {"hsdp": 2}),
        "2, --reduce-each": (2, {"reduce_each": True}),
        "2, --no-reshard": (2, {"reshard": False}),
    }
    programs = [
        Program(sharded_project, tmp_path / name, options | more, size) for name, (size, more) in further.items()
    ]
    run_all([[program] for program in programs])
    expected, norms = reference.train(recipe(accum_steps), orders)
    assert min(norms) > CLIP_NORM, "every step is clipped"
    for name in further:
        recorded = dict(metrics(tmp_path / name)["grad_norm"])
        assert recorded == pytest.approx(dict(enumerate(norms, start=1)), rel=1e-4)
        measured("sharded", f"world size {name}, --accum-steps {accum_steps}", difference(tmp_path / name, expected))
        assert difference(tmp_path / name, expected) <= 1e-5, name


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_uneven_counts_of_shards_arrive_there(
    on_a_gpu: bool, sharded_project: Path, orders: list[list[int]], tmp_path: Path
) -> None:
    """With counts and decisions on the device, too, as a GPU has them; clipping would hide a wrong divisor."""
    project = shutil.copytree(sharded_project, tmp_path / "project")
    UNEVEN.apply(project / "ddp_project" / "task.py")
    if on_a_gpu:
        AS_ON_A_GPU.apply(project / "ddp_project" / "runtime" / "optimizer_step.py")
    options = OPTIONS | {"accum_steps": 3, "clip_norm": 0.0}
    programs = [Program(project, tmp_path / str(size), options, size) for size in (1, 2, 4)]
    run_all([[program] for program in programs])
    expected, _ = reference.train(recipe(3, clip_norm=0.0), orders, ignored=0)
    for program in programs:
        assert difference(program.run_dir, expected) <= 1e-6, program.run_dir.name


VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "accumulation, averaged weights": {"accum_steps": 2, "ema_decay": 0.5},
    "float16": {"precision": "fp16"},
    "bfloat16": {"precision": "bf16"},
    "saves in the background": {"async_saves": True, "save_every": 2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_shards_end_as_replicas_do_and_resume_bit_for_bit(
    name: str, small: Any, tmp_path: Path, measured: Measured
) -> None:
    """A network with dropout and BatchNorm on augmented data; the other project has DistributedDataParallel."""
    options = {"global_batch_size": 24, "epochs": 3, "warmup_steps": 2, "log_every": 3} | VARIANTS[name]
    whole = Program(small(logging="csv", parallel="fsdp"), tmp_path / "whole", options)
    replicas = Program(small(logging="csv"), tmp_path / "replicas", options)
    stopped = stopped_at(whole, LATER)
    run_all([[whole], [replicas], stopped])
    assert_ends_like(whole, stopped[-1])
    one, other = whole_checkpoint(whole.run_dir), checkpoint(replicas.run_dir)
    found = relative_difference(one["model"], other["model"])
    measured("replicas", name, found)
    assert found <= 1e-5
    assert one["progress"]["samples_seen"] == other["progress"]["samples_seen"]
    if "ema_decay" in options:
        assert relative_difference(one["update"]["average"], other["update"]["average"]) <= 1e-5


def test_shards_of_four_go_on_with_two_one_and_four_ranks(
    sharded_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    options = OPTIONS | {"accum_steps": 2}
    starts = [
        replace(each, world_size=size)
        for each, size in zip(changing(sharded_project, tmp_path / "changing", options), (4, 2, 1, 4), strict=True)
    ]
    run_all([starts])
    expected, _ = reference.train(recipe(accum_steps=2), orders)
    found = difference(tmp_path / "changing", expected)
    measured("sharded", "4, 2, 1 and 4 ranks in turn", found)
    assert found <= 1e-5


def test_a_damaged_or_missing_shard_gives_way_to_the_checkpoint_before(sharded_project: Path, tmp_path: Path) -> None:
    options = OPTIONS | {"save_every": 3, "keep": 3}
    whole = Program(sharded_project, tmp_path / "whole", options)
    damaged, missing = (
        Program(sharded_project, tmp_path / name, options | {"max_steps": LATER}) for name in ("damaged", "missing")
    )
    run_all([[whole], [damaged], [missing]])
    for program in (damaged, missing):
        shards = checkpoint(program.run_dir)["shards"]
        file = program.run_dir / "checkpoints" / shards["folder"] / sorted(shards["files"])[-1]
        if program is missing:
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
    resumed = [replace(each, options=options | {"resume": None}) for each in (damaged, missing)]
    run_all([[each] for each in resumed])
    for program, words in zip(resumed, ("is damaged: its bytes", "is missing"), strict=True):
        assert differences(whole_checkpoint(whole.run_dir)["model"], whole_checkpoint(program.run_dir)["model"]) == []
        assert words in (program.run_dir / "train.log").read_text()


# Appended to model.py; each line is one of build_model().
CHANGED_MODEL = """

def build_model(config: object, build: Any = build_model) -> nn.Module:
    model = build(config)
    {line}
    return model
"""
# Appended to task.py.
PENALTY = """

def compute(model: Any, batch: Any, config: Any, compute: Any = compute) -> Any:
    means = compute(model, batch, config)
    penalty = sum(weight.abs().sum() for weight in model.parameters())
    return means | {"loss": Mean(means["loss"].sum + penalty, means["loss"].count)}
"""
SECOND_ORDER = """

def compute(model: Any, batch: Any, config: Any, compute: Any = compute) -> Any:
    with torch.enable_grad():
        rows = batch[0].clone().requires_grad_()
        means = compute(model, (rows, *batch[1:]), config)
        [slope] = torch.autograd.grad(means["loss"].sum, rows, create_graph=True)
    return means | {"loss": Mean(means["loss"].sum + slope.square().sum(), means["loss"].count)}
"""
RPROP = """

def build_optimizer(model: Any, config: Any) -> Any:
    return torch.optim.Rprop(model.parameters(), lr=config.lr)
"""
OWN_PART = """

class OwnPart(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["part"] = weight.grad.to_local() * 1
        return super().step(closure)


def build_optimizer(model: Any, config: Any) -> Any:
    return OwnPart(model.parameters(), lr=config.lr)
"""
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "ranks that a copy does not divide": (
        {"hsdp": 3},
        "",
        "--hsdp 3 does not divide the 2 ranks: give a number that does",
    ),
    "a scalar": (
        {},
        "model.scale = nn.Parameter(torch.tensor(1.0))",
        "model.py: ValueError fully_shard doesn't support scalar parameters. Change scale to",
    ),
    "a weight of rank 1": (
        {},
        "model[2].weight.data *= dist.get_rank() + 1",
        "build_model() must return the same model on every rank, and rank 1 has another 2.weight than rank 0",
    ),
    "a weight without values": (
        {},
        "model.to('meta')",
        "model.py: build_model() must give 0.weight values, a lazy one by a batch",
    ),
    "two dtypes in a block": (
        {},
        "model[0].bias.data = model[0].bias.double()",
        "model.py: all weights of a block must have the same dtype",
    ),
    "a penalty on all weights": ({}, PENALTY, "a weight is used outside of the block that gathers it"),
    "gradients of gradients": ({}, SECOND_ORDER, "weights are needed after they were freed"),
    "an optimizer that scatters": ({}, RPROP, "task.py: the optimizer does not work on shards: choose another one"),
    "a state of each rank": ({}, OWN_PART, "differs between ranks, and cannot be saved: make it of the shape"),
    "bfloat16 alone": ({"bf16_weights": True}, "", "--bf16-weights needs --precision bf16, and this run has float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sharded_is_refused_in_one_line(name: str, project: Render, tmp_path: Path) -> None:
    options, change, words = REFUSED[name]
    place = owned_by(project(logging="csv", parallel="fsdp"), SHARDED_MODEL, tmp_path / "project")
    imports = "import torch\nimport torch.distributed as dist\nfrom typing import Any\n"
    if change.startswith("\n"):
        extend(place / "ddp_project" / "task.py", change, imports=imports)
    elif change:
        extend(place / "ddp_project" / "model.py", CHANGED_MODEL.format(line=change), imports=imports)
    [[ended]] = run_all([[Program(place, tmp_path / "run", options, code=2)]])
    assert words in error_in("".join(ended.output))
