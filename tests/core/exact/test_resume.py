"""A run that is stopped anywhere and resumed ends as one that was not, bit for bit."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from generator.check.train.verification import OF_EVALUATIONS
from tests.conftest import Render
from tests.support.forked_runs import TELLING, Program, metrics, run_all, state
from tests.support.projects.ports import PORTS
from tests.support.training import differences
from tools.rewriting import Rewrite

# 119 samples are 9 micro-batches of 12 in an epoch, and 5 steps, the last of one micro-batch alone; the data is
# augmented, and the network has dropout and BatchNorm.
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 3, "warmup_steps": 2, "log_every": 3}
END = 15  # steps
VARIANTS: dict[str, tuple[dict[str, object], dict[str, Any], Sequence[int]]] = {
    # answers, options, and the steps to stop after: the first, the last of an epoch or the one before, and any other
    "float32": ({}, {}, (1, 4, 5, 13)),
    "float32, averaged weights": ({}, {"ema_decay": 0.5}, (4, 7)),
    "float16": ({"amp": "torch"}, {"precision": "fp16"}, (3, 10)),
    "float16, averaged weights": ({"amp": "torch"}, {"precision": "fp16", "ema_decay": 0.5}, (7,)),
}
# Appended to data.py: rank 1 is told to stop while it fetches its n-th micro-batch.
SIGNAL = """

def signalled(self: Dataset[Any], indices: list[int]) -> Any:
    import os
    import signal

    global count
    count += self is sets[0] and len(indices) > 1  # single ones are compared with those of other ranks
    if os.environ["RANK"] == "1" and str(count) == os.environ.get("SIGNAL_AT"):
        count += 1000
        os.kill(os.getpid(), signal.SIGTERM)
    return before_signals(self, indices)


count = 0
before_signals = Subset.__getitems__
Subset.__getitems__ = signalled
"""


def stopped_at(whole: Program, *stops: int) -> list[Program]:
    whole = replace(whole, run_dir=whole.run_dir.with_name("stopped-" + "-".join(map(str, stops))))
    starts = [*(replace(whole, options=whole.options | {"max_steps": stop}) for stop in stops), whole]
    return [starts[0], *(replace(start, options=start.options | {"resume": None}) for start in starts[1:])]


def assert_ends_like(whole: Program, stopped: Program, *, best: bool = False) -> None:
    """Compare all that is saved and recorded. --max-steps ends with evaluations that the whole run does not have."""
    one, other = state(whole.run_dir), state(stopped.run_dir)
    if not best:
        for name in OF_EVALUATIONS:
            one["progress"].pop(name), other["progress"].pop(name)
    assert differences(one, other) == [], stopped.run_dir.name
    records = metrics(stopped.run_dir)
    of_run = {name: values for name, values in metrics(whole.run_dir).items() if not name.startswith("test/")}
    for name, values in of_run.items():  # such an evaluation may choose the best weights, which are tested
        told, expected = ({*map(repr, each)} for each in (records[name], values))  # by its text, NaN is NaN
        assert expected <= told, f"{stopped.run_dir.name}: {name}"
    assert [step for step, _ in records["train/loss"]] == sorted({step for step, _ in records["train/loss"]})


def assert_stops_in_turn_change_nothing(whole: Program, *stops: int) -> None:
    """Compare a run with one that is stopped after each of some steps, and resumed each time."""
    stopped = stopped_at(whole, *stops)
    run_all([[whole], stopped])
    assert_ends_like(whole, stopped[-1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_after_some_steps_it_ends_the_same(variant: str, small: Render, tmp_path: Path) -> None:
    answers, options, stops = VARIANTS[variant]
    assert_stops_change_nothing(small(logging="csv", **answers), options, stops, tmp_path)


@pytest.mark.parametrize("port", ["packed_sequences", "sets_with_state"])
def test_a_task_unlike_those_of_the_template_ends_the_same(port: str, own_project: Render, tmp_path: Path) -> None:
    """An evaluation at each stop draws random numbers, which must not change those of the training."""
    project = own_project(logging="csv")
    PORTS[port](project)
    options: dict[str, Any] = {"global_batch_size": 144, "accum_steps": 2, "epochs": 2, "ema_decay": 0.5}
    if port == "sets_with_state":
        options["folder"] = tmp_path / "digits"
    assert_stops_in_turn_change_nothing(Program(project, tmp_path / "whole", options), 1, 4, 7)


def assert_stops_change_nothing(
    project: Path, options: dict[str, Any], stops: Sequence[int], folder: Path, stopped_project: Path | None = None
) -> None:
    """Compare a run with those that are stopped after each of some steps and resumed, in this project or another."""
    whole = Program(project, folder / "whole", OPTIONS | options)
    sequences = [stopped_at(replace(whole, project=stopped_project or project), stop) for stop in stops]
    run_all([[whole], *sequences])
    for programs in sequences:
        assert_ends_like(whole, programs[-1])


def test_a_batch_that_is_fetched_ahead_changes_nothing(small: Render, tmp_path: Path) -> None:
    """As workers let GPUs do it: in the middle of an epoch, before its last step, and at its end."""
    plain = small(logging="csv")
    ahead = shutil.copytree(plain, tmp_path / "ahead")
    ahead_of_time = Rewrite("self.copies", "True", "PrefetchLoader.__iter__")
    ahead_of_time.apply(ahead / "ddp_project" / "runtime" / "data_loading.py")
    assert_stops_change_nothing(plain, {"workers": 2}, (4, 5, 7), tmp_path, stopped_project=ahead)


def test_a_signal_to_one_rank_changes_nothing(small: Render, tmp_path: Path) -> None:
    """In the first micro-batch of a run, in the second one of a step, and in the last of an epoch and of the run."""
    assert_signals_change_nothing(small(TELLING + SIGNAL, logging="csv"), (1, 4, 9, 27), tmp_path)


def assert_signals_change_nothing(project: Path, micro_batches: Sequence[int], folder: Path) -> None:
    """Compare a run with those in which rank 1 is told to stop in each of some micro-batches.

    Nothing is evaluated where they stop, so here the best accuracy and all records are the same, too.
    """
    whole = Program(project, folder / "whole", OPTIONS)
    sequences = []
    for micro_batch in micro_batches:
        saving = replace(whole, run_dir=folder / f"signalled-{micro_batch}", options=OPTIONS | {"save_every": 1})
        first = replace(saving, code=75, env={"SIGNAL_AT": str(micro_batch)})
        sequences.append([first, replace(saving, options=saving.options | {"resume": None})])
    run_all([[whole], *sequences])
    for programs in sequences:
        assert_ends_like(whole, programs[-1], best=True)
        assert metrics(programs[-1].run_dir) == metrics(whole.run_dir)
