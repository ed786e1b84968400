"""A logger whose first use is prepared for forked ranks records in new processes what it records in forked ones."""

import json
import subprocess
import sys
from pathlib import Path

from tests.pace import seconds

COMMAND = str(Path(sys.executable).with_name("ddp-template"))


def test_mlflow_begins_its_store_in_cold_processes(tmp_path: Path) -> None:
    answers = ["task=digits", "launcher=torchrun", "backend=auto", "amp=none", "sync_bn=false", "logging=mlflow"]
    command = [COMMAND, "check", *answers, "--launchers", "real", "--no-cache", "--json", str(tmp_path / "check.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds(600))
    assert done.returncode == 0, done.stdout
    (result,) = json.loads((tmp_path / "check.json").read_text())["combinations"]
    assert result["seconds"]["real"] > 1
