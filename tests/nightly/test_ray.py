"""Jobs on a Ray cluster train as torchrun does, stop, go on, survive the loss of a node, and leave no process."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from generator.render.git import run
from generator.update.replay import put_under_git
from tests.conftest import Package, Render
from tests.nightly.faults.test_death import seconds_until_gone
from tests.support.processes import output_of, scaled, wait_for_line
from tests.support.schedulers.ray import RayCluster
from tests.support.training import FOR_EVER, ON_CPU, assert_same_weights, checkpoint, train, wait_for_steps

STEPS = ("--max-steps", "12")
MANY = ("--epochs", "1000", "--eval-every", "1000", "--max-steps", "400", "--save-every", "20")
MISTAKES = [
    ("0", {}, "0 is no number of nodes: give 2, or 1:2 for one to two"),
    ("1", {"RAY_ADDRESS": "http://127.0.0.1:1"}, "Ray takes no job"),
    ("1", {"FOLDER": "/nowhere"}, "/nowhere cannot be entered (No such file or directory): set FOLDER"),
    ("9", {"NODES_TIMEOUT": "2"}, "9 x (1 CPU) were not free within 2 s"),
]
SUBMIT = """
from ddp_project.runtime import ray_nodes
print(ray_nodes.upload("tests", ["--job", "a-job", "--"])[1])
"""
TOO_EARLY = "No available agent to submit job, please try again later."  # what Ray says of a cluster without agents


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of one node of one CPU; tests that need more nodes add them."""
    cluster = RayCluster()
    yield cluster
    cluster.shut_down()


def checkpoint_of(place: Path, run_dir: Path, *options: str) -> dict[str, Any]:
    train(place, run_dir, *options)
    return checkpoint(run_dir)


def assert_ends(process: "subprocess.Popen[bytes]", output: Path, code: int = 0) -> None:
    try:
        assert process.wait(timeout=scaled(120)) == code, output.read_text()
    except subprocess.TimeoutExpired:
        pytest.fail(f"still running: {output.read_text()}")


def printed_by(cluster: RayCluster, project: Path, folder: Path, *options: str, code: int, **about: str) -> str:
    """What launch.sh prints of a run in a folder, on two nodes if not told otherwise, until it ends with this code."""
    output = folder / "output.log"
    every = [*ON_CPU, "--run-dir", str(folder / "run"), *options]
    with cluster.launched(project, about.pop("nodes", "2"), *every, output=output, **about) as process:
        assert_ends(process, output, code)
    return output.read_text()


@contextmanager
def training(
    cluster: RayCluster, project: Path, folder: Path, *options: str, nodes: str = "2", **variables: str
) -> Iterator[tuple["subprocess.Popen[bytes]", Path, Path]]:
    """Train on two nodes, and yield launch.sh, what it prints and the run directory once there have been some steps."""
    cluster.add_nodes(2)
    output, run_dir = folder / "output.log", folder / "run"
    every = [*ON_CPU, "--run-dir", str(run_dir), *options]
    with cluster.launched(project, nodes, *every, output=output, **variables) as process:
        wait_for_steps(run_dir)
        yield process, output, run_dir


def test_a_job_runs_what_was_submitted_on_nodes_that_come(
    own_project: Render, project: Render, cluster: RayCluster, tmp_path: Path
) -> None:
    place, output = own_project(launcher="ray"), tmp_path / "output.log"
    put_under_git(place)
    commit = run(place, "rev-parse", "--short=12", "HEAD")
    (place / "README.md").write_text("changed")
    with cluster.launched(place, "2", *ON_CPU, "--run-dir", "runs/here", *STEPS, output=output) as process:
        wait_for_line(output, "waiting for 2 x (1 CPU)")
        for edited in [place / "train.py", *(place / "ddp_project").rglob("*.py")]:
            edited.write_text("raise RuntimeError('edited')\n")
        cluster.add_nodes(2)
        assert_ends(process, output)
    saved = checkpoint(place / "runs" / "here")
    assert_same_weights(saved, checkpoint_of(project(), tmp_path / "reference", *STEPS))
    assert saved["code"]["commit"] == f"{commit}-dirty"
    assert not cluster.processes("run")


def test_a_job_ends_with_the_code_of_the_ranks(project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add_nodes(2)
    diverging = ("--lr", "1e30", "--max-bad-steps", "1", "--log-every", "1")
    printed = printed_by(cluster, project(launcher="ray"), tmp_path, *diverging, code=65)
    assert (printed.count("error: "), printed.count("Traceback"), printed.count("start 1 of")) == (1, 0, 0), printed


@pytest.mark.parametrize("way", ["TERM", "ray job stop"])
def test_a_stopped_job_ends_as_one_that_was_not(way: str, project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    place = project(launcher="ray")
    with training(cluster, place, tmp_path, *FOR_EVER, JOB_ID=tmp_path.name) as (process, output, run_dir):
        if way == "TERM":
            process.terminate()
        else:
            cluster.run("ray", "job", "stop", "--no-wait", tmp_path.name)
        assert_ends(process, output, 75)
    steps = checkpoint(run_dir)["progress"]["step"]
    assert f"stopped after step {steps};" in (run_dir / "train.log").read_text()
    until = [*FOR_EVER, "--max-steps", str(steps + 15)]
    printed_by(cluster, place, tmp_path, *until, "--resume", code=0)
    assert_same_weights(checkpoint(run_dir), checkpoint_of(project(), tmp_path / "whole", *until))


def test_a_killed_driver_leaves_no_process(project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    with training(cluster, project(launcher="ray"), tmp_path, *FOR_EVER) as (process, output, _):
        ranks, [driver] = cluster.ranks(), cluster.drivers()
        assert len(ranks) == 2
        os.kill(driver, signal.SIGKILL)
        seconds_until_gone(ranks, limit=10)
        assert_ends(process, output, 128 + signal.SIGKILL)


def test_a_killed_rank_and_a_lost_node_change_no_weight(project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    with training(cluster, project(launcher="ray"), tmp_path, *MANY) as (process, output, run_dir):
        os.kill(cluster.ranks()[1], signal.SIGKILL)
        wait_for_line(output, "exit code 137: start 1 of 3 more")
        wait_for_line(run_dir / "train.log", "resumed from ")
        cluster.lose_node()
        wait_for_line(output, "exit code 69: start ")
        cluster.add_nodes(2)
        assert_ends(process, output)
    assert len(re.findall(r"resumed from \S+ epoch \d+, step \d+", (run_dir / "train.log").read_text())) == 2
    assert_same_weights(checkpoint(run_dir), checkpoint_of(project(), tmp_path / "whole", *MANY))


def test_a_job_goes_on_with_the_nodes_that_are_left(project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    with training(cluster, project(launcher="ray"), tmp_path, *MANY, nodes="1:2") as (process, output, run_dir):
        cluster.lose_node()
        assert_ends(process, output)
    assert checkpoint(run_dir)["world_size"] == 1


def test_the_doctor_examines_the_nodes(project: Render, cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add_nodes(2)
    assert "sound: a run can start here" in printed_by(cluster, project(launcher="ray"), tmp_path, "--doctor", code=0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("nodes", "variables", "said"), MISTAKES)
def test_a_mistake_is_told_in_one_line(
    nodes: str, variables: dict[str, str], said: str, project: Render, cluster: RayCluster, tmp_path: Path
) -> None:
    printed = printed_by(cluster, project(launcher="ray"), tmp_path, nodes=nodes, code=2, **variables)
    assert said in printed
    assert (printed.count("error: "), printed.count("Traceback")) == (1, 0)


class NewCluster(ThreadingHTTPServer):
    """What answers as the head of a cluster whose agents start after it: it refuses some jobs, and takes the next."""

    def __init__(self, *refusals: str) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.refusals = [*refusals]


class Answers(BaseHTTPRequestHandler):
    server: NewCluster

    def answer(self, code: int, content: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_GET(self) -> None:
        """Tell the version, and that the package of the code is there."""
        self.answer(200, json.dumps({"version": "4", "ray_version": "2", "ray_commit": "a", "session_name": "s"}))

    def do_POST(self) -> None:
        refusals = self.server.refusals
        self.answer(500, refusals.pop(0)) if refusals else self.answer(200, '{"job_id": "1", "submission_id": "a-job"}')

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("refusals", "printed"), [([TOO_EARLY, TOO_EARLY], "a-job\n"), (["full", TOO_EARLY], "Ray takes no job: .*full")]
)
def test_a_job_waits_for_a_cluster_that_has_just_started(refusals: list[str], printed: str, project: Render) -> None:
    """It asks again as long as agents are missing. Another refusal is final."""
    with NewCluster(*refusals) as server:
        Thread(target=server.serve_forever).start()
        env = {**os.environ, "RAY_ADDRESS": f"http://127.0.0.1:{server.server_port}"}
        is_final = "no job" in printed
        said = output_of([sys.executable, "-c", SUBMIT], project(launcher="ray"), env, code=1 if is_final else 0)
        server.shutdown()
    assert re.search(printed, said)
    assert len(server.refusals) == is_final


def test_of_one_to_two_nodes_one_with_gpus_is_enough(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = package("runtime.ray_nodes", launcher="ray")
    monkeypatch.setattr(nodes, "nodes_with", lambda needs: [{"CPU": 8.0}, {"GPU": 8.0, "CPU": 96.0}])
    settings = SimpleNamespace(nodes=(1, 2), gpus_per_node=None, cpus_per_node=None, nproc_per_node=None)
    job = nodes.Job(settings, [], None)
    assert (job.ranks, job.needs) == (8, {"GPU": 8, "CPU": 96})
