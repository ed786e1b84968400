"""What the training loop costs and reports: its collectives, its memory and the layout of numbers in it."""

import copy
import importlib
import os
import random
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.simulated import one_of, progress_of
from tests.conftest import Package, Render
from tests.support.ranks import (
    collectives_of_an_epoch,
    gradients_beside_buckets,
    names,
    on_two_ranks,
    project_module,
    run_train,
    train_on_ranks,
)
from tests.support.training import checkpoint


def test_one_reduction_a_step_and_one_a_report(project: Render, tmp_path: Path) -> None:
    # 1,437 samples in micro-batches of 16 are 89, in windows of 3 are 30 steps; reports after 7, 14, 21, 28 and 30.
    chosen = {"run_dir": tmp_path / "run", "global_batch_size": 48, "accum_steps": 3, "log_every": 7}
    for counted in on_two_ranks(collectives_of_an_epoch, tmp_path, project(), chosen, forked=True):
        # The others come once: DDP agrees on the order of its buckets, and the ranks on the names of the metrics.
        assert counted == {"gloo:all_reduce": 30 + 5, "gloo:broadcast": 2, "gloo:all_gather": 2}


def test_gradients_of_micro_batches_take_no_memory_beside_ddps_buckets(project: Render, tmp_path: Path) -> None:
    chosen = {"run_dir": tmp_path, "global_batch_size": 360, "accum_steps": 3}
    for found in on_two_ranks(gradients_beside_buckets, tmp_path, project(), chosen, forked=True):
        assert found["in buckets"] == 0
        assert found["fresh"] > 0.9 * found["weights"], "those of micro-batches before the last one"


def test_channels_last_changes_the_layout_alone(project: Render, tmp_path: Path) -> None:
    assert_the_layout_may_change(project(), tmp_path)


def assert_the_layout_may_change(project: Path, tmp_path: Path, *options: str) -> None:
    """Change it at a resume; a fused optimizer pairs weights and moments by their place in memory."""
    train_on_ranks(project, tmp_path / "first", *options, "--max-steps", "13")
    source = str(tmp_path / "first" / "checkpoints" / "last.pt")
    for option in ("--channels-last", "--no-channels-last"):
        train_on_ranks(project, tmp_path / option, *options, "--resume", source, "--max-steps", "14", option)
    changed, same = (checkpoint(tmp_path / option)["model"] for option in ("--channels-last", "--no-channels-last"))
    for name, weight in same.items():
        torch.testing.assert_close(changed[name], weight, rtol=1e-4, atol=1e-5)
        if weight.ndim == 4 and weight.shape[1] > 1:
            layouts = [each[name].is_contiguous(memory_format=torch.channels_last) for each in (changed, same)]
            assert layouts == [True, False]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_metrics_have_the_peak_memory_of_a_gpu(
    on_gpu: bool, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda: 3 * 2**29)
    reporting = package("runtime.reporting")
    reporting.START.on_gpu = on_gpu
    recorded: list[dict[str, float]] = []
    with one_of(1):
        config, world = package("config").Config(run_dir=tmp_path), reporting.DistEnv(0, 0, 1, 1)
        progress = progress_of(package, config)
        parts = {"update": SimpleNamespace(ddp=None)}
        checkpoints = SimpleNamespace(progress=progress, model=torch.nn.Linear(1, 1), parts=parts, seconds=0.0)
        reporter = reporting.Reporter(config, world, checkpoints, ["validation"])
        monkeypatch.setattr(reporter.tracker, "log", lambda step, metrics: recorded.append(metrics))
        reporter.throughput.begin(SimpleNamespace(waited=0.0, counter=nullcontext()), progress)
        reporter.log_training(progress, {})
    assert recorded[0].get("peak_memory_gib") == (1.5 if on_gpu else None)


@dataclass
class Setting:
    epochs: int
    steps: int  # of an epoch
    log_every: int | str  # steps, or with a unit
    eval_every: int | str  # epochs, or with a unit
    save_every: int | str  # steps, or with a unit; each step takes a minute
    max_steps: int
    patience: int
    in_steps: int  # length of the run in place of the epochs

    @classmethod
    def random(cls, numbers: random.Random) -> "Setting":
        epochs, steps = (numbers.randint(1, most) for most in (4, 9))
        log_every = numbers.choice((1, 2, 3, 4, 5, 6, "3steps", "1epochs", "2epochs"))
        eval_every = numbers.choice((1, 2, 3, "2epochs", "1steps", "4steps", "7steps"))
        save_every = numbers.choice((0, 1, 3, "4steps", "1epochs", "2epochs", "1min", "5min"))
        max_steps, patience = numbers.choice((0, 0, 5, 11)), numbers.choice((0, 0, 1, 2))
        in_steps = numbers.choice((0, 0, 0, 7, 12))
        return cls(epochs, steps, log_every, eval_every, save_every, max_steps, patience, in_steps)

    def is_over(self, interval: int | str, unit: str, step: int) -> bool:
        """Return whether so many steps, or so many whole epochs, are over after a step."""
        named = str(interval).lstrip("0123456789") or unit
        number = int(str(interval).removesuffix(named))
        return number > 0 and step % (number * (self.steps if named == "epochs" else 1)) == 0


class Clock:
    """One that only sleep() moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def quality(step: int) -> float:
    return step * 104729 % 97 / 97


def nested_loops(setting: Setting) -> list[tuple[Any, ...]]:
    """What a run records and saves, by loops over epochs and their steps."""
    events: list[tuple[Any, ...]] = []
    step, best, since_best, recent, saved = 0, -1.0, 0, 0, 0
    for epoch in range(1, 1 + (setting.in_steps or setting.epochs)):
        for place in range(1, setting.steps + 1):
            step, recent = step + 1, recent + step + 1
            out = step in (setting.max_steps, setting.in_steps)
            last = place == setting.steps and "epochs" not in str(setting.log_every)
            recorded = last or out or setting.is_over(setting.log_every, "steps", step)
            if recorded:
                events.append(("record", step, recent))
                recent = 0
            complete = not setting.in_steps and step == setting.epochs * setting.steps
            evaluated = out or complete or setting.is_over(setting.eval_every, "epochs", step)
            if evaluated:
                since_best = 0 if quality(step) > best else since_best + 1
                best = max(best, quality(step))
                events.append(("evaluation", step, epoch))
            if str(setting.save_every).endswith("min"):  # the ranks look at the clock where they reduce
                reduced = recorded or evaluated or place == setting.steps
                due = reduced and step - saved >= int(str(setting.save_every).removesuffix("min"))
                saved = step if due else saved
            else:
                due = setting.is_over(setting.save_every, "steps", step)
            if evaluated or due:
                events.append(("save", step, evaluated and since_best == 0))
            if out or 0 < setting.patience <= since_best:
                return events
    return events


def flat_loop(setting: Setting, package: Package, train: Any, saved: Any, signal: int | None) -> Any:
    """What main() of train.py records and saves from a checkpoint on, its last one, and its exit code."""
    data_loading, metrics = package("runtime.data_loading"), package("runtime.metrics")
    options = {name: value for name, value in vars(setting).items() if name not in ("steps", "in_steps")}
    config = package("config").Config(**options, steps=setting.in_steps, global_batch_size=2, workers=0)
    world = package("runtime.launcher").DistEnv(0, 0, 1, 1)
    sampler = package("runtime.sampling").ResumableDistributedSampler(2 * setting.steps + 1, 2, world, 0)
    events: list[tuple[Any, ...]] = []
    own: list[int] = []
    progress = metrics.Progress(config, sampler)
    if saved:
        progress.load_state_dict(saved)

    def reduce(_: bool, timed_save: bool, *skipped: Any) -> tuple[Any, list[float]]:
        total = metrics.Mean(float(sum(own)), 1.0)
        own.clear()
        return {"loss": total}, [signal is not None and progress.step >= signal, timed_save, 0, 0]

    def log(progress: Any, numbers: Any) -> None:
        events.append(("record", progress.step, progress.take_recent()["loss"].sum))

    def evaluated(progress: Any, totals: Any) -> None:
        events.append(("evaluation", progress.step, progress.epoch + 1))
        progress.add_evaluation({"accuracy": quality(progress.step)}, "accuracy", higher=True)

    def save(*, wait: bool = False) -> None:
        nonlocal saved
        saved = copy.deepcopy(progress.state_dict())
        if not wait:
            events.append(("save", progress.step, progress.is_best_step()))

    def train_step(run: Any, micro_batches: Any) -> None:
        metrics.time.sleep(60)
        own.append(progress.step + 1)
        progress.advance(micro_batches.samples, 0.1)

    training = data_loading.TrainingLoader([0] * sampler.samples, sampler, config, torch.device("cpu"))
    run = SimpleNamespace(config=config, progress=progress, training=training, model=torch.nn.Identity())
    run.sums = SimpleNamespace(reduce=reduce)
    run.evaluation = run.test = run.device = None
    run.update = SimpleNamespace(skipped_steps=[0, 0], report=lambda *_: None, evaluating=nullcontext, numbers=dict)
    run.reporter = mock.MagicMock(progress_bar=lambda steps: steps.steps_from(progress), log_training=log)
    run.reporter.log_evaluation = evaluated
    run.checkpoints = SimpleNamespace(save=save, complete=lambda: None, advice=str)
    run.stop = SimpleNamespace(received=False, agreed=False, leave=lambda step: 75)
    with mock.patch.multiple(train, Run=lambda *_: run, train_step=train_step, evaluate=mock.Mock()):
        code = train.main(config, None, None)
    return events, saved, code


def without_saves(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """All but those that --save-every asks for: a stop saves in their place."""
    return [event for event in events if event[0] != "save" or event[2]]


def test_the_flat_loop_does_what_nested_loops_do_and_so_do_its_parts(
    package: Package, project: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has settings at random, and stops at random steps."""
    monkeypatch.syspath_prepend(project())
    for name in ("train", "evaluate"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    train, numbers = importlib.import_module("train"), random.Random(1)
    monkeypatch.setattr(package("runtime.metrics"), "time", Clock())
    for _ in range(200):
        setting = Setting.random(numbers)
        expected = nested_loops(setting)
        assert flat_loop(setting, package, train, None, None)[0] == expected, setting
        events: list[tuple[Any, ...]] = []
        saved, code = None, 75
        while code == 75:
            signal = (saved["step"] if saved else 0) + numbers.randint(1, 9) if len(events) < 40 else None
            more, saved, code = flat_loop(setting, package, train, saved, signal)
            events += more
        assert without_saves(events) == without_saves(expected), setting


def test_a_save_by_minutes_is_due_once_after_each(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, world = package("runtime.metrics"), package("runtime.launcher").DistEnv(0, 0, 1, 1)
    now = 1000.0
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now))
    sampler = package("runtime.sampling").ResumableDistributedSampler(10, 2, world, 0)
    progress = metrics.Progress(package("config").Config(save_every="10min"), sampler)
    due = []
    for seconds in (599, 1, 1, 599, 601):
        now += seconds
        progress.advance(2, 0.1)
        progress.count({}, timed_save=progress.is_timed_save_due())  # which all ranks have agreed on
        due.append(progress.is_save_due())
    assert due == [False, True, False, True, True]


def with_own_clock() -> None:
    """Be a rank whose clock stands still; on rank 1, an hour is over after step 3."""
    status, ahead = project_module("runtime.watchdog").STATUS, os.environ["RANK"] == "1"
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * (ahead and status.step >= 3))
    project_module("runtime.metrics").time = clock
    run_train()


def test_a_clock_that_is_due_on_one_rank_lets_all_ranks_save_together(project: Render, tmp_path: Path) -> None:
    options = ("--save-every", "10min", "--log-every", "2", "--max-steps", "9")
    train_on_ranks(project(), tmp_path / "run", *options, entry=with_own_clock)
    assert names(tmp_path / "run") == ["best.pt", "last.pt", "step-00000004.pt", "step-00000009.pt"]
    assert len(checkpoint(tmp_path / "run", "step-00000004.pt")["ranks"]) == 2, "both took part"


def test_intervals_take_units(package: Package) -> None:
    cli, config, exits = package("runtime.cli"), package("config").Config, package("runtime.exits")
    for words, value in (
        ("3", 3),
        ("1e3", 1000),
        ("500steps", "500steps"),
        ("500 step", "500steps"),
        ("1epoch", "1epochs"),
    ):
        parsed = cli.parse(config, ["--eval-every", words])
        assert parsed.eval_every == value
        again = cli.words_from(cli.as_plain_dict(parsed), config)
        assert cli.parse_words(config, again, quiet=True) == parsed, "as config.json has it"
    assert cli.parse(config, ["--save-every", "10min"]).save_every == "10min"
    for option, wrong, said in (
        ("--eval-every", "10min", "must be in epochs or steps, such as 2epochs, not '10min'"),
        ("--eval-every", "0steps", "must be at least 1, not 0"),
        ("--save-every", "steps", "needs a whole number, not ''"),
        ("--save-every", "-1", "must be at least 0, not -1"),
    ):
        with pytest.raises(exits.UserError, match=said):
            cli.parse(config, [option, wrong])
