"""Jobs of a Slurm cluster on this machine: how they are submitted and waited for."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import PATH, hang_timeout
from tools.slurm import SlurmCluster, SlurmError

STATES = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT"
ENDED = frozenset(STATES.split())


@dataclass(frozen=True)
class Job:
    """A job as `scontrol show job` shows it. Codes are from the batch script, and restarts are requeues."""

    id: int
    state: str
    exit_code: int
    signal: int
    restarts: int
    fields: Mapping[str, str]


class Cluster(SlurmCluster):
    def submit(self, *arguments: str | Path) -> int:
        answer = self.run("sbatch", "--parsable", *arguments).stdout
        return int(answer.split(";")[0])

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
        return Job(job_id, fields["JobState"], code, number, int(fields["Restarts"]), fields)

    def wait(self, job_id: int, *states: str, timeout: float = 120) -> Job:
        """Wait until a job is in one of these states, or has ended. Raises SlurmError when it is late or cannot be."""
        wanted = frozenset(states) or ENDED
        deadline = time.monotonic() + hang_timeout(timeout)
        while (job := self.job(job_id)).state not in wanted:
            if job.state in ENDED or time.monotonic() > deadline:
                raise SlurmError(f"job {job_id} is {job.state}, expected {' or '.join(sorted(wanted))}")
            time.sleep(0.1)
        return job
