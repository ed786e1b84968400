"""Combinations in which every three answers meet are rendered, read, trained on two processes, stopped and resumed.

tests/nightly/test_tasks.py has all combinations.
"""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from generator.answers.combinations import Combination
from tests.support.cli import check_report

STAGES = {"render", "format", "lint", "types", "train", "resume", "agree"}


def triples(combinations: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {three for each in combinations for three in itertools.combinations(sorted(each.items()), 3)}


def test_every_three_answers_pass_every_stage_together(legal: list[Combination], tmp_path: Path) -> None:
    results = check_report(tmp_path / "check.json", "--cover", "3", timeout=1800)
    assert triples(result["answers"] for result in results) == triples(dict(each.answers) for each in legal)
    assert [result["name"] for result in results if not set(result["seconds"]) >= STAGES] == []
