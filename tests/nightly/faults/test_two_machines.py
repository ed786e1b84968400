"""launch.sh on two hosts: they train as one, and no process is left for long where one is lost; elastic runs go on."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.support import hosts
from tests.support.processes import PATH, output_of, scaled, started, wait_until
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, launch_command

CORES = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
HEAD_TIMEOUT = 10  # of launch.sh
UNTIL_NOTICED = 10  # beyond it: launch.sh looks every 5 s, for 5 s at most
SILENCE = 5  # --timeout: how long the ranks wait for each other
SOON = 10  # until all has ended where a connection breaks, or once the ranks have waited
LOST = 69  # the exit code of those that are left
STEPS = ("--max-steps", "12")
FOR_EVER = ("--epochs", "1000", "--eval-every", "1000", "--timeout", str(SILENCE))
ELASTIC = {"NNODES": "1:2", "MAX_RESTARTS": "3"}
MANY = 3000  # steps: machine 0 alone does not take as many while machine 1 starts again
OFTEN = 20  # --save-every
Start = Callable[[str], "Cluster"]
RESUMED = r"resumed from \S+ epoch \d+, step (\d+)\n.* step \d+  train/loss"


@dataclass
class Machine:
    host: hosts.Host
    agent: subprocess.Popen[bytes]
    output: Path

    def wait(self, since: float, limit: float) -> float:
        """Wait until nothing runs on the host any more; give how long after the moment since that was."""
        deadline = since + scaled(limit)
        while self.host.processes() or self.agent.poll() is None:
            assert time.perf_counter() < deadline, f"still running: {self.output.read_text()}"
            time.sleep(0.02)
        return time.perf_counter() - since

    @property
    def code(self) -> int:
        return self.agent.wait(timeout=scaled(1))


@dataclass
class Cluster:
    hosts: tuple[hosts.Host, hosts.Host]
    project: Path
    folder: Path
    stack: ExitStack

    def __post_init__(self) -> None:
        self.run_dir = self.folder / "run"  # on the file system that the hosts share

    @property
    def log(self) -> str:
        file = self.run_dir / "train.log"
        return file.read_text() if file.exists() else ""

    def start(self, number: int, *options: str, **variables: str) -> Machine:
        host, output = self.hosts[number], self.folder / f"{number}-{time.monotonic_ns()}.log"
        pinned = host.command("taskset", "--cpu-list", CORES[number % len(CORES)], "./launch.sh")
        place = {"NODE_RANK": str(number), "HEAD": self.hosts[0].address, "LOCAL_ADDR": host.address}
        given = {"NNODES": "2", "NPROC_PER_NODE": "1", "HEAD_TIMEOUT": str(HEAD_TIMEOUT)} | variables
        command = [*pinned, *ON_CPU, "--run-dir", str(self.run_dir), *options]
        env = os.environ | place | given | {"GLOO_SOCKET_IFNAME": hosts.LINK, "PATH": PATH}
        return Machine(host, self.stack.enter_context(started(command, self.project, output, env)), output)

    def start_both(self, *options: str, **variables: str) -> tuple[Machine, Machine]:
        return self.start(0, *options, **variables), self.start(1, *options, **variables)

    def wait_for(self, what: str, begin: int = 0, timeout: float = 90) -> re.Match[str]:
        """Wait until the log, from a place on, has a regular expression, and return the match."""
        pattern = re.compile(what, re.DOTALL)
        output = self.folder.glob("*.log")
        return wait_until(lambda: pattern.search(self.log, begin), timeout, lambda: [*map(Path.read_text, output)])


@pytest.fixture
def cluster(project: Render, tmp_path: Path) -> Iterator[Start]:
    if reason := hosts.missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        pair = stack.enter_context(hosts.two_hosts())
        yield lambda launcher: Cluster(pair, project(launcher=launcher), tmp_path, stack)


@pytest.mark.parametrize("launcher", ["torchrun", "launch"])
def test_two_give_the_weights_of_one(
    launcher: str, cluster: Start, project: Render, tmp_path: Path, measured: Measured
) -> None:
    two, started = cluster(launcher), time.perf_counter()
    for machine in two.start_both(*STEPS):
        machine.wait(started, limit=120)
        assert machine.code == 0, machine.output.read_text()
    measured("two machines", f"{launcher}: start, 12 steps and end (s)", time.perf_counter() - started)
    here = ["taskset", "--cpu-list", ",".join(CORES), *launch_command(launcher, 2, tmp_path), *ON_CPU]
    output_of([*here, "--run-dir", str(tmp_path / "one"), *STEPS], project(launcher=launcher), os.environ)
    assert checkpoint(two.run_dir)["world_size"] == 2
    assert_same_weights(checkpoint(two.run_dir), checkpoint(tmp_path / "one"))


def test_both_machines_end_when_the_link_is_cut(cluster: Start, measured: Measured) -> None:
    two = cluster("torchrun")
    near, far = two.start_both(*FOR_EVER)
    two.wait_for("step 30 ")
    near.host.set_link("down")
    cut = time.perf_counter()
    measured("two machines", "torchrun: link cut, machine 0 (s)", near.wait(cut, SILENCE + SOON))
    measured("two machines", "torchrun: link cut, machine 1 (s)", far.wait(cut, HEAD_TIMEOUT + UNTIL_NOTICED))
    assert near.code != 0
    assert far.code != 0


@pytest.mark.parametrize(("launcher", "victim"), [("torchrun", 0), ("launch", 1)])
def test_a_killed_launcher_ends_both_machines(launcher: str, victim: int, cluster: Start, measured: Measured) -> None:
    two = cluster(launcher)
    machines = two.start_both(*FOR_EVER)
    two.wait_for("step 30 ")
    machines[victim].agent.kill()
    killed = time.perf_counter()
    machines[victim].wait(killed, limit=2)
    took = machines[1 - victim].wait(killed, SOON)
    measured("two machines", f"{launcher}: launcher of machine {victim} killed, the other one (s)", took)
    assert machines[1 - victim].code == LOST
    assert "Traceback" not in machines[1 - victim].output.read_text()


def test_a_launcher_that_is_stopped_at_the_end_lets_the_other_one_end(cluster: Start, tmp_path: Path) -> None:
    two = cluster("torchrun")
    two.project = shutil.copytree(two.project, tmp_path / "slow")
    train, last = two.project / "train.py", "sys.exit(distributed.launch(main, CONFIG))"
    assert last in train.read_text()
    slow = f"import time\n\n    code = distributed.launch(main, CONFIG)\n    time.sleep({SILENCE})\n    sys.exit(code)"
    train.write_text(train.read_text().replace(last, slow))
    near, far = two.start_both(*STEPS)
    two.wait_for("done: ")
    far.agent.terminate()
    stopped = time.perf_counter()
    for machine in (near, far):
        machine.wait(stopped, SILENCE + SOON)
        assert machine.code == 0, machine.output.read_text()


def test_an_elastic_run_goes_on_alone_and_takes_a_machine_back(cluster: Start, measured: Measured) -> None:
    two, options = cluster("torchrun"), (*FOR_EVER, "--save-every", str(OFTEN), "--max-steps", str(MANY))
    near, far = two.start_both(*options, **ELASTIC)
    two.wait_for("step 60 ")
    far.agent.kill()
    killed, trained = time.perf_counter(), int(re.findall(r" step (\d+) ", two.log)[-1])
    alone = two.wait_for(rf"world size 1,.*?{RESUMED}")
    took = time.perf_counter() - killed
    measured("two machines", "elastic: machine 1 killed, until machine 0 trains alone (s)", took)
    assert int(alone[1]) >= trained - OFTEN
    back, far = time.perf_counter(), two.start(1, *options, **ELASTIC)
    together = two.wait_for(rf"stopped after step (\d+);.*?world size 2,.*?{RESUMED}", alone.end())
    measured("two machines", "elastic: machine 1 started again, until both train (s)", time.perf_counter() - back)
    assert together[1] == together[2], "a step was lost"
    for machine in (near, far):
        machine.wait(back, limit=300)
        assert machine.code == 0, machine.output.read_text()
    assert checkpoint(two.run_dir)["progress"]["step"] == MANY
