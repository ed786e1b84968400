"""The process that ranks are forked from, the loop that watches them, and what launchers tell them."""

import importlib
import os
import sys
import time
from pathlib import Path

import pytest

from generator.check.train.forking import Ended, Task, forking, run_forked, train_all
from tests.support.processes import scaled


def threads_of_parent() -> list[str]:
    tasks = Path(f"/proc/{os.getppid()}/task")
    return [(task / "comm").read_text().strip() for task in tasks.iterdir()]


def sleep_and_say() -> None:
    print("sleeping", flush=True)
    time.sleep(600)


def fail() -> None:
    raise ValueError("no such thing")


@pytest.fixture(scope="module")
def ended() -> dict[str, Ended]:
    """How tasks of this module ended, by name; the process that forks them has imported what loggers import."""
    modules = ["tyro", "torch.utils.tensorboard", "wandb", "mlflow"]
    tasks = {
        "threads": Task(threads_of_parent, ()),
        "late": Task(sleep_and_say, (), deadline=3),
        "wrong": Task(fail, ()),
    }
    with forking() as name_modules:
        name_modules(modules)
        return {name: run_forked(task) for name, task in tasks.items()}


def test_the_forking_process_has_one_thread(ended: dict[str, Ended]) -> None:
    assert ended["threads"].complaint == ""
    (threads,) = ended["threads"].seen
    assert len(threads) == 1, threads


def test_what_takes_too_long_is_killed_and_what_it_said_is_kept(ended: dict[str, Ended]) -> None:
    assert ended["late"].codes == [None]
    assert ended["late"].output == ["sleeping\n"]
    assert "was killed, for it did not end" in ended["late"].complaint
    assert 3 <= ended["late"].seconds < scaled(10)


def test_a_failure_is_told_with_its_traceback(ended: dict[str, Ended]) -> None:
    assert ended["wrong"].codes == [1]
    assert "ValueError: no such thing" in ended["wrong"].complaint
    assert ended["wrong"].seen == [None]


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
def test_a_program_gets_the_first_part_of_its_data_or_all(
    all_data: bool, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
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
