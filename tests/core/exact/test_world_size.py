"""A run goes on with another number of processes: on the same samples, in the same order."""

import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from tests.conftest import Measured, Render
from tests.core.exact.test_processes import OPTIONS as PLAIN_OPTIONS
from tests.core.exact.test_processes import recipe
from tests.support import reference
from tests.support.forked_runs import TELLING, Program, fetched, relative_difference, run_all
from tests.support.ranks import error_in
from tests.support.training import checkpoint
from tools.rewriting import extend

OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 3}
# Which number of processes goes on up to which step: in the middle of the first epoch, at its end, and so on.
CHANGES = [(2, 3), (1, 5), (4, 9), (2, 15)]


def changing(project: Path, run_dir: Path, options: dict[str, Any]) -> list[Program]:
    starts = [Program(project, run_dir, options | {"max_steps": until}, world_size) for world_size, until in CHANGES]
    return [starts[0], *(replace(start, options=start.options | {"resume": None}) for start in starts[1:])]


def test_changing_sizes_train_on_the_same_samples_and_arrive_there(
    plain_project: Path, orders: list[list[int]], tmp_path: Path, measured: Measured
) -> None:
    """Also, these samples are those of the formula in the sampler's docstring."""
    project = shutil.copytree(plain_project, tmp_path / "project")
    extend(project / "ddp_project" / "data.py", TELLING)
    options = PLAIN_OPTIONS | {"accum_steps": 2}
    undisturbed = Program(project, tmp_path / "undisturbed", options)
    [[whole], parts] = run_all([[undisturbed], changing(project, tmp_path / "changing", options)])
    in_turn = [*chain(*map(micro_batches, parts))]
    assert in_turn == micro_batches(whole)
    assert in_turn == [order[start : start + 12] for order in orders for start in range(0, 108, 12)]
    measured("world_size", "samples in the same order on 2, 1, 4 and 2 processes", len([*chain(*in_turn)]))
    saved = checkpoint(tmp_path / "changing")
    assert (saved["progress"]["epoch"], saved["progress"]["samples_seen"]) == (3, 3 * 108)
    expected, _ = reference.train(recipe(accum_steps=2), orders)
    difference = relative_difference(saved["model"], expected)
    measured("world_size", "largest relative difference of a weight to a plain loop", difference)
    assert difference <= 1e-5


def micro_batches(ended: Any) -> list[list[int]]:
    """The samples of each micro-batch over all ranks, in the order of the ranks."""
    return [[*chain(*ranks)] for ranks in zip(*fetched(ended), strict=True)]


def test_dropout_draws_others_on_other_processes(plain_project: Path, tmp_path: Path, measured: Measured) -> None:
    """What cannot be the same, bit for bit or up to rounding: the page says so."""
    project = shutil.copytree(plain_project, tmp_path / "project")
    with_dropout = reference.MODEL.replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.5)")
    (project / "ddp_project" / "model.py").write_text(with_dropout)
    run_all([[Program(project, tmp_path / "undisturbed", OPTIONS)], changing(project, tmp_path / "changing", OPTIONS)])
    one, other = (checkpoint(tmp_path / name)["model"] for name in ("undisturbed", "changing"))
    difference = relative_difference(one, other)
    measured("world_size", "the same with dropout, to a run on 2 processes", difference)
    assert difference > 1e-3


def test_a_global_batch_that_cannot_be_split_is_refused(small: Render, tmp_path: Path) -> None:
    first = Program(small(), tmp_path / "run", OPTIONS | {"max_steps": 2})
    refused = [Program(small(), tmp_path / "run", OPTIONS | {"resume": None}, size, code=2) for size in (7, 16)]
    [[_, *ends]] = run_all([[first, *refused]])
    said = ["14 or 28 would do, or a world size of 6 or 12", "32 would do, or a world size of 12"]
    for program, ended, words in zip(refused, ends, said, strict=True):
        error = error_in(ended.output)
        assert f"--global-batch-size 24 is no multiple of {2 * program.world_size}" in error
        assert words in error
    assert checkpoint(tmp_path / "run")["progress"]["step"] == 2
