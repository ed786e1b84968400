"""The folders of the generator import in one direction, as pyproject.toml says."""

import sys
from pathlib import Path

from generator.answers.questions import TEMPLATE
from tests.support.processes import output_of


def test_imports_point_one_way() -> None:
    output_of([Path(sys.executable).with_name("lint-imports"), "--no-cache"], TEMPLATE)
