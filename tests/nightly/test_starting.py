"""What a program does not need for --help or a refusal it does not import."""

import os
import re
import sys

import pytest

from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.training import LAUNCHERS


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("option", "code", "told"), [("--help", 0, "--global-batch-size"), ("--lrr", 2, "--lrr")])
def test_help_and_refusals_do_without_torch(launcher: str, option: str, code: int, told: str, project: Render) -> None:
    env = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    printed = output_of([sys.executable, "train.py", option], project(launcher=launcher), env, code=code)
    imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", printed, re.MULTILINE))
    assert "tyro" in imported, "the record is not what it was"
    assert not {"torch", "numpy", "tqdm"} & imported
    assert told in re.sub(r"^import time:.*\n", "", printed, flags=re.MULTILINE)
