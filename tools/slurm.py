"""A real Slurm cluster of two nodes on one machine, for the time of a test or a check.

python -m tools.slurm FOLDER starts one in a folder, prints its SLURM_CONF, and ends it at the end of standard input.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from typing import TypeVar

from generator.check.train.forking import free_ports

NODES = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
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
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
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
SETTING = re.compile(rb"(?:^|\0)SLURM_CONF=([^\0]*)")
OWNER = re.compile(r"/slurm-of-(\d+)/slurm\.conf$")
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
    if subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True).returncode:
        return "Slurm needs namespaces: 'unshare --mount --uts' is refused here"
    return None


class SlurmCluster:
    """Two Slurm nodes, ``n1`` and ``n2``, of four CPUs each, with daemons, key and ports of their own, all in a folder.

    The nodes get a mount and a host-name namespace, so that inside a job the host is called ``n1`` or ``n2`` and both
    names resolve, while ``/etc/hosts`` of the machine is left alone. Give ``env`` to every program that shall talk to
    this cluster. Daemons end with the thread that started them, even if it is killed; the jobs that it leaves behind
    are then ended by the next start on this machine. Slurm sets SLURM_CONF in every task: by it they are known.
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
        self._ports = free_ports()  # claimed as long as this is kept

    def __enter__(self: T) -> T:
        """Start all daemons and return once both nodes are idle, or leave nothing behind.

        Raises SlurmError, with the end of the logs, if this takes too long.
        """
        with ExitStack() as stack:
            stack.push(self)
            _kill_all(_is_orphan)
            self._write_files()
            deadline = time.monotonic() + 30
            files = [f"--{kind}={self.folder}/munge.{kind}" for kind in MUNGE_FILES]
            self._spawn("munged", "munged", "--foreground", "--force", *files)
            self._until((self.folder / "munge.socket").is_socket, deadline)
            self._spawn("slurmctld", "slurmctld", "-D")
            for name in NODES:
                enter = ["unshare", "--mount", "--uts", "sh", "-c", ENTER_NODE, "enter", name, f"{self.folder}/hosts"]
                self._spawn(name, *enter, "slurmd", "-D", "-N", name)
            shown, idle = ["sinfo", "-h", "-p", "test", "-N", "-o", "%N %T"], [f"{name} idle" for name in NODES]
            self._until(lambda: self.run(*shown, check=False).stdout.splitlines() == idle, deadline)
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End the daemons and every process of every job, and delete the folder."""
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        _kill_all(lambda conf: conf == self.env["SLURM_CONF"])
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str | Path, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Return the result of a client such as ``srun``. If ``check``, raise SlurmError on a non-zero exit code."""
        argv = [str(part) for part in command]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise SlurmError(f"{shlex.join(argv)} returned {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def _write_files(self) -> None:
        """Write the configuration, a new key and the host names of the nodes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "state").mkdir(parents=True)
        ports = [*islice(self._ports, 2 + len(NODES))]
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} Port={port} CPUs=4"
            for (name, address), port in zip(NODES.items(), ports[1:], strict=False)
        )
        host = socket.gethostname().partition(".")[0]
        # A job's number decides at which port its ranks meet: jobs of other clusters here must not meet there.
        first_job = ports[-1] - 12000 + 20000
        config = CONFIG.format(host=host, ports=ports, folder=self.folder, nodes=nodes, first_job=first_job)
        (self.folder / "slurm.conf").write_text(config)
        key = self.folder / "munge.key-file"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        names = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (self.folder / "hosts").write_text(names + Path("/etc/hosts").read_text())

    def _spawn(self, name: str, *command: str) -> None:
        """Start a daemon that ends with us; its output goes to ``name``.out."""
        daemon = ["setpriv", "--pdeathsig", "KILL", *command]
        with (self.folder / f"{name}.out").open("wb") as output:
            self._daemons[name] = subprocess.Popen(
                daemon, env=self.env, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
            )

    def _until(self, true: Callable[[], bool], deadline: float) -> None:
        """Return once ``true()`` holds; raise SlurmError if a daemon ends or it is too late."""
        while not true():
            ended = [name for name, each in self._daemons.items() if each.poll() is not None]
            if ended or time.monotonic() > deadline:
                reason = f"{ended[0]} ended" if ended else "it took too long"
                logs = {path.name: path.read_text().splitlines()[-15:] for path in sorted(self.folder.glob("*.out"))}
                said = "\n".join("\n".join([f"== {name}", *lines]) for name, lines in logs.items())
                raise SlurmError(f"Slurm did not start: {reason}\n{said}")
            time.sleep(0.05)


def _is_orphan(conf: str) -> bool:
    """Return whether a cluster with this SLURM_CONF is one whose test process is gone."""
    owner = OWNER.search(conf)
    return owner is not None and not Path(f"/proc/{owner[1]}").exists()


def _kill_all(chosen: Callable[[str], bool]) -> None:
    """Kill the processes whose SLURM_CONF is ``chosen``; raise SlurmError if some are left after ten seconds."""
    deadline = time.monotonic() + 10
    while found := [pid for pid, conf in _processes() if chosen(conf)]:
        if time.monotonic() > deadline:
            raise SlurmError(f"processes {found} cannot be killed")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes() -> Iterator[tuple[int, str]]:
    """Yield every other process that was started with SLURM_CONF, and its value."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # a process may end while it is looked at
            setting = SETTING.search(path.read_bytes())
            if setting and path.parent.name != str(os.getpid()):
                yield int(path.parent.name), os.fsdecode(setting[1])


def main() -> None:
    """Run the command. Exit code 1, with the reason on standard error: there can be no cluster here."""
    if reason := missing():
        sys.exit(reason)
    try:
        with SlurmCluster(Path(sys.argv[1])) as cluster:
            print(cluster.env["SLURM_CONF"], flush=True)
            sys.stdin.read()
    except (SlurmError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
