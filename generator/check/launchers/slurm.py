"""A real Slurm cluster of two nodes on one machine, for the time of a test or a check.

``with SlurmCluster(folder):`` starts munged, slurmctld and two slurmd of its own: own
configuration, key, sockets and ports, all state in the given folder. The nodes get
a mount and a host-name namespace, so that inside a job the host is called ``n1`` or
``n2`` and both names resolve, while ``/etc/hosts`` of the machine is left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

NODES = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
CPUS_PER_NODE = 4
CLIENTS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")
CLIENT_SETTINGS = ("SLURM", *(f"{name.upper()}_" for name in (*CLIENTS, "salloc")))
DAEMONS = ("munged", "slurmctld", "slurmd")
MUNGE_FILES = ("socket", "key-file", "pid-file", "log-file", "seed-file")
TOOLS = ("unshare", "setpriv", "mount", "hostname")

# config_overrides: more CPUs than the machine has, so 2 x 2 tasks fit on two cores.
# KillWait: on a busy machine, ranks take seconds to leave after their checkpoint.
# cred_expire: a requeued job waits that long, 120 s by default; less than 5 is ignored.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=10
MinJobAge=86400
ReturnToService=2
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=2
"""
FOLDER_OF = re.compile(rb"^SLURM_CONF=.*/slurm-of-(\d+)/slurm\.conf$")
# Sockets live in the folder: a path of a socket has at most 107 bytes.
LONGEST_SOCKET = "/n1/n1_99999.4294967295"
ENTER_NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


T = TypeVar("T", bound="SlurmCluster")


class SlurmError(RuntimeError):
    """Slurm did not start, or a job did not get where it was expected in time."""


def missing() -> str | None:
    """Return why no Slurm cluster can be started here, or None if one can."""
    if os.geteuid() != 0:
        return "Slurm needs root: slurmd and its namespaces run as root"
    absent = [name for name in (*DAEMONS, *CLIENTS, *TOOLS) if not shutil.which(name)]
    if absent:
        return f"Slurm needs {', '.join(absent)}: run tests/clusters/install.sh"
    probe = ["unshare", "--mount", "--uts", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "Slurm needs namespaces: 'unshare --mount --uts' is refused here"
    return None


class SlurmCluster:
    """Two Slurm nodes, ``n1`` and ``n2``, of four CPUs each, on this machine.

    Give ``env`` to every program that shall talk to this cluster. Daemons end with
    the thread that called ``start``, even if it is killed; the jobs that it leaves
    behind are then ended by the next ``start`` on this machine. Processes of jobs are
    known by SLURM_CONF in their environment, which Slurm sets in every task.
    """

    def __init__(self, parent: Path) -> None:
        """Choose the folder, within ``parent``; nothing is started or written yet."""
        self.folder = parent.resolve() / f"slurm-of-{os.getpid()}"
        if len(f"{self.folder}{LONGEST_SOCKET}".encode()) > 107:
            raise ValueError(f"path too long for the sockets of Slurm: {self.folder}")
        # A test that itself runs within a Slurm job must not pass its job on.
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(CLIENT_SETTINGS)}
        self.env["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self: T) -> T:
        """Start the cluster, or leave nothing behind."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End the cluster."""
        self.stop()

    def start(self, timeout: float = 30) -> None:
        """Start all daemons and return once both nodes are idle.

        Raises SlurmError, with the end of the logs, if this takes too long; call
        ``stop`` in that case too.
        """
        _kill_all(_is_orphan)
        self._write_files()
        deadline = time.monotonic() + timeout
        files = [f"--{kind}={self.folder}/munge.{kind}" for kind in MUNGE_FILES]
        self._spawn("munged", ["munged", "--foreground", "--force", *files])
        self._until((self.folder / "munge.socket").is_socket, deadline)
        self._spawn("slurmctld", ["slurmctld", "-D"])
        for name in NODES:
            enter = ["unshare", "--mount", "--uts", "sh", "-c", ENTER_NODE, "enter"]
            enter += [name, str(self.folder / "hosts")]
            self._spawn(name, [*enter, "slurmd", "-D", "-N", name])
        self._until(self._idle, deadline)

    def stop(self) -> None:
        """End the daemons and every process of every job, and delete the folder.

        May be called at any time and more than once.
        """
        setting = f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        _kill_all(lambda environ: setting in environ)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str | Path, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a client such as ``srun`` and return its result, with text output.

        Raises SlurmError, with the output, on a non-zero exit code if ``check``.
        """
        argv = [str(part) for part in command]
        done = subprocess.run(
            argv,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise SlurmError(f"{shlex.join(argv)} returned {done.returncode}:\n" f"{done.stdout}{done.stderr}")
        return done

    def _write_files(self) -> None:
        """Write the configuration, a new key and the host names of the nodes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "state").mkdir(parents=True)
        ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} Port={port} CPUs={CPUS_PER_NODE}"
            for (name, address), port in zip(NODES.items(), ports[1:], strict=True)
        )
        host = socket.gethostname().partition(".")[0]
        text = CONFIG.format(host=host, ports=ports, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        key = self.folder / "munge.key-file"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        names = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (self.folder / "hosts").write_text(names + Path("/etc/hosts").read_text())

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a daemon that ends with us; its output goes to ``name``.out."""
        with (self.folder / f"{name}.out").open("wb") as output:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _until(self, true: Callable[[], bool], deadline: float) -> None:
        """Return once ``true()`` holds; raise if a daemon ends or it is too late."""
        while not true():
            ended = [name for name, each in self._daemons.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                reason = f"{ended[0]} ended" if ended else "it took too long"
                raise SlurmError(f"Slurm did not start: {reason}\n{self._report()}")
            time.sleep(0.05)

    def _idle(self) -> bool:
        """Tell whether Slurm reports both nodes as idle."""
        shown = self.run("sinfo", "-h", "-p", "test", "-N", "-o", "%N %T", check=False).stdout
        return shown.splitlines() == [f"{name} idle" for name in NODES]

    def _report(self) -> str:
        """Return the last lines that each daemon wrote."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:])
            for path in sorted(self.folder.glob("*.out"))
        )


def _free_ports(count: int) -> list[int]:
    """Return distinct TCP ports that nobody listened on a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _is_orphan(environ: Sequence[bytes]) -> bool:
    """Tell whether a process belongs to a cluster whose test process is gone."""
    owners = [int(found[1]) for found in map(FOLDER_OF.match, environ) if found]
    return any(not Path(f"/proc/{owner}").exists() for owner in owners)


def _kill_all(chosen: Callable[[Sequence[bytes]], bool], timeout: float = 10) -> None:
    """Kill the processes whose environment is ``chosen`` until there is none left.

    Raises SlurmError if some are left after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while found := [pid for pid, environ in _environments() if chosen(environ)]:
        if time.monotonic() > deadline:
            raise SlurmError(f"processes {found} cannot be killed")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    """Yield every other process with the settings that it was started with."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            if pid != os.getpid():
                yield pid, path.read_bytes().split(b"\0")
