"""Every legal combination of answers is rendered, read, trained on two processes, stopped, resumed and compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from generator.combinations import Combination
from tests.conftest import Measured

COMMAND = str(Path(sys.executable).with_name("ddp-template"))
STAGES = {"render", "format", "lint", "types", "train", "resume", "agree"}


def test_every_combination_passes_every_stage(legal: list[Combination], tmp_path: Path, measured: Measured) -> None:
    command = [COMMAND, "check", "--json", str(tmp_path / "check.json")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout
    results = json.loads((tmp_path / "check.json").read_text())["combinations"]
    assert {result["name"] for result in results} == {combination.name for combination in legal}
    assert all(set(result["seconds"]) >= STAGES for result in results)
    numbers: dict[bool, set[str]] = {True: set(), False: set()}
    for result in results:
        numbers[result["answers"]["amp"] == "torch"].add(result["weights"])
    assert all(len(weights) == 1 for weights in numbers.values()), "one number in float32, and one in float16"
    measured("launchers", "projects that end on two numbers, one in float32 and one in float16", len(results))


@pytest.mark.parametrize(
    ("launcher", "logging"),
    [
        ("torchrun", "mlflow"),  # its first use is prepared
        ("slurm", "csv"),
        *(pytest.param(name, "csv", marks=pytest.mark.slow) for name in ("torchrun", "spawn", "launch", "mpirun")),
    ],
)
def test_cold_processes_of_a_real_launcher_give_what_forked_ranks_give(
    launcher: str, logging: str, tmp_path: Path
) -> None:
    answers = [f"launcher={launcher}", "backend=auto", "amp=none", "sync_bn=false", f"logging={logging}"]
    reports = ["--json", str(tmp_path / "check.json")]
    command = [COMMAND, "check", *answers, "--launchers", "real", "--no-cache", *reports]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    if "is not installed here" in done.stdout:
        pytest.skip(f"the launcher of {launcher} is not installed here: run tests/clusters/install.sh")
    assert done.returncode == 0, done.stdout
    (result,) = json.loads((tmp_path / "check.json").read_text())["combinations"]
    assert result["seconds"]["real"] > 1
