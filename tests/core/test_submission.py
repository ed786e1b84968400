"""launch.sh of Slurm submits a copy of the code: which files that has, and that nothing is left where it cannot be."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.render.git import run
from generator.update.replay import commit_all, put_under_git
from tests.conftest import Render
from tests.support.processes import write_program

# Clients of Slurm that say what they were called with. tests/nightly/test_submission.py has real ones.
CLIENTS = {"sbatch": "echo 77", "scontrol": "true", "scancel": "true", "srun": 'printf "%s\\n" "$PYTHONPATH"'}
LARGE = "error: the code has 230 MiB, and more than 200 must be data: move it to data/, or let git ignore it\n"
WAITING = "error: REQUEST cannot have --wait: sbatch would wait for a job that is still held\n"
Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place(own_project: Render) -> Path:
    return own_project(launcher="slurm")


@pytest.fixture
def launch(place: Path, tmp_path: Path) -> Launch:
    """Run launch.sh with some options, and clients that do as told; what those were called with is in "calls"."""

    def start(*options: str, **clients: str) -> "subprocess.CompletedProcess[str]":
        variables = {name: clients.pop(name) for name in [*clients] if name.isupper()}
        for name, does in {**CLIENTS, **clients}.items():
            write_program(tmp_path / "bin" / name, f'printf "%s\\n" {name} "$@" >>{tmp_path}/calls\n{does}')
        env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | variables
        return subprocess.run(["./launch.sh", *options], cwd=place, env=env, capture_output=True, text=True)

    return start


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def write(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)


def test_the_copy_has_what_git_has_or_would_add(place: Path, launch: Launch, tmp_path: Path) -> None:
    put_under_git(place)
    before = files_in(place) - files_in(place / ".git")
    write(place, "deleted.py", "two words\nand a line.py", "ddp_project/new.py")
    commit_all(place)
    (place / "deleted.py").unlink()
    (place / "link.py").symlink_to("train.py")
    write(place, "ddp_project/untracked.py", "-rf.py", "runs/1/train.log", "data/images/1.png", ".venv/bin/python")
    done = launch("--epochs", "3", REQUEST="--nodes=2 --wait-all-nodes=1")
    assert done.stdout == "Submitted batch job 77: runs/77/code is what it runs\n", done.stderr
    calls = ["sbatch", "--parsable", "--nodes=2", "--wait-all-nodes=1", "--hold", "./launch.sh", "--epochs", "3"]
    assert (tmp_path / "calls").read_text().split("\n") == [*calls, "scontrol", "release", "77", ""]
    new = {"two words\nand a line.py", "ddp_project/new.py", "ddp_project/untracked.py", "link.py", "-rf.py"}
    copy = place / "runs" / "77" / "code"
    assert files_in(copy) == {name for name in before | new if not name.startswith(".git/")} | {".commit"}
    assert os.readlink(copy / "link.py") == "train.py"
    assert os.access(copy / "launch.sh", os.X_OK)
    assert (copy / ".commit").read_text() == f"{run(place, 'rev-parse', '--short=12', 'HEAD')}-dirty\n"
    assert {path.name for path in (place / "runs").iterdir()} == {"1", "77"}


@pytest.mark.parametrize("ignored", [False, True], ids=["no git", "a repository around it, which ignores it"])
def test_without_git_the_copy_has_all_but_what_is_made_there(ignored: bool, place: Path, launch: Launch) -> None:
    if ignored:
        (place.parent / ".gitignore").write_text("project\n")
        put_under_git(place.parent)
    whole = files_in(place)
    write(place, "runs/1/train.log", "data/1.png", ".venv/bin/python", "ddp_project/__pycache__/a.pyc", "a.log")
    write(place, ".mypy_cache/1", "ddp_project.egg-info/PKG-INFO", "ddp_project/runs/kept.py")
    write(place, "env/pyvenv.cfg", "env/lib/a.py", "conda/conda-meta/history", "conda/a.py")
    assert launch().returncode == 0
    assert files_in(place / "runs" / "77" / "code") == whole | {"ddp_project/runs/kept.py", ".commit"}


@pytest.mark.parametrize(("request_", "said"), [("", LARGE), ("--nodes=2 --wait", WAITING), ("-W", WAITING)])
def test_what_cannot_be_submitted_is_refused_before(
    request_: str, said: str, place: Path, launch: Launch, tmp_path: Path
) -> None:
    """Large data among the code, and waiting for a held job."""
    if said == LARGE:
        with open(place / "images.tar", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 230 << 20)
    done = launch(REQUEST=request_)
    assert (done.returncode, done.stderr) == (2, said)
    assert not (place / "runs").exists()
    assert not (tmp_path / "calls").exists()


def test_a_job_that_is_refused_leaves_nothing(place: Path, launch: Launch, tmp_path: Path) -> None:
    """Nor one whose copy cannot be placed, which is cancelled."""
    assert launch(sbatch="exit 3").returncode == 3
    assert files_in(place / "runs") == set()
    assert (tmp_path / "calls").read_text().split()[0::4] == ["sbatch"]
    write(place, "runs/77/train.log")  # of an older run
    done = launch()
    assert (done.returncode != 0, "runs/77" in done.stderr) == (True, True)
    assert (tmp_path / "calls").read_text().endswith("scancel\n77\n")
    assert files_in(place / "runs") == {"77/train.log"}


def test_a_job_runs_its_copy_with_the_options_of_its_submission(place: Path, launch: Launch, tmp_path: Path) -> None:
    write(place, "fast.yaml", "runs/1/config.json")
    assert launch().returncode == 0
    (tmp_path / "calls").unlink()
    options = ["--config", "fast.yaml", f"--config={place}/fast.yaml", "--config=runs/1/config.json"]
    options += ["--data", "train.py"]
    job = {"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(place), "PYTHONPATH": "elsewhere"}
    done = launch(*options, **job)
    copy = f"{place}/runs/77/code"
    assert done.stdout == f"{copy}:elsewhere\n", done.stderr
    started = (tmp_path / "calls").read_text().split()
    ran = ["python", f"{copy}/train.py", "--config", f"{copy}/fast.yaml", f"--config={copy}/fast.yaml", *options[3:]]
    assert started[started.index("python") : started.index("scontrol")] == ran
    alone = launch(SLURM_JOB_ID="79", SLURM_SUBMIT_DIR=str(place), PYTHONPATH="")
    assert alone.stdout == f"{place}\n"
    assert alone.stderr.startswith("launch.sh: this job has no copy of the code")


@pytest.mark.parametrize(("variables", "number"), [({}, "80"), ({"SLURM_ARRAY_TASK_ID": "3"}, "80_3")])
def test_only_the_task_of_an_array_whose_time_is_over_is_requeued(
    variables: dict[str, str], number: str, place: Path, launch: Launch, tmp_path: Path
) -> None:
    """The number of the last task is that of the whole array."""
    job = {"SLURM_JOB_ID": "80", "SLURM_SUBMIT_DIR": str(place)} | variables
    job |= {"SLURM_ARRAY_JOB_ID": "80"} if variables else {}
    done = launch(srun="exit 75", scontrol="echo JobState=RUNNING PreemptTime=2", **job)
    assert (done.returncode, f"job {number} is requeued" in done.stdout) == (75, True)
    calls = (tmp_path / "calls").read_text()
    assert calls.endswith(f"scontrol\nshow\njob\n{number}\nscontrol\nrequeue\n{number}\n")
