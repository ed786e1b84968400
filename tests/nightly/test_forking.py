"""The process that ranks are forked from, the loop that watches them, and what launchers tell them."""

import importlib
import os
import sys
import time
from pathlib import Path

import pytest

from generator.check.train.forking import Task, forking, run_forked, train_all
from tests.support.processes import scaled


def threads_of_parent() -> list[str]:
    tasks = Path(f"/proc/{os.getppid()}/task")
    return [(task / "comm").read_text().strip() for task in tasks.iterdir()]


def sleep_and_say() -> None:
    print("sleeping", flush=True)
    time.sleep(600)


def fail() -> None:
    raise ValueError("no such thing")


def test_the_forking_process_has_one_thread() -> None:
    """Though it has imported what loggers import."""
    with forking() as name_modules:
        name_modules(["tyro", "torch.utils.tensorboard", "wandb", "mlflow"])
        end = run_forked(Task(threads_of_parent, ()))
    assert end.complaint == ""
    [threads] = end.seen
    assert len(threads) == 1, threads


PROGRAM = """
def load_data(config):
    return list(range(1000)), list(range(100))
"""


def import_data(folder: str) -> list[tuple[int, int]]:
    """How many samples a program gets of each of its datasets, and which is the last of them."""
    sys.path.insert(0, folder)
    return [
        (len(dataset), dataset[len(dataset) - 1]) for dataset in importlib.import_module("program.data").load_data(None)
    ]


@pytest.mark.parametrize(("all_data", "sizes"), [(False, [(89, 88), (22, 21)]), (True, [(1000, 999), (100, 99)])])
def test_a_program_gets_a_part_of_its_data_or_all(all_data: bool, sizes: list[tuple[int, int]], tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "data.py").write_text(PROGRAM)
    with forking(all_data=all_data) as name_modules:
        name_modules(["torch"])
        end = run_forked(Task(import_data, (str(tmp_path),)))
    assert end.complaint == ""
    assert end.seen == [sizes]


def test_an_error_ends_all_that_runs_and_starts_nothing_more() -> None:
    def train(number: int) -> None:
        run_forked(Task(fail if number == 0 else sleep_and_say, ()))
        if number == 0:
            raise ValueError("no such thing")
        run_forked(Task(fail, ()))

    started = time.monotonic()
    with forking() as name_modules:
        name_modules(["csv"])
        with pytest.raises(ValueError, match="no such thing"):
            [*train_all(train, range(10), 2)]
        assert run_forked(Task(os.getpid, ())).codes == [0], "the next ones are started"
    assert time.monotonic() - started < scaled(60)
