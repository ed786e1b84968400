"""A logger whose first use is prepared for forked ranks records in new processes what it records in forked ones."""

from pathlib import Path

from tests.support.cli import check_report


def test_mlflow_begins_its_store_in_cold_processes(tmp_path: Path) -> None:
    answers = ["task=digits", "launcher=torchrun", "backend=auto", "amp=none", "sync_bn=false", "logging=mlflow"]
    (result,) = check_report(tmp_path / "check.json", *answers, "--launchers", "real", "--no-cache")
    assert result["seconds"]["real"] > 1
