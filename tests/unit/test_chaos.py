"""Schedules of faults can be repeated and made smaller, and records that are not those of a calm run are named."""

from collections.abc import Collection
from pathlib import Path

import pytest

from generator.chaos.faults import FAULTS, Need, possible_faults
from generator.chaos.invariants import wrong_records
from generator.chaos.schedule import TOGETHER, Schedule, draw, shrink
from tests.support.cli import ddp_template

KINDS = possible_faults(*Need)


@pytest.mark.parametrize("seed", range(50))
def test_a_seed_always_draws_the_same(seed: int) -> None:
    schedule = draw(seed, 8, KINDS)
    assert schedule == draw(seed, 8, KINDS)
    assert sorted(fault.number for fault in schedule.faults) == [*range(8)]
    for start in schedule.starts:
        assert start.faults[0].moment != TOGETHER
        ends = [FAULTS[fault.kind].is_end for fault in start.faults]
        assert ends == sorted(ends), "nothing can befall a run that has ended"


def test_each_kind_of_fault_is_drawn_sooner_or_later() -> None:
    assert {fault.kind for seed in range(50) for fault in draw(seed, 8, KINDS).faults} == {*FAULTS}


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


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([(5, 1.0), (10, 0.5)], []),
        ([(5, 1.0), (5, 1.0), (10, 0.5)], ["loss is recorded more than once at step 5"]),
        ([(5, 1.0)], ["loss is not recorded at step 10"]),
        ([(5, 1.0), (10, 0.25)], ["loss is another from step 10 on"]),
        ([(5, 1.0), (10, 0.5), (15, 0.1)], ["loss is another from step 15 on"]),
    ],
)
def test_records_other_than_those_of_a_calm_run_are_named(found: list[tuple[int, float]], said: list[str]) -> None:
    assert wrong_records({"loss": found}, {"loss": [(5, 1.0), (10, 0.5)]}) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["."], "is no project of this template: it has no .copier-answers.yml"),
        (["conflict"], "is no project of this template: it has no .copier-answers.yml that can be read"),
        ([".", "--only", "0,9"], "--only 0,9: give numbers of faults from 0 to 7, such as 0,3"),
        (["slurm"], "launcher=slurm does not start ranks from this machine alone: torchrun, launch, spawn, mpirun do"),
    ],
)
def test_a_folder_that_is_not_to_be_started_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    for folder, answers in (("slurm", "launcher: slurm\nlogging: csv\n"), ("conflict", "<<<<<<< before\n- a: b: c\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".copier-answers.yml").write_text(answers)
    done = ddp_template("chaos", tmp_path / arguments[0], *arguments[1:], code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
