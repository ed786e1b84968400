"""A nemesis can repeat and shrink what it draws, and says what is wrong with a run."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from generator.chaos import invariants
from generator.chaos.faults import DONE, FAULTS, KILLED, LOST, REFUSED, Need, possible_faults
from generator.chaos.invariants import unexpected_failure
from generator.chaos.job import Job, environment
from generator.chaos.nemesis import HANGS_AFTER, Baseline, Nemesis, UnsuitableProject, follow, took_effect
from generator.chaos.schedule import TOGETHER, TRAINING, Fault, Schedule, Start, draw, shrink
from generator.chaos.surroundings import SharedMemory
from generator.cli.chaos import NEEDS
from tests.support.cli import ddp_template

STEPS = 20
KINDS = possible_faults(*Need)
CALM = Schedule(0, [Start(2, {}, [])])
TRACEBACK = "Traceback (most recent call last):\n"
FOLDERS = [
    (["."], "is no project of this template: it has no .copier-answers.yml"),
    (["conflict"], "is no project of this template: it has no .copier-answers.yml that can be read"),
    ([".", "--only", "0,9"], "--only 0,9: give numbers of faults from 0 to 7, such as 0,3"),
    (["slurm"], "launcher=slurm does not start ranks from this machine alone: torchrun, launch, spawn, mpirun do"),
]
RECORDS = [
    ([(5, 1.0), (10, 0.5)], []),
    ([(5, 1.0), (5, 1.0), (10, 0.5)], ["loss is recorded more than once at step 5"]),
    ([(5, 1.0)], ["loss is not recorded at step 10"]),
    ([(5, 1.0), (10, 0.5), (15, 0.1)], ["loss is another from step 15 on"]),
]
CAUSES = [
    ("kill a rank", 1, LOST, "error: rank 1 is silent: it was training", ""),
    ("kill a rank", 1, LOST, "error: rank 0 is silent: it was training", "no line that has the cause"),
    ("kill a rank, stop", 1, LOST, "error: rank 0 is silent: it was training", ""),
    ("kill a rank", None, LOST, "error: rank 0 is silent: it was training", ""),
    ("kill a rank", 1, KILLED, "Signal 9 (SIGKILL) received by PID 7", ""),
    ("kill a rank", 1, LOST, f"rank 1 has ended\n{TRACEBACK}", "a traceback"),
    ("kill a rank", 1, LOST, f"a collective has failed\n{TRACEBACK}rank 1 has ended\n{TRACEBACK}", "a traceback"),
    ("freeze a rank for good", 0, REFUSED, "error: rank 1 could not meet the others", ""),
    ("kill a loader worker", 1, LOST, "rank 0: a process that loads its data has gone", "no line that has"),
    ("full disk", None, REFUSED, "error: a.pt could not be written: No space left on device", ""),
    ("full disk", None, REFUSED, "error: a.pt could not be written: Input/output error", "no line that has"),
    ("failing disk, full disk", None, REFUSED, "error: b could not be written: Input/output error", ""),
    ("read-only disk", None, REFUSED, "error: a.pt could not be written: Read-only file system", ""),
    ("slow disk", None, REFUSED, "error: a.pt could not be written: No space left on device", "exit code 2"),
    ("little memory", None, LOST, f"a collective has failed\n{TRACEBACK}error: rank 0 does not come", ""),
    ("stop twice, take a machine", None, LOST, "a node is lost: the actor died", ""),
    ("data that no worker can send", 1, REFUSED, "error: data.py: samples 1: Can't pickle local object", ""),
    ("data that no worker can send", 1, REFUSED, f"{TRACEBACK}error: data.py: Can't pickle it", "a traceback"),
    ("data that no worker can send", 1, LOST, "error: rank 1 does not come: it is loading", "no line that has"),
    ("data that never comes", 1, LOST, "error: rank 1: it has waited 30 s for samples 4, from the worker with", ""),
    ("data that never comes", 1, LOST, "error: rank 0 has waited 30 s for sample 4, from worker 0", "no line that"),
    ("data that never comes", None, LOST, "error: rank 0 has waited 30 s for sample 4, from worker 0", ""),
    ("freeze a loader for good", 1, LOST, "error: rank 1 does not come: it is loading data, after step 5", ""),
    ("freeze a loader for good", 1, LOST, "error: rank 1 does not come: it is evaluating", "no line that has"),
    ("few open files", 1, REFUSED, "error: data.py: Too many open files: ulimit -n 65536 lets", ""),
    ("few open files", 1, LOST, "error: rank 1: a process that loads its data has gone", "no line that has"),
    ("full shared memory", None, REFUSED, "error: data.py: /dev/shm is full: give it more", ""),
    ("full shared memory", None, LOST, "error: rank 1: a process that loads its data has gone", "no line that"),
    ("CPU quota", None, LOST, "error: rank 1 does not come: it is training", "exit code 69"),
]
UNFIT = [
    (0, 15, "ended at step 15 of 20: leave out what ends it sooner, such as --epochs, --patience or --max-hours"),
    (75, 15, "ended at step 15 of 20"),
    (2, 0, "exit code 2 without a fault"),
    (None, 0, "was not done in 0 s: give fewer --steps"),
]


@dataclass
class FakeJob(Job):
    """A job that ends when it was asked often enough, and prints something each time, or nothing."""

    run_dir: Path
    ends_with: int | None = 0
    asked: int = 0
    word: str = "."

    def launchers(self) -> list[psutil.Process]:
        return []

    ranks = processes = launchers

    def code(self) -> int | None:
        self.asked += 1
        return self.ends_with if self.asked > 2 else None

    def output(self) -> str:
        return self.word * self.asked

    def end(self) -> None:
        """Do nothing."""


def save(run_dir: Path, step: int, **parts: Any) -> None:
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"step-{step:08d}.pt", "last.pt"):
        (folder / name).write_text(json.dumps({"progress": {"step": step, "epoch": 1}, **parts}))
    (run_dir / "config.json").write_text(json.dumps({"global_batch_size": 64, "accum_steps": 1}))


def fault(kind: str, number: int = 0) -> Fault:
    return Fault(number, kind, TRAINING, saves=1, delay=0.0, victim=0.0, length=0.01)


@dataclass
class Weights:
    of_runs: list[str]

    def start(self, run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        save(run_dir, STEPS, model=self.of_runs.pop(0))
        return FakeJob(run_dir)


@pytest.fixture(autouse=True)
def _checkpoints_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("invariants", "nemesis"):
        monkeypatch.setattr(f"generator.chaos.{module}.read_whole", lambda file: json.loads(file.read_text()))
    monkeypatch.setattr(invariants, "damaged_checkpoints", lambda run_dir: [])
    monkeypatch.setattr(invariants, "digest", repr)


def nemesis_of(weights: Weights, folder: Path, **about: Any) -> Nemesis:
    (folder / "project").mkdir()
    return Nemesis(folder / "project", weights.start, "console", folder, possible_faults(), steps=STEPS, **about)


@pytest.mark.parametrize(("code", "step", "said"), UNFIT)
def test_a_run_that_cannot_be_compared_with_is_unfit(code: int | None, step: int, said: str, tmp_path: Path) -> None:
    if step:
        save(tmp_path, step)
    with pytest.raises(UnsuitableProject, match=said):
        follow(FakeJob(tmp_path, code), tmp_path, STEPS, limit=0.05)


@pytest.mark.parametrize(
    ("weights", "wrong"), [(["one", "one"], []), (["one", "another", "one"], ["model is another than without faults"])]
)
def test_a_run_that_ends_otherwise_is_told_and_kept(weights: list[str], wrong: list[str], tmp_path: Path) -> None:
    """Where a second run without a fault ends as the first: otherwise the project is unfit."""
    nemesis = nemesis_of(Weights(weights), tmp_path)
    assert nemesis.run(CALM).wrong == wrong
    assert (tmp_path / "seed-0-0").exists() == bool(wrong), "what is right takes no room"
    if wrong:
        (tmp_path / "again").mkdir()
        with pytest.raises(UnsuitableProject, match=r"two runs without a fault differ: model is another$"):
            nemesis_of(Weights(["one", "another", "a third"]), tmp_path / "again").run(CALM)


def test_the_file_of_the_project_that_was_changed_is_named(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights(["one"] * 3), tmp_path)
    (tmp_path / "project" / "data.csv").write_text("1")
    assert nemesis.baseline
    (tmp_path / "project" / "cache").write_text("new files are no harm")
    (tmp_path / "project" / "data.csv").write_text("21")
    assert nemesis.run(CALM).wrong == ["data.csv, a file of the project, was changed"]
    assert nemesis.run(CALM).wrong == [], "it is said once"


def test_a_run_without_a_word_hangs(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights([]), tmp_path, slowness=lambda: 1.0 / HANGS_AFTER)
    nemesis.baseline = Baseline(tmp_path, {}, 1.0, 0.1, silence=0.0)
    assert nemesis._end_of(FakeJob(tmp_path, None, word=""), tmp_path, []) is None
    assert nemesis._end_of(FakeJob(tmp_path, 75, word=""), tmp_path, []) == 75


@pytest.mark.parametrize(("kinds", "hit", "code", "told", "wrong"), CAUSES)
def test_the_cause_that_is_said_is_the_true_one(kinds: str, hit: int | None, code: int, told: str, wrong: str) -> None:
    said = unexpected_failure([fault(kind) for kind in kinds.split(", ")], hit, code, told, hides=())
    assert wrong in said
    assert bool(wrong) == bool(said)


def test_what_has_changed_nothing_has_not_happened() -> None:
    kinds = ["kill a rank", "few open files", "data that never comes", "CPU quota", "full disk"]
    faults = [fault(kind) for kind in kinds]
    assert [each.kind for each in took_effect(faults, {"stuck", "throttled"}, LOST)] == kinds[:-1]
    assert [each.kind for each in took_effect(faults, {"full"}, DONE)] == ["kill a rank", "full disk"]


def test_all_parts_of_checkpoints_are_compared_but_with_other_numbers_of_processes_only_counts_and_steps() -> None:
    one = {"model": 1, "update": 2, "progress": {"step": 5, "epoch": 1, "stream": 6}, "config": "here"}
    other = {"model": 1, "update": 3, "scaler": 4, "progress": {"step": 5, "epoch": 2, "stream": 7}, "code": "there"}
    assert invariants.differing_parts(one, other) == ["progress", "scaler", "update"]
    assert invariants.differing_counts(one, other) == ["epoch", "stream"]


def test_the_shared_memory_of_this_machine_is_never_filled() -> None:
    with pytest.raises(AssertionError, match="has no /dev/shm of its own"):
        SharedMemory().fill(os.getpid())


def test_records_go_to_no_tracker_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "DATA"):
        monkeypatch.setenv(name, "of the user")
    variables = environment()
    assert (variables["WANDB_MODE"], variables["DATA"]) == ("offline", "of the user")
    assert not {"WANDB_DIR", "MLFLOW_TRACKING_URI"} & variables.keys()


def test_a_seed_draws_the_same_everywhere_and_what_cannot_be_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    older = possible_faults(*{*Need} - {Need.LOADER, Need.SHM, Need.QUOTA})
    assert older == [*FAULTS][: len(older)], "new kinds leave old seeds as they are"
    schedules = [draw(seed, 8, KINDS) for seed in range(50)]
    assert schedules == [draw(seed, 8, KINDS) for seed in range(50)]
    assert {fault.kind for schedule in schedules for fault in schedule.faults} == {*FAULTS}
    for schedule in schedules:
        assert sorted(fault.number for fault in schedule.faults) == [*range(8)]
        for start in schedule.starts:
            assert start.faults[0].moment != TOGETHER
            ends = [FAULTS[fault.kind].is_end for fault in start.faults]
            assert ends == sorted(ends), "nothing can befall a run that has ended"
    kinds = possible_faults(*NEEDS)
    monkeypatch.delattr("resource.prlimit")
    assert possible_faults(*NEEDS) == kinds
    assert "little memory" not in possible_faults()
    for seed in range(50):
        drawn = draw(seed, 8, kinds)
        assert drawn.fitted(kinds, (1, 2, 4)) == drawn
        fitted = drawn.fitted(possible_faults(), (1, 2))
        assert [each for each in fitted.faults if FAULTS[each.kind].need.name in ("DISK", "CLOCK", "LAUNCHER")] == []
        assert {each.number for each in fitted.faults} <= {each.number for each in drawn.faults}
        assert all(start.processes in (1, 2) and start.faults for start in fitted.starts)


@pytest.mark.parametrize("guilty", [{3}, {0, 7}, {1, 2, 5}])
def test_the_smallest_schedule_that_fails_is_found(guilty: Collection[int]) -> None:
    def fails(schedule: Schedule) -> bool:
        return {*guilty} <= {fault.number for fault in schedule.faults}

    smallest = shrink(draw(4, 8, KINDS), fails)
    assert {fault.number for fault in smallest.faults} == guilty
    assert smallest == draw(4, 8, KINDS).only(guilty), "what the command repeats"


def test_a_failure_that_comes_once_in_two_times_is_made_smaller_too() -> None:
    asked: list[Schedule] = []

    def fails(schedule: Schedule) -> bool:
        asked.append(schedule)
        return asked.count(schedule) == 2 and 6 in {fault.number for fault in schedule.faults}

    assert [fault.number for fault in shrink(draw(4, 8, KINDS), fails).faults] == [6]


@pytest.mark.parametrize(("found", "said"), RECORDS)
def test_records_other_than_those_of_a_calm_run_are_named(found: list[tuple[int, float]], said: list[str]) -> None:
    calm = {"loss": [(5, 1.0), (10, 0.5)]}
    assert invariants.wrong_records({"loss": found}, calm) == said
    others = {"loss": [(step, loss + 1) for step, loss in found]}  # as with other numbers of processes
    assert invariants.wrong_records(invariants.only_steps(others), invariants.only_steps(calm)) == said


@pytest.mark.parametrize(("arguments", "said"), FOLDERS)
def test_a_folder_that_is_not_to_be_started_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    for folder, answers in (("slurm", "launcher: slurm\nlogging: csv\n"), ("conflict", "<<<<<<< before\n- a: b: c\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".copier-answers.yml").write_text(answers)
    done = ddp_template("chaos", tmp_path / arguments[0], *arguments[1:], code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
