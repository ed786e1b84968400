"""--doctor names each fault of machines and of the ways between them, with its remedy, and says where all is sound."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support import hosts
from tests.support.processes import PATH, output_of, scaled, started
from tests.support.schedulers.mpi import EACH_MPIRUN, environment
from tests.support.schedulers.slurm import Cluster
from tests.support.training import ON_CPU, Started

PORT = 29400  # of launch.sh by default, which the firewalls of these tests know
# Of each Python there. libfaketime would do it for all programs, but lets time.sleep() and timed waits of Python fail.
EARLY = (
    'mkdir -p "$OTHER" && export PYTHONPATH="$OTHER" && '
    r'printf "import time\nright = time.time\ntime.time = lambda: right() + 90\n" >"$OTHER/sitecustomize.py"'
)
AHEAD = r"n2: the clock is (89|90|91) s ahead of that of n1: let chrony set both"
SOUND = "sound: a run can start here"
# As Docker does: a name of its own for each host, and a list of names. ip gives each command its own mounts.
NAMED = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2'

# Python asks the first that it finds which version is installed.
OTHER_TORCH = (
    'folder="$OTHER/torch-2.1.0.dist-info" && mkdir -p "$folder" && export PYTHONPATH="$OTHER" && '
    r'printf "Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n" >"$folder/METADATA"'
)


@dataclass
class Fault:
    """What is wrong, on machine 1 unless it says otherwise, and what --doctor says of it."""

    lines: Mapping[int, str]  # the findings of each machine, as a regular expression
    code: int = 2
    before: Mapping[int, str] = field(default_factory=dict)  # what the shell of a machine does before launch.sh
    variables: Mapping[str, str] = field(default_factory=dict)  # of machine 1
    filters: tuple[tuple[int, str], ...] = ()  # packets that do not come to a machine
    names: str = "{0} n1\n{1} n2\n"  # what machine 1 has in /etc/hosts
    options: tuple[str, ...] = ()
    launcher: str = "torchrun"
    machines: tuple[int, ...] = (0, 1)
    mtu: int | None = None  # of a router between them


FAULTS = {
    "the host name leads to loopback": Fault(
        {0: r"error: n2: its host name leads to 127\.0\.1\.1, where n1 does not reach it .*GLOO_SOCKET_IFNAME"},
        names="{0} n1\n127.0.1.1 n2\n",
    ),
    "RDZV_ENDPOINT leads to loopback": Fault(
        {
            0: r"error: node 1 has not connected to port 29400 of n1 within 20 s: start ./launch.sh --doctor there",
            1: r"error: n2: RDZV_ENDPOINT n1:29400 leads to 127\.0\.0\.1, this node itself: .*/etc/hosts",
        },
        names="127.0.0.1 n1\n{1} n2\n",
        variables={"RDZV_ENDPOINT": "n1"},
    ),
    "a firewall drops HEAD's port": Fault(
        {
            0: r"error: node 1 has not connected to port 29400 of n1",
            1: r"error: n2: RDZV_ENDPOINT \S+:29400 is out of reach \(timed out\): open this port in the firewall",
        },
        filters=((0, f"tcp dport {PORT}"),),
    ),
    "a firewall of node 0 drops what opens connections": Fault(
        {0: r"error: n1: n2 does not reach 10\.77\.0\.1:\d+ \(timed out\): open all ports from 32768 up to n2"},
        filters=((0, "tcp dport 32768-60999 tcp flags & (syn|ack) == syn"),),
    ),
    "another program has the port": Fault(
        {0: r"error: n1: port 29400 cannot be used \(Address already in use\): choose another in RDZV_ENDPOINT"},
        before={0: f"{{ {sys.executable} -m http.server {PORT} >/dev/null 2>&1 & sleep 3; }}"},
    ),
    "an interface that is not there": Fault(
        {1: r"error: n2: GLOO_SOCKET_IFNAME is eth7 \(No such device\): name one that has an address, of lo, veth0"},
        variables={"GLOO_SOCKET_IFNAME": "eth7"},
    ),
    "a small /dev/shm": Fault(
        {0: r"error: n2: /dev/shm has 16 MiB left, .*: mount -o remount,size=8G /dev/shm"},
        before={1: "mount -t tmpfs -o size=16m none /dev/shm"},
        options=("--workers", "1"),
    ),
    "another run directory": Fault(
        {0: r"error: n2: \S+ is not that of node 0 \(No such file or directory\): give --run-dir on"},
        before={1: 'mount -t tmpfs none "$RUNS"'},
    ),
    "a read-only run directory": Fault(
        {0: r"error: n2: \S+ takes no runs \(Read-only file system\): give --run-dir in another folder"},
        before={1: 'mount --bind "$RUNS" "$RUNS" && mount -o remount,bind,ro "$RUNS"'},
    ),
    "another torch": Fault(
        {0: r"error: n2: torch is 2\.1\.0, and 2\.\S+ on n1: install the same on both"}, before={1: OTHER_TORCH}
    ),
    # By which torchrun takes nodes for dead.
    "another clock, with torchrun": Fault({0: f"error: {AHEAD}$"}, before={1: EARLY}),
    "another clock": Fault({0: f"warning: {AHEAD}, or times of logs"}, launcher="launch", code=0, before={1: EARLY}),
    "the same host name": Fault(
        {0: r"warning: nodes 0 and 1 are both named n1, .*: give each a host name of its own"},
        code=0,
        before={1: "hostname n1"},
        variables={"GLOO_SOCKET_IFNAME": hosts.LINK, "LOCAL_ADDR": "10.77.0.2"},
    ),
    "a black hole for large packets": Fault(
        {0: r"error: n2: 9000 bytes from n1 do not arrive \(timed out\), and small packets do: lower the MTU of both"},
        mtu=1000,
    ),
    "node 0 does not come": Fault(
        {1: r"error: n2: nothing listens at RDZV_ENDPOINT 10\.77\.0\.1:29400: start ./launch.sh --doctor there"},
        launcher="launch",
        machines=(1,),
    ),
}


Told = dict[int, tuple[int, str]]
Examine = Callable[[Fault], Told]


@pytest.fixture
def examine(project: Render, tmp_path: Path) -> Iterator[Examine]:
    """Yield what runs launch.sh --doctor on two hosts side by side: the exit code of each, and what it printed."""
    if reason := hosts.missing("nft", "unshare"):
        pytest.skip(reason)
    with ExitStack() as stack:

        def run(fault: Fault) -> Told:
            two = stack.enter_context(hosts.hosts_apart(fault.mtu) if fault.mtu else hosts.two_hosts())
            (tmp_path / "runs").mkdir()
            start = partial(start_doctor, fault, two, project(launcher=fault.launcher), tmp_path)
            running = {number: stack.enter_context(start(number)) for number in fault.machines}
            codes = {number: process.wait(scaled(150)) for number, process in running.items()}
            return {number: (code, (tmp_path / f"output-{number}.log").read_text()) for number, code in codes.items()}

        yield run


def start_doctor(fault: Fault, two: Sequence[hosts.Host], project: Path, folder: Path, number: int) -> Started:
    names = fault.names if number else "{0} n1\n{1} n2\n"
    list_of_names = folder / f"hosts-{number}"
    list_of_names.write_text("127.0.0.1 localhost\n" + names.format(*(host.address for host in two)))
    for machine, packets in fault.filters:
        if machine == number:
            two[number].drop("input", packets)
    run = shlex.join(["./launch.sh", "--doctor", *ON_CPU, "--run-dir", f"{folder}/runs/run", *fault.options])
    script = " && ".join(filter(None, [NAMED, fault.before.get(number), f"exec {run}"]))
    variables = {
        "NNODES": "2",
        "NODE_RANK": str(number),
        "RDZV_ENDPOINT": f"{two[0].address}:{PORT}",
        "NPROC_PER_NODE": "1",
    }
    variables |= {"RUNS": f"{folder}/runs", "OTHER": f"{folder}/other"}
    command = ["unshare", "--uts", "sh", "-c", script, "sh", f"n{number + 1}", str(list_of_names)]
    env = {**os.environ, **variables, "PATH": PATH, **(fault.variables if number else {})}
    return started(two[number].command(*command), project, folder / f"output-{number}.log", env)


def findings(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(("error:", "warning:"))]


def test_sound_machines_are_called_sound(examine: Examine) -> None:
    told = examine(Fault({}))
    assert [code for code, _ in told.values()] == [0, 0], told
    assert [findings(printed) for _, printed in told.values()] == [[], []]
    assert told[0][1].splitlines()[-1] == SOUND
    for row in ("slowest pair: rank", "all-reduce", "broadcast", "gather"):
        assert re.search(rf"^  {row}.* \d+\.\d{{3}} ms +\d+ MiB/s$", told[0][1], re.MULTILINE), told[0][1]
    assert told[1][1] == "", "node 0 speaks for both"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_remedy(name: str, examine: Examine) -> None:
    fault = FAULTS[name]
    told = examine(fault)
    for number, line in fault.lines.items():
        printed = told[number][1]
        [finding] = findings(printed)
        assert re.match(line, finding), printed
        assert "Traceback" not in printed
    assert all(code == fault.code for code, _ in told.values()), told


def test_tasks_examine_slurm(own_project: Render, slurm_cluster: Cluster, free_port: int, tmp_path: Path) -> None:
    place = own_project(launcher="slurm")

    def examine(name: str, **variables: str) -> tuple[int, str]:
        """Submit ./launch.sh --doctor over two nodes. Returns the exit code of the job, and its output."""
        log, options = tmp_path / f"{name}.log", ["--doctor", *ON_CPU, "--run-dir", str(tmp_path / "run")]
        request = ["--nodes=2", "--ntasks-per-node=1", f"--output={log}"]
        job = slurm_cluster.wait(slurm_cluster.launch(place, *options, request=request, **variables))
        return job.exit_code, log.read_text()

    code, printed = examine("sound")
    assert code == 0, printed
    assert f"0: {SOUND}" in printed.splitlines()
    assert "error:" not in printed
    code, printed = examine("nowhere", MASTER_ADDR="192.0.2.1", MASTER_PORT=str(free_port))
    assert code == 2, printed
    assert re.search(rf"error: n2: .*rank 0 at 192\.0\.2\.1:{free_port}", printed)
    assert re.search(
        rf"error: rank 1 has not connected to port {free_port} of n1 within 20 s: see what srun says", printed
    )


@pytest.mark.parametrize("mpirun", EACH_MPIRUN)
def test_mpirun_is_examined_by_its_ranks(mpirun: str, project: Render, tmp_path: Path) -> None:
    place, variables = project(launcher="mpirun"), environment(mpirun, tmp_path)
    command = ["./launch.sh", "2", "--doctor", *ON_CPU, "--run-dir", str(tmp_path / "runs" / "run")]
    assert SOUND in output_of(command, place, variables).splitlines()
    printed = output_of(["sh", "-c", 'ulimit -n 50; exec "$@"', "sh", *command], place, variables, code=2)
    assert re.search(r"^error: \S+: a process may open 50 files only, and may need 56: ulimit -n 56$", printed, re.M)
