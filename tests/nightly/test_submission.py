"""What is submitted to Slurm is what runs: edits while a job waits, runs or is queued again change nothing of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generator.render.git import run
from generator.update.replay import put_under_git
from tests.conftest import Measured, Render
from tests.support.processes import PATH, wait_for_line, write_program
from tests.support.schedulers.slurm import Cluster
from tests.support.training import ON_CPU, checkpoint, differences
from tools.rewriting import Rewrite

STEPS = ("--max-steps", "40", "--log-every", "2", "--save-every", "10", "--workers", "1")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")


@pytest.fixture
def place(own_project: Render) -> Path:
    """A project with one commit, whose steps take as long as the variable PACE says until it resumes."""
    project = own_project(launcher="slurm")
    slow = '__import__("time").sleep(0 if run.config.resume else float(__import__("os").environ.get("PACE", 0)))\n{}'
    Rewrite("run.progress.advance($$$A)", slow, "train_step").apply(project / "train.py")
    where = "python -c \"import ddp_project; print('imported', ddp_project.__file__)\"\n"
    script = (project / "launch.sh").read_text()
    (project / "launch.sh").write_text(script.replace("\n# One task that fails", f"\n{where}\n# One task that fails"))
    put_under_git(project)
    return project


@pytest.fixture
def python(place: Path, tmp_path: Path) -> Path:
    """The folder of a Python in which the project is installed by pip install -e, beside all that is here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/*/site-packages"))
    (packages / "here.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv" / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", "--no-build-isolation", "-e", place], check=True)
    return tmp_path / "venv" / "bin"


def trained(cluster: Cluster, folder: Path, run_dir: Path, *options: str) -> dict[str, Any]:
    """The last checkpoint of a run of the files that are in a folder, which nobody edits meanwhile."""
    program = [sys.executable, "train.py", *options, "--run-dir", str(run_dir)]
    cluster.run("srun", "--chdir", str(folder), *TWO_NODES, "--cpus-per-task=1", *program)
    return checkpoint(run_dir)


def code_of(run_dir: Path) -> tuple[str, str]:
    result = json.loads((run_dir / "result.json").read_text())
    return result["commit"], result["code_sha256"]


def test_edits_after_the_submission_change_nothing_but_the_next_one(
    place: Path, python: Path, slurm_cluster: Cluster, tmp_path: Path, measured: Measured
) -> None:
    clean, log = shutil.copytree(place, tmp_path / "clean"), tmp_path / "job.log"
    variables = {"PATH": f"{python}:/usr/bin:/bin", "PACE": "0.2"}
    request = [*TWO_NODES, f"--output={log}"]
    (place / "options.yaml").write_text("lr: 0.002\n")
    options = [*ON_CPU, *STEPS, "--config", "options.yaml"]

    job = slurm_cluster.launch(place, *options, request=[*request, "--begin=now+1hour"], **variables)
    assert slurm_cluster.job(job).state == "PENDING"
    Rewrite("nn.ReLU(inplace=True)", "nn.Tanh()").apply(place / "ddp_project" / "model.py")
    (place / "options.yaml").write_text("lr: 0.1\n")
    slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    run_dir = place / "runs" / str(job)
    wait_for_line(run_dir / "train.log", "step 12 ")  # and a checkpoint is written
    assert log.read_text().count(f"imported {run_dir}/code/") == 1, log.read_text()
    broken = [place / "train.py", *(place / "ddp_project").rglob("*.py")]
    sound = {file: file.read_text() for file in broken}
    for file in broken:
        file.write_text("raise RuntimeError('edited')\n")
    slurm_cluster.run("scontrol", "requeue", str(job))
    wait_for_line(run_dir / "train.log", "resumed from")
    ended = slurm_cluster.wait(job)
    assert (ended.state, ended.exit_code, ended.restarts) == ("COMPLETED", 0, 1), log.read_text()
    assert "other code than before" not in (run_dir / "train.log").read_text()

    (clean / "options.yaml").write_text("lr: 0.002\n")
    unedited = trained(slurm_cluster, clean, clean / "run", *options)
    other = differences(checkpoint(run_dir)["model"], unedited["model"])
    measured("submission", "weights that edits of a submitted job change", len(other))
    assert other == []
    assert code_of(run_dir) == code_of(clean / "run")
    assert code_of(run_dir)[0] == run(clean, "rev-parse", "--short=12", "HEAD")

    for file, text in sound.items():
        file.write_text(text)
    second = slurm_cluster.launch(place, *options, request=request, **variables | {"PACE": "0"})
    assert slurm_cluster.wait(second).exit_code == 0, log.read_text()
    edited = trained(slurm_cluster, place, tmp_path / "edited", *options)
    assert differences(checkpoint(place / "runs" / str(second))["model"], edited["model"]) == []
    assert differences(edited["model"], unedited["model"]) != []
    assert code_of(place / "runs" / str(second))[0] == f"{code_of(run_dir)[0]}-dirty"


def test_each_task_of_an_array_runs_the_copy(place: Path, slurm_cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "%A-%a.log"
    options = ("--max-steps", "1", "--device", "cpu")
    job = slurm_cluster.launch(place, *options, request=["--array=1-2", "--ntasks-per-node=1", f"--output={log}"])
    for task in ("1", "2"):
        wait_for_line(tmp_path / f"{job}-{task}.log", f"imported {place}/runs/{job}/code/")


def test_ranks_run_in_the_image(own_project: Render, slurm_cluster: Cluster, tmp_path: Path) -> None:
    """Apptainer becomes the program that it is told to run; this one tells what it was told, and has no Slurm."""
    apptainer, image, log = tmp_path / "bin" / "apptainer", str(tmp_path / "an image.sif"), tmp_path / "job.log"
    programs = {
        apptainer: f'echo "$1 of $2: $3" && shift 2 && PATH="{tmp_path}/image:$PATH" exec "$@"',
        tmp_path / "image" / "scontrol": "exit 127",
    }
    for program, does in programs.items():
        write_program(program, does)
    path = f"{apptainer.parent}:{PATH}"
    options = [*ON_CPU, "--max-steps", "2"]
    request = [*TWO_NODES, f"--output={log}"]
    job = slurm_cluster.launch(own_project(launcher="slurm"), *options, request=request, IMAGE=image, PATH=path)
    assert slurm_cluster.wait(job).exit_code == 0, log.read_text()
    assert [f"{rank}: exec of {image}: python" in log.read_text() for rank in range(2)] == [True, True]
