"""Jobs of a Slurm cluster on this machine: how they are submitted and waited for."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import PATH, hang_timeout
from tools.slurm import SlurmCluster, SlurmError

STATES = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT"
ENDED = frozenset(STATES.split())


class Job(NamedTuple):
    """What `scontrol show job` tells about one job: the codes are those of the batch script, restarts are requeues."""

    state: str
    exit_code: int
    signal: int
    restarts: int


class Cluster(SlurmCluster):
    def submit(self, *arguments: str | Path) -> int:
        return int(self.run("sbatch", "--parsable", *arguments).stdout.split(";")[0])

    def launch(self, project: Path, *options: str, request: Sequence[str] = (), **variables: str) -> int:
        """Submit a job by the launch.sh of a project, with options of sbatch, and return its number."""
        given = {"PATH": PATH, "REQUEST": " ".join(request), **variables}
        place = ["env", f"--chdir={project}", *(f"{name}={value}" for name, value in given.items())]
        said = self.run(*place, "./launch.sh", *options).stdout
        return int(said.removeprefix("Submitted batch job ").partition(":")[0])

    def job(self, job_id: int) -> Job:
        text = self.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
        fields = dict(re.findall(r"(?:^|\s)([A-Z][\w/:]*)=(\S*)", text))
        code, number = map(int, fields["ExitCode"].split(":"))
        return Job(fields["JobState"], code, number, int(fields["Restarts"]))

    def wait(self, job_id: int, *states: str, timeout: float = 120) -> Job:
        """Wait until a job is in one of these states, or has ended. Raises SlurmError when it is late or cannot be."""
        wanted = frozenset(states) or ENDED
        deadline = time.monotonic() + hang_timeout(timeout)
        while (job := self.job(job_id)).state not in wanted:
            if job.state in ENDED or time.monotonic() > deadline:
                raise SlurmError(f"job {job_id} is {job.state}, expected {' or '.join(sorted(wanted))}")
            time.sleep(0.1)
        return job
