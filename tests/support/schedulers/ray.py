"""A real Ray cluster on this machine, to which tests add nodes and submit jobs.

python -m tests.support.schedulers.ray starts a node, which takes jobs, and one more node for each line of its input.
It prints a line of JSON about each node. The end of its input, or of this process, ends them all.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil

from generator.answers.questions import TEMPLATE
from generator.check.train.forking import free_ports
from tests.support.processes import PATH, hang_timeout, started

MARK = "DDP_RAY_CLUSTER"  # the variable by which all processes of a cluster are known
STORE = 80 * 2**20  # bytes, nearly the least that Ray takes: nothing goes through it
# Other programs may fill the memory, and would leave it nothing.
SETTINGS = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
SETTINGS |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0"}
# All of it starts in time on a machine that is busy with other tests, too.
SETTINGS |= {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300", "RAY_agent_register_timeout_ms": "300000"}
SETTINGS |= {"RAY_worker_register_timeout_seconds": "300"}


class RayCluster:
    def __init__(self) -> None:
        self.variables = {**os.environ, "PATH": PATH, **SETTINGS, MARK: str(os.getpid())}
        command = [sys.executable, "-m", "tests.support.schedulers.ray"]
        self.tool = subprocess.Popen(command, cwd=TEMPLATE, env=self.variables, stdin=PIPE, stdout=PIPE, text=True)
        self.raylets: list[int] = []  # the process of each node whose death loses the node
        self.address = self._take_node()

    def _take_node(self) -> str:
        """Read the facts of a new node, and return the address for jobs."""
        assert self.tool.stdout
        told = json.loads(self.tool.stdout.readline())
        self.raylets.append(told["raylet"])
        return str(told["address"])

    def add_nodes(self, number: int) -> None:
        assert self.tool.stdin
        while len(self.raylets) < number:
            print("add", file=self.tool.stdin, flush=True)
            self._take_node()

    def lose_node(self) -> None:
        """Kill all processes of the newest node, like the loss of a machine."""
        raylet = psutil.Process(self.raylets.pop())
        for process in [raylet, *raylet.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def shut_down(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.tool.communicate(timeout=hang_timeout(30))
        self.tool.kill()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, *words: str) -> list[int]:
        """Return the processes of the cluster and its jobs whose command line has these words."""
        mark, found = f"{MARK}={os.getpid()}\0".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may end while it is looked at
                command = (folder / "cmdline").read_bytes().decode().split("\0")
                if mark in (folder / "environ").read_bytes() and all(word in command for word in words):
                    found.append(int(folder.name))
        return sorted(found)

    @contextmanager
    def launched(
        self, project: Path, nodes: str, *options: str, output: Path, **variables: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start launch.sh with its output in a file, and kill its job at the end."""
        env = self.variables | {"RAY_ADDRESS": self.address} | variables
        try:
            with started(["./launch.sh", nodes, *options], project, output, env) as process:
                yield process
        finally:
            for driver in self.drivers():
                os.kill(driver, signal.SIGKILL)

    def run(self, *command: str) -> None:
        env = self.variables | {"RAY_ADDRESS": self.address}
        subprocess.run(command, env=env, check=True, capture_output=True, timeout=hang_timeout(60))

    def drivers(self) -> list[int]:
        return self.processes("drive")

    def ranks(self) -> list[int]:
        return self.processes("-u", "--run-dir")


def start_nodes(folder: str) -> Generator[dict[str, Any]]:
    """Start a node for each next(), and yield its address and process; shut down all of them at the end."""
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir()
    from ray.cluster_utils import Cluster  # not at the top: it reads the variables

    own = {"object_store_memory": STORE, "include_log_monitor": False, "num_cpus": 1}
    head = {"include_dashboard": True, "dashboard_port": next(free_ports()), "no_monitor": True}
    cluster = Cluster()
    try:
        for number in count(1):
            settings = own | head if number == 1 else own
            node = cluster.add_node(**settings, node_ip_address=f"127.0.0.{number + 1}")
            (raylet,) = node.all_processes["raylet"]
            yield {"address": f"http://{cluster.webui_url}", "raylet": raylet.process.pid}
    finally:
        cluster.shutdown()


def main() -> None:
    # Ray's sockets lie there, and a path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        nodes = start_nodes(folder)
        print(json.dumps(next(nodes)), flush=True)
        for _ in sys.stdin:
            print(json.dumps(next(nodes)), flush=True)
        nodes.close()


if __name__ == "__main__":
    main()
