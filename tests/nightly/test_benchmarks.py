"""The benchmarks measure what they say: templates of other sizes are sound, and their tables hold what was measured."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.check import STAGES, candidates, copy_repository, resize
from generator.answers.combinations import Combination, shaping_questions
from generator.render.workers import Workers, legal_combinations


@pytest.mark.parametrize(("size", "expected"), [(50, 32), (480, 324), (5280, 5280)])
def test_a_template_gets_about_as_many_combinations_as_are_wanted(
    size: int, expected: int, legal: list[Combination], tmp_path: Path
) -> None:
    assert len(legal) == 2640, "choose other sizes here"
    clone = copy_repository(tmp_path / "clone")
    resize(clone, size, len(legal))
    with Workers() as workers:
        found = legal_combinations(clone, workers)
    assert len(found) == expected
    assert candidates(shaping_questions(clone)) >= expected


def test_what_is_measured_of_a_small_template_is_all_of_it(legal: list[Combination], tmp_path: Path) -> None:
    clone = copy_repository(tmp_path / "clone")
    resize(clone, 2, len(legal))
    done = subprocess.run(
        STAGES,
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["combinations"] == 2
    assert measured["files"] > 10
    assert min(measured[stage] for stage in ("enumerate", "render", "static")) > 0
    assert [*tmp_path.glob("ddp-template-*")] == []
