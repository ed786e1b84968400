"""Runs for the nemesis on two machines, here network namespaces, whose link can be cut, slow or lossy."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from generator.chaos.job import Job, Starter, launch
from tests.support.hosts import LINK, Host

HEAD_TIMEOUT = 10  # seconds, of launch.sh
WALL = (
    "add table inet chaos; add chain inet chaos in {{ type filter hook input priority 0; }}; add rule inet chaos in {}"
)
# A kernel need not have netem, which delays packets; to drop what comes too fast slows connections, too.
DROPPED = {"slow": "limit rate over 500 kbytes/second drop", "lossy": "numgen random mod 100 < 5 drop"}


@dataclass
class HostLink:
    """The link between two hosts."""

    hosts: tuple[Host, Host]

    def set_state(self, state: str) -> None:
        """Be "sound", "cut", "slow" or "lossy" from now on."""
        for host in self.hosts:
            host.set_link("down" if state == "cut" else "up")
            subprocess.run(host.command("nft", "delete table inet chaos"), capture_output=True)  # if there is one
            if state in DROPPED:
                host.run("nft", WALL.format(f"iifname {LINK} {DROPPED[state]}"))


@dataclass
class HostsJob(Job):
    """A launch.sh on each of two hosts."""

    run_dir: Path
    machines: list[Job]
    first: int = 0  # exit code that is not 0, of the machine that ended first

    def launchers(self) -> list[psutil.Process]:
        """Return the launchers of both machines."""
        return [launcher for machine in self.machines for launcher in machine.launchers()]

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks of both machines."""
        return [rank for machine in self.machines for rank in machine.ranks()]

    def processes(self) -> list[psutil.Process]:
        """Return what runs on both machines."""
        return [process for machine in self.machines for process in machine.processes()]

    def code(self) -> int | None:
        """Return the code of the machine that failed first, when both have ended."""
        codes = [machine.code() for machine in self.machines]
        self.first = self.first or next((code for code in codes if code), 0)
        return None if None in codes else self.first

    def output(self) -> str:
        """Return what both machines have printed."""
        return "".join(machine.output() for machine in self.machines)


def on_hosts(project: Path, folder: Path, hosts: tuple[Host, Host]) -> Starter:
    """Return what starts a project on two hosts; on one of them, if there is but one process."""

    def start_one(number: int, run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        host, nodes = hosts[number], min(processes, len(hosts))
        place = {"NNODES": str(nodes), "NODE_RANK": str(number), "HEAD": hosts[0].address, "LOCAL_ADDR": host.address}
        place |= {"GLOO_SOCKET_IFNAME": LINK, "HEAD_TIMEOUT": str(HEAD_TIMEOUT), "JOB_ID": run_dir.parent.name}
        return launch(project, folder, (), place, before=host.command())(run_dir, processes // nodes, options)

    def start(run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        machines = range(min(processes, len(hosts)))
        return HostsJob(run_dir, [start_one(number, run_dir, processes, options) for number in machines])

    return start
