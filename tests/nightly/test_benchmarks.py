"""The benchmark of checks measures all of a template of another size."""

import json
import os
from pathlib import Path

from benchmarks.check import STAGES, copy_repository, resize
from generator.answers.combinations import Combination
from tests.support.processes import output_of


def test_what_is_measured_of_a_small_template_is_all_of_it(legal: list[Combination], tmp_path: Path) -> None:
    clone = copy_repository(tmp_path / "clone")
    resize(clone, 2, len(legal))
    measured = json.loads(output_of(STAGES, clone, {**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(tmp_path)}))
    assert measured["combinations"] == 2
    assert measured["files"] > 10
    assert min(measured[stage] for stage in ("enumerate", "render", "static")) > 0
    assert [*tmp_path.glob("ddp-template-*")] == []
