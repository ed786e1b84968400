"""No name of a package or a project collides with another module or package."""

import importlib.metadata
import keyword
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import Render
from tests.core.test_answers import QUESTIONS, TAKEN_NAMES, TEXTS, Questionnaire, name_fits
from tests.core.test_rendered_code import requirements_of


@pytest.fixture(scope="module")
def dependencies(project: Render) -> dict[str, importlib.metadata.Distribution]:
    """What a project with any answer asks pip for, by canonical name."""
    needed: list[Requirement] = []
    pairs = [(question, choice) for question in QUESTIONS for choice in question.choices if not choice.conditional]
    for answer in [{}, *({question.key: choice.value} for question, choice in pairs)]:
        needed += requirements_of(project(**answer))
    return {canonicalize_name(each.name): importlib.metadata.distribution(each.name) for each in needed}


def top_level_modules(distribution: importlib.metadata.Distribution) -> set[str]:
    """The names that a distribution makes importable; those that mypyc makes up differ in each release."""
    modules = (path for path in distribution.files or [] if path.suffix in {".py", ".so", ".pyd"})
    names = {path.parts[0].split(".")[0] for path in modules}
    names.update((distribution.read_text("top_level.txt") or "").split())
    return {name for name in names if not name.endswith("__mypyc")}


def test_no_package_takes_the_name_of_a_keyword_or_of_what_python_and_its_dependencies_bring(
    snapshot: Path, dependencies: dict[str, importlib.metadata.Distribution]
) -> None:
    """pip would also take a project of the name of a dependency, which is 0.1.0, for the dependency, and give up."""
    modules = set().union(*map(top_level_modules, dependencies.values()))
    assert {"torch", "wandb", "mlflow", "ray", "optuna", "pytest"} <= modules
    assert "tensorboard" in dependencies
    projects = {name.replace("-", "_") for name in dependencies}
    Questionnaire(snapshot).assert_all_taken({*keyword.kwlist, *sys.stdlib_module_names, *modules, *projects})


def test_every_title_gives_a_legal_package_name(snapshot: Path) -> None:
    questionnaire = Questionnaire(snapshot)
    texts = [text for text in TEXTS if not questionnaire.problem("project_name", text)]
    words = [*sys.stdlib_module_names, *keyword.kwlist, *TAKEN_NAMES, "types tqdm", "test train"]
    titles = [*texts, *words, *map(str.upper, words), *(f"1. {word}!" for word in words)]
    lengths = ["_".join(["abcdefghi"] * 4)[:length] + tail for length in range(1, 40) for tail in ("", "_", " x")]
    problems = {}
    for title in (*titles, *lengths):
        name = questionnaire.default_package_name(title)
        problems[title] = questionnaire.problem("package_name", name) or None if name_fits(name) else name
    assert {title: problem for title, problem in problems.items() if problem is not None} == {}
