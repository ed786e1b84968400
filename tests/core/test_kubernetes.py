"""What launcher=kubernetes adds: manifests that the API takes, an image as Slurm's, and a snapshot of the code."""

import re
import sys
from pathlib import Path
from typing import Any

import kubeflow_trainer_api.models as api
import pytest
import yaml

from generator.answers.questions import read_ownership
from generator.render.git import run as git
from generator.render.project import code_digests, read_tree
from tests.conftest import Render
from tests.support.processes import output_of, write_program
from tests.support.schedulers.kubernetes import Cluster, missing
from tests.support.versions import replace

LONG = "n" * 40
MODELS = {
    "PersistentVolumeClaim": api.IoK8sApiCoreV1PersistentVolumeClaim,
    "TrainJob": api.TrainerV1alpha1TrainJob,
    "TrainingRuntime": api.TrainerV1alpha1TrainingRuntime,
}
MISTAKES = [
    ([], "", "test", "error: name the command that the nodes run, such as ./launch.sh"),
    (["true"], "A_b", "test", "error: NAME is A_b: give at most 45 of a-z, 0-9 and -"),
    (["true"], "n" * 46, "test", "error: NAME is nnn"),
    (["true"], "", "example.com", "error: the image in kubernetes/job.yaml is an example: name a repository of"),
]


@pytest.mark.parametrize("package_name", ["ddp_project", LONG])
def test_each_manifest_is_what_the_api_understands(package_name: str, project: Render) -> None:
    files = [*(project(launcher="kubernetes", package_name=package_name) / "kubernetes").glob("*.yaml")]
    manifests = {manifest["kind"]: manifest for manifest in map(yaml.safe_load, map(Path.read_text, files))}
    assert manifests.keys() == MODELS.keys()
    for kind, manifest in manifests.items():
        understood = MODELS[kind].from_dict(manifest)  # refuses what is wrong, and drops what it does not know
        assert understood is not None
        assert understood.to_dict() == manifest
        assert re.fullmatch("[a-z]([a-z0-9-]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
    runtime, job = manifests["TrainingRuntime"], manifests["TrainJob"]
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}


def commands(text: str) -> list[str]:
    """The lines that pip and git come in, without what joins them."""
    return re.findall(r"^(?:RUN|    (?:&& )?) *((?:pip|uv|git) .*?)(?: \\)?$", text, re.MULTILINE)


@pytest.mark.parametrize("amp", ["none", "apex"])
def test_images_of_docker_and_apptainer_are_sound_and_have_the_same(amp: str, project: Render, tmp_path: Path) -> None:
    place = project(launcher="kubernetes", amp=amp)
    output_of([Path(sys.executable).with_name("hadolint"), "Dockerfile"], place)
    docker = (place / "Dockerfile").read_text()
    assert "FROM python:3.12\n" in docker
    definition = (project(launcher="slurm", amp=amp) / "apptainer.def").read_text()
    head, *parts = re.split(r"^%(\w+)\n", definition, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert head.splitlines()[:2] == ["Bootstrap: docker", "From: python:3.12"]
    assert sections.keys() == {"files", "post", *(["environment"] if amp == "apex" else [])}
    for name in sections.keys() - {"files"}:
        (tmp_path / "script.sh").write_text(f"set -e  # as Apptainer runs it\n{sections[name]}")
        output_of([Path(sys.executable).with_name("shellcheck"), "--shell=sh", "--norc", "script.sh"], tmp_path)
    assert commands(sections["post"]) == commands(docker) != []


def test_the_code_of_the_ranks_is_that_of_torchrun(project: Render) -> None:
    one, other = (
        code_digests(read_tree(project(launcher=each)), read_ownership()) for each in ("kubernetes", "torchrun")
    )
    assert one == other, "one project is trained for both"


@pytest.fixture
def submitted(own_project: Render, tmp_path: Path) -> tuple[Path, Cluster]:
    """Return a project in a folder of a repository, which names a registry, and a cluster that takes its jobs."""
    if reason := missing():
        pytest.skip(reason)
    project = own_project(launcher="kubernetes", package_name=LONG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "project")
    replace(project / "kubernetes" / "job.yaml", "registry.example.com", "registry.test")
    return project, Cluster(tmp_path / "cluster")


def test_a_job_has_the_code_as_it_was_and_the_command_as_it_is(submitted: tuple[Path, Cluster]) -> None:
    project, cluster = submitted
    for name in ("changed", "kept/new", "ignored.log"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("as it was")
    (project / "predict.py").unlink()
    words = ['a "quoted" word', "back\\slash", "two\nlines", "größer"]
    cluster.submit(project, "./launch.sh", *words)
    first, trainer = cluster.image, cluster.job["spec"]["trainer"]
    assert trainer["command"] == ["./launch.sh", *words]
    assert (first / "changed").read_text() == (first / "kept" / "new").read_text() == "as it was"
    assert (first / ".commit").read_text() == "unknown\n", "there is no commit yet"
    assert not {"ignored.log", "predict.py", ".git"} & {path.name for path in first.iterdir()}
    assert (first / "launch.sh").stat().st_mode & 0o111
    assert api.TrainerV1alpha1TrainJob.from_dict(cluster.job).to_dict() == cluster.job
    # Pods are named JOB-node-0-NUMBER-abcde, in at most 63 letters.
    assert len(cluster.job["metadata"]["name"] + "-node-0-99-abcde") <= 63
    (project / "changed").write_text("as it is")
    cluster.submit(project, "./launch.sh")
    assert cluster.image != first, "another code has another image"
    assert (first / "changed").read_text() == "as it was"
    assert "project/predict.py" in git(project, "diff", "--name-only"), "nothing is staged that was not"
    (project / "runs").mkdir()
    cluster.submit(project, "true", GIT_DIR="/nowhere")
    names = {path.name for path in cluster.image.iterdir()}
    assert {"train.py", ".commit", "kubernetes"} <= names, "without git, all but what is made there"
    assert "runs" not in names


@pytest.mark.parametrize(("command", "name", "registry", "line"), MISTAKES)
def test_a_mistake_is_named_in_one_line(command: Any, name: str, registry: str, line: str, submitted: Any) -> None:
    project, cluster = submitted
    replace(project / "kubernetes" / "job.yaml", "registry.test", f"registry.{registry}")
    printed = cluster.submit(project, *command, code=2, **({"NAME": name} if name else {}))
    assert printed.splitlines()[-1].startswith(line)
    assert not (cluster.folder / "job.json").exists()


def test_a_trial_of_a_sweep_has_the_processes_of_its_node(project: Render, tmp_path: Path) -> None:
    """Without PET_NNODES a node is a machine alone; torchrun would take the other variables for its options."""
    write_program(tmp_path / "python", 'echo "$@"\nenv | grep ^PET_ || true')
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PET_NPROC_PER_NODE": "3", "PET_NODE_RANK": "1"}
    words, *left = output_of(["./launch.sh"], project(launcher="kubernetes"), variables).splitlines()
    assert {"--nnodes=1", "--nproc-per-node=3"} <= set(words.split())
    assert left == []
