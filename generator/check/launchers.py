"""Starts projects by the real launchers, cold, with the command that their README tells."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, TimeoutExpired

from generator.answers.questions import TEMPLATE
from generator.check.train.records import READERS, read_jsonl
from generator.check.train.training_case import END, STOP, TrainingCase, environment
from generator.check.train.verification import TrainingResult, checkpoint_parts

DEADLINE = 180.0  # seconds
# Open MPI refuses root and more ranks than cores, and ties each rank to one core; MPICH does not read these.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


@contextmanager
def launchers_ready(launchers: Iterable[str], folder: Path) -> Iterator[Mapping[str, str]]:
    """Yield the variables that the launchers need, with a Slurm cluster behind them where one is wanted and can be."""
    if "slurm" not in launchers or "SLURM_CONF" in os.environ:
        yield OPEN_MPI | {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
        return
    command = [sys.executable, "-m", "tools.slurm", str(folder)]
    cluster = subprocess.Popen(command, cwd=TEMPLATE, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)
    try:
        assert cluster.stdout
        conf = cluster.stdout.readline().strip()  # nothing if it cannot be; then it says why on standard error
        yield OPEN_MPI | ({"SLURM_CONF": conf} if conf else {})
    finally:
        cluster.communicate()  # it ends with its standard input


def compare_with_launcher(
    case: TrainingCase, command: str, env: Mapping[str, str], trained: TrainingResult
) -> str | None:
    """Return in what a project that its launcher trains, stops and resumes differs from the forked ranks' work."""
    if trained.failures:
        return f"forked ranks fail on all of the data: {trained.failures[0][1]}"
    program = ["env", *shlex.split(command)] if "=" in command.split()[0] else shlex.split(command)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = environment(case.folder) | dict(env) | {"PATH": path}
    starter = {"mpirun": "mpirun"}.get(case.combination.answer("launcher"), program[0])
    if shutil.which(starter, path=path) is None:
        return f"{starter} is not installed here"
    run_dir = case.folder / "cold"
    shutil.rmtree(run_dir, ignore_errors=True)
    for name, options in (("train", ["--max-steps", str(STOP)]), ("resume", ["--max-steps", str(END), "--resume"])):
        whole = [*program, *case.run("cold", *options).options]
        code, printed = run_to_end(whole, case.folder / "project", variables)
        (case.folder / f"cold-{name}-output.txt").write_text(printed)
        if code != 0:
            how = f"did not end within {DEADLINE:.0f} s" if code is None else f"exit code {code}"
            return f"{shlex.join(whole)}: {how}\n{printed}"
    parts = checkpoint_parts(run_dir / "checkpoints" / "last.pt")
    if differing := [part for part in trained.parts if parts.get(part) != trained.parts[part]]:
        return f"its last checkpoint differs from that of forked ranks in: {', '.join(differing)}"
    recorded = READERS.get(case.combination.answer("logging"), read_jsonl)(run_dir).get("train/loss", [])
    if [tuple(pair) for pair in trained.recorded] != recorded:
        return f"it records other losses than forked ranks: {recorded}, not {trained.recorded}"
    return None


def run_to_end(command: list[str], folder: Path, env: Mapping[str, str]) -> tuple[int | None, str]:
    """Run a command, and return its exit code and all that it printed; None: it was killed at the deadline."""
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, printed
    except BaseException as error:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(process.pid, signal.SIGTERM)  # which a launcher passes on to what it has started
            with suppress(TimeoutExpired):
                process.wait(2)
            os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(error, TimeoutExpired):
            raise
        return None, process.communicate()[0]
