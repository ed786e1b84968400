"""Every launcher starts a project in new processes, over a stop, and ends on the bits that forked ranks end on."""

from typing import Any

import pytest

from tests.support.cli import check_report
from tests.support.training import LAUNCHERS, node_launcher
from tools import slurm

# The others start the ranks of a machine by one of these.
OF_ONE_MACHINE = [launcher for launcher in LAUNCHERS if node_launcher(launcher) == launcher]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What one check of all launchers says of each, with ddp and with fsdp.

    The output names launchers that are missing here.
    """
    report = tmp_path_factory.mktemp("check") / "check.json"
    others = ["task=digits", "backend=auto", "amp=none", "sync_bn=false", "logging=csv"]
    answers = [f"launcher={','.join(OF_ONE_MACHINE)}", *others]
    found = check_report(report, *answers, "--launchers", "real", code=None)
    return {(each["answers"]["launcher"], each["answers"]["parallel"]): each for each in found}


def assert_passed(result: dict[str, Any], launcher: str) -> None:
    said = "\n".join(failure["text"] for failure in result["failures"])
    if "is not installed here" in said:
        pytest.skip(f"the launcher of {launcher} is not installed here: run tests/clusters/install.sh")
    if launcher == "slurm" and (reason := slurm.missing()):  # installed, it may still have no namespaces
        pytest.skip(reason)
    assert said == ""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("launcher", OF_ONE_MACHINE)
def test_cold_processes_give_what_forked_ranks_give(
    launcher: str, parallel: str, results: dict[tuple[str, str], dict[str, Any]]
) -> None:
    result = results[launcher, parallel]
    assert_passed(result, launcher)
    assert result["seconds"]["real"] > 1
