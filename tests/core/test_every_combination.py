"""Every legal combination of answers is rendered, read, trained on two processes, stopped, resumed and compared.

Each combination of the other answers has one task here, in turn; tests/nightly/test_tasks.py has all of them.
"""

from collections import defaultdict
from typing import Any

import pytest

from generator.answers.combinations import Combination
from tests.conftest import Measured
from tests.support.cli import check_report

STAGES = {"render", "format", "lint", "types", "train", "resume", "agree"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return check_report(tmp_path_factory.mktemp("check") / "check.json", "--rotate", "task", timeout=1800)


def test_every_combination_passes_every_stage(results: list[dict[str, Any]], legal: list[Combination]) -> None:
    of_others = {each.name.partition("-")[2] for each in legal}  # the name of a combination begins with its task
    assert {result["name"].partition("-")[2] for result in results} == of_others
    assert len(results) == len(legal) / 4
    assert [result["name"] for result in results if not set(result["seconds"]) >= STAGES] == []


def test_all_of_a_task_end_on_two_numbers(results: list[dict[str, Any]], measured: Measured) -> None:
    numbers: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for result in results:
        numbers[result["answers"]["task"], result["answers"]["amp"] == "torch"].add(result["weights"])
    assert len(numbers) == 8
    assert all(len(weights) == 1 for weights in numbers.values()), "one number in float32, and one in float16"
    measured("launchers", "projects that end on two numbers a task, one in float32 and one in float16", len(results))
