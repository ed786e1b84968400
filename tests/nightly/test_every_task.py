"""Every legal combination of answers, each with every task: `ddp-template check` of all there are."""

from pathlib import Path

from generator.answers.combinations import Combination
from tests.support.cli import check_report


def test_every_combination_passes_with_every_task(tmp_path: Path, legal: list[Combination]) -> None:
    combinations = check_report(tmp_path / "check.json", timeout=1800)
    assert {each["name"] for each in combinations} == {each.name for each in legal}
