"""A job of Kubernetes on two nodes, by its manifests: the end of a node costs no step, and what is final ends it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.chaos.faults import LOST
from tests.conftest import Render
from tests.support import hosts
from tests.support.processes import output_of, scaled
from tests.support.schedulers.kubernetes import CORES, Cluster, JobSet, missing
from tests.support.training import FOR_EVER, ON_CPU, assert_same_weights, checkpoint, launch_command, wait_for_steps

STEPS = ("--max-steps", "400", "--save-every", "20", "--eval-every", "1000", "--epochs", "1000")
Submit = Callable[..., JobSet]


@pytest.fixture
def submit(own_project: Render, tmp_path: Path) -> Iterator[Submit]:
    """Yield what submits a training, with one process on each of two nodes, and lets the cluster start it."""
    if reason := missing() or hosts.missing("unshare"):
        pytest.skip(reason)
    project, cluster = own_project(launcher="kubernetes"), Cluster(tmp_path / "cluster")
    subprocess.run(["git", "init", "--quiet", project], check=True)
    with ExitStack() as stack:
        two = stack.enter_context(hosts.two_hosts())

        def start(*options: str, late: float = 0, **env: str) -> JobSet:
            file = project / "kubernetes" / "job.yaml"
            job = yaml.safe_load(file.read_text())
            edits = {"image": "registry.test/image", "numProcPerNode": 1}
            job["spec"]["trainer"] |= edits | {"env": [{"name": key, "value": value} for key, value in env.items()]}
            file.write_text(yaml.safe_dump(job))
            cluster.submit(project, "./launch.sh", *ON_CPU, *options, NAME="mine")
            jobset = JobSet(cluster, two, stack)
            jobset.start(late)
            return jobset

        yield start


@pytest.fixture(scope="module")
def reference(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reference")
    here = ["taskset", "--cpu-list", ",".join(CORES), *launch_command("torchrun", 2, folder), *ON_CPU]
    output_of([*here, "--run-dir", str(folder / "run"), *STEPS], project(), os.environ)
    return checkpoint(folder / "run")


@pytest.mark.parametrize("how", ["killed", "drained"])
def test_a_node_that_ends_costs_no_step(how: str, submit: Submit, reference: dict[str, Any]) -> None:
    jobset = submit(*STEPS)
    wait_for_steps(jobset.run_dir)
    if how == "killed":
        jobset.pods[1].signal(signal.SIGKILL)
    else:
        jobset.pods[1].delete()
    assert jobset.follow() == "Restarting"
    assert jobset.follow() == "Complete", jobset.output
    log = (jobset.run_dir / "train.log").read_text()
    assert (log.count("resumed from"), ("stopped after step" in log)) == (1, (how == "drained"))
    assert checkpoint(jobset.run_dir)["world_size"] == 2
    assert_same_weights(checkpoint(jobset.run_dir), reference)


def test_a_job_that_is_deleted_goes_on_under_its_name(submit: Submit, reference: dict[str, Any]) -> None:
    jobset = submit(*STEPS)
    wait_for_steps(jobset.run_dir)
    jobset.delete()
    assert [pod.code for pod in jobset.pods] == [75, 75], jobset.output
    again = submit(*STEPS)
    assert again.follow() == "Complete", again.output
    assert_same_weights(checkpoint(again.run_dir), reference)


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--epochs", "0"], 2), (["--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1"], 65)],
    ids=["refused", "diverged"],
)
def test_what_a_restart_would_repeat_ends_the_job(options: list[str], code: int, submit: Submit) -> None:
    jobset = submit(*options)
    assert jobset.follow() == "Failed"
    assert code in [pod.code for pod in jobset.pods], jobset.output


def test_the_doctor_examines_nodes_that_start_late(submit: Submit) -> None:
    jobset = submit("--doctor", late=25)
    assert jobset.follow() == "Complete", jobset.output
    assert "sound: a run can start here" in jobset.output


def test_launch_sh_ends_where_node_0_is_out_of_reach(submit: Submit) -> None:
    """Also as the first process of its container, which no signal from within could end if it were process 1."""
    jobset = submit(*FOR_EVER, HEAD_TIMEOUT="20")
    wait_for_steps(jobset.run_dir)
    jobset.hosts[0].set_link("down")
    jobset.pods[1].process.wait(scaled(60))
    assert jobset.pods[1].code == LOST, jobset.output
