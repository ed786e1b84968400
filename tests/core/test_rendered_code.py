"""Rendered code reads as if written by hand for its answers: clean, short, and with no trace of other answers."""

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from generator.answers.questions import TEMPLATE, read_ownership, read_questions
from generator.render.project import RenderError, read_files, recorded_answers
from generator.update.edits import repeats_in
from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.training import node_launcher

Choice = tuple[str, Any]  # key of a question and the value of one of its choices
WithChoice = Callable[[Choice], Path]

CHOICES: list[Choice] = [(question.key, choice.value) for question in read_questions() for choice in question.choices]
DEFAULTS: dict[str, Any] = {question.key: question.default for question in read_questions() if question.choices}
DEFAULT: Choice = next(iter(DEFAULTS.items()))
# One choice at a time beside the defaults, which the first of them is.
VARIANTS = [DEFAULT, *(choice for choice in CHOICES if choice not in DEFAULTS.items())]

# Lines with docstrings and blank lines, and without tests.
MAXIMUM_OF_PROJECT = 10_290
MAXIMUM_OF_TRAIN = 140

# The words that a choice brings into code and settings. Where it was not made, they are a trace of it.
TRACES: dict[Choice, str] = {
    ("task", "language"): r"\bGPT\b|tokenizers",
    ("task", "tabular"): r"diabetes",
    ("launcher", "torchrun"): r"torchrun|distributed\.run\b",
    ("launcher", "spawn"): r"spawn(?!_key)|--nproc(?!-)|config\.nproc",
    ("launcher", "launch"): r"torch\.distributed\.launch|--local-rank",
    ("launcher", "slurm"): r"slurm|srun|sbatch",
    ("launcher", "mpirun"): r"mpirun|mpich|open.mpi|\bOMPI_|\bPMI_",
    ("launcher", "kubernetes"): r"kube|\bPET_|docker build",
    ("launcher", "ray"): r"\bray\b|ray_nodes",
    ("amp", "torch"): r"autocast|GradScaler|\"bf16\"",
    ("amp", "apex"): r"apex|opt_level",
    ("parallel", "ddp"): r"DistributedDataParallel|(?-i:\bDDP\b)",
    ("parallel", "fsdp"): r"fully_shard|fsdp|shard_files",
    ("sync_bn", True): r"SyncBatchNorm|sync_bn",
    ("logging", "csv"): r"metrics\.csv",
    ("logging", "tensorboard"): r"tensorboard|SummaryWriter",
    ("logging", "wandb"): r"wandb|W&B|Weights & Biases",
    ("logging", "mlflow"): r"mlflow",
}
# These bring nothing: the plainest answer to their question, or the default of an option that all projects have.
TRACELESS = {("amp", "none"), ("sync_bn", False), ("logging", "console"), ("task", "digits")}
TRACELESS.add(("task", "images"))  # they are made of the digits, and the recipes for the digits read images, too
TRACELESS |= {choice for choice in CHOICES if choice[0] == "backend"}
each_variant = pytest.mark.parametrize("choice", VARIANTS, ids=lambda choice: "-".join(map(str, choice)))
# What tells of the task beside the owner's files.
OF_THE_TASK = {"README.md", "LAUNCHING.md", "RECIPES.md", "UPDATING.md", ".copier-answers.yml", "pyproject.toml"}


@pytest.fixture(scope="session")
def with_choice(project: Render) -> WithChoice:
    """Return a project that has a choice alone, or else beside the first other one with which Copier accepts it."""

    @cache
    def get(choice: Choice) -> Path:
        own = {} if choice in DEFAULTS.items() else dict([choice])
        for partner in ({}, *(dict([other]) for other in VARIANTS if other[0] != choice[0])):
            with suppress(RenderError):
                return project(**partner, **own)
        raise AssertionError(f"Copier accepts {choice} beside no other choice")

    return get


@each_variant
def test_shell_scripts_are_valid_and_can_be_started_as_the_readme_says(with_choice: WithChoice, choice: Choice) -> None:
    project = with_choice(choice)
    scripts = [path for path in project.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!")]
    for script in scripts:
        assert script.read_text().startswith("#!/usr/bin/env bash\n")
    output_of([Path(sys.executable).with_name("shellcheck"), "--norc", *scripts], project)
    readme = (project / "README.md").read_text() + (project / "LAUNCHING.md").read_text()
    started = {project / script for script in re.findall(r"(?<![\w.])(?:\./|(?=kubernetes/))([\w./-]+\b)", readme)}
    assert {path for path in started if path.suffix != ".yaml"} <= set(scripts)
    for script in {*scripts, *project.rglob("*.sh")}:
        assert os.access(script, os.X_OK), f"{script.name} is not executable"


@each_variant
def test_no_six_lines_occur_twice_in_a_file(with_choice: WithChoice, choice: Choice) -> None:
    """Where they do, an update can merge an edit into the wrong one of two functions, and say nothing."""
    for path in with_choice(choice).rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        windows = Counter("\n".join(lines[start : start + 6]) for start in range(len(lines) - 5))
        assert [window for window, count in windows.items() if count > 1] == [], path.name


def code_and_settings(project: Path) -> dict[str, str]:
    """The text of all files but the data, the pages that say how to change over, and the answers."""
    # How tests/conftest.py starts processes on macOS is not a choice of launcher: every project's tests do it so.
    paths = [path for path in sorted(project.rglob("*")) if path.is_file() and path.suffix != ".npz"]
    texts = {str(path.relative_to(project)): path.read_text() for path in paths}
    for name in ("README.md", "LAUNCHING.md", "PORTING.md", "TROUBLESHOOTING.md", "UPDATING.md", ".copier-answers.yml"):
        del texts[name]
    texts["tests/conftest.py"] = texts["tests/conftest.py"].replace('"spawn" if sys.platform', "")
    return texts


def test_every_choice_has_words_that_would_betray_it(with_choice: WithChoice) -> None:
    assert set(CHOICES) <= {pair for choice in VARIANTS for pair in recorded_answers(with_choice(choice)).items()}
    assert not TRACES.keys() & TRACELESS
    assert {*TRACES, *TRACELESS} == set(CHOICES)


@each_variant
def test_there_is_no_trace_of_an_answer_that_was_not_given(with_choice: WithChoice, choice: Choice) -> None:
    project = with_choice(choice)
    given = {*recorded_answers(project).items()}
    given |= {(key, node_launcher(value)) for key, value in given if key == "launcher"}
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path, text in code_and_settings(project).items()
        for number, line in enumerate(text.splitlines(), start=1)
    ]
    for other, words in TRACES.items():
        hits = [line for line in lines if re.search(words, line.split(": ", 1)[1], re.IGNORECASE)]
        assert bool(hits) == (other in given), f"{other}: {words} in {hits}"


@pytest.mark.parametrize("others", [{}, {"launcher": "slurm", "amp": "apex", "sync_bn": True, "logging": "mlflow"}])
def test_another_task_changes_the_owners_files_alone(project: Render, others: dict[str, Any]) -> None:
    trees = [read_files(project(**others, task=task)) for key, task in CHOICES if key == "task"]
    owned = read_ownership().yours
    shared = [{path: file for path, file in tree.items() if not owned.match_file(path)} for tree in trees]
    assert len(shared) == 4
    for other in shared[1:]:
        assert {path for path in shared[0] | other if shared[0].get(path) != other.get(path)} <= OF_THE_TASK
    files = [{path for path in tree if owned.match_file(path) and not path.endswith(".npz")} for tree in trees]
    assert files == [files[0]] * 4, "each task has all of the owner's files"


@each_variant
def test_each_import_is_of_a_package_that_the_project_names(choice: Choice, with_choice: WithChoice) -> None:
    """Or one whose absence mypy accepts: on the owner's machine nothing else is there."""
    project = with_choice(choice)
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    named = {canonicalize_name(each.name) for each in requirements_of(project)}
    overrides = [each for each in settings["tool"]["mypy"]["overrides"] if each.get("ignore_missing_imports")]
    optional = {module.split(".")[0] for each in overrides for module in each["module"]}
    own = {path.stem for path in [*project.glob("*.py"), *project.glob("tests/*.py")]} | {"ddp_project"}
    imported = {name for path in project.rglob("*.py") for name in imports_of(path)}
    packages = {name: {*map(canonicalize_name, installed().get(name, [name]))} for name in imported}
    wanted = packages.keys() - sys.stdlib_module_names - own - optional
    assert [name for name in sorted(wanted) if not packages[name] & named] == []


@cache
def installed() -> Mapping[str, list[str]]:
    """Return the distributions that have each package. It takes a second."""
    return packages_distributions()


def imports_of(path: Path) -> Iterator[str]:
    """Yield the packages that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.split(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def requirements_of(project: Path) -> list[Requirement]:
    """Return what a project asks pip for, with its groups for development."""
    settings = tomllib.loads((project / "pyproject.toml").read_text())
    groups = [settings["project"]["dependencies"], *settings["dependency-groups"].values()]
    return [Requirement(each) for group in groups for each in group if isinstance(each, str)]  # or it names a group


@pytest.mark.parametrize("task", ["digits", "images", "language", "tabular"])
def test_each_place_of_a_file_has_surroundings_of_its_own(task: str, project: Render) -> None:
    """Else an update could move an edit from one to the other; the gate asks the same of many combinations."""
    files = read_files(project(task=task)).items()
    assert not [(path, found) for path, (_, content) in files for found in repeats_in(path, content)]


def test_the_longest_name_of_a_package_fits_the_lines(project: Render, tmp_path: Path) -> None:
    tasks = [task for key, task in CHOICES if key == "task"]
    places = [
        project(task=task, parallel=parallel, package_name="a" * 40) for task in tasks for parallel in ("ddp", "fsdp")
    ]
    trees = [read_files(place) for place in places]
    distinct = {file: place / path for place, tree in zip(places, trees, strict=True) for path, file in tree.items()}
    files = [path for path in distinct.values() if path.suffix == ".py"]
    config = places[0] / "pyproject.toml"
    output_of([sys.executable, "-m", "black", "--check", "--quiet", "--config", config, *files], tmp_path)
    for place in places:
        output_of([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."], place)


def test_the_default_project_is_short(with_choice: WithChoice) -> None:
    project = with_choice(DEFAULT)
    lines = {path: len(path.read_text().splitlines()) for path in project.rglob("*.py") if path.parent.name != "tests"}
    assert lines[project / "train.py"] <= MAXIMUM_OF_TRAIN
    assert sum(lines.values()) < MAXIMUM_OF_PROJECT
    (tested,) = re.findall(r"^torch==(\S+)$", (TEMPLATE / "constraints.txt").read_text(), re.MULTILINE)
    assert (
        f"with torch {tested}: for that version,\ntype `pip install torch=={tested}`"
        in (project / "README.md").read_text()
    )
