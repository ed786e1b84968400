"""Every legal combination of answers, each with every task: `ddp-template check` of all there are."""

import json
import subprocess
import sys
from pathlib import Path

from generator.answers.combinations import Combination
from tests.pace import seconds

COMMAND = str(Path(sys.executable).with_name("ddp-template"))


def test_every_combination_passes_with_every_task(tmp_path: Path, legal: list[Combination]) -> None:
    command = [COMMAND, "check", "--json", str(tmp_path / "check.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds(1800))
    assert done.returncode == 0, done.stdout
    combinations = json.loads((tmp_path / "check.json").read_text())["combinations"]
    assert {each["name"] for each in combinations} == {each.name for each in legal}
