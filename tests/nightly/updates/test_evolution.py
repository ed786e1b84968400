"""The recipes in docs/updates.md: answers go over to new questions, without a migration and without a prompt."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from generator.answers.questions import TEMPLATE
from generator.render.git import run
from generator.render.project import read_files, recorded_answers
from generator.update.gate import forgotten_answers
from generator.update.replay import commit_all, copy_project, differing, fresh_copy, put_under_git, update

SETTINGS = "_subdirectory: template\n_envops: {undefined: jinja2.StrictUndefined, keep_trailing_newline: true}\n"
ANSWERS = "{{ _copier_answers | to_nice_yaml }}"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("A new question", {"amp": "bf16"}, {"amp": "bf16", "clip_gradients": False}),
    ("A renamed question", {"amp": "torch"}, {"precision": "torch"}),
    ("A removed choice", {"logging": "visdom"}, {"logger": "csv"}),
    ("A removed choice", {"logging": "csv"}, {"logger": "csv"}),
    ("A removed choice", {"logging": "console"}, {"logger": "console"}),
    ("A choice split in two", {"amp": "torch"}, {"precision": "bf16"}),
    ("A choice split in two", {"amp": "none"}, {"precision": "float32"}),
]


def recipes() -> dict[str, tuple[str, str]]:
    """The questions before and after, by the title of the recipe."""
    page = (TEMPLATE / "docs" / "updates.md").read_text()
    sections = re.findall(r"^### (.+?)\n(.*?)(?=^##)", page, flags=re.MULTILINE | re.DOTALL)
    blocks = {title: re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for title, text in sections}
    return {title: (before, after) for title, (before, after) in blocks.items()}


def write_version(folder: Path, version: str, questions: str) -> Path:
    """Write a version of a template that tells in a file what was answered."""
    (folder / "template").mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        run(folder, "init", "--quiet")
    (folder / "copier.yml").write_text(SETTINGS + questions)
    (folder / "template" / "{{ _copier_conf.answers_file }}.jinja").write_text(ANSWERS)
    told = "".join(f"{key} is {{{{ {key} }}}}\n" for key in yaml.safe_load(questions))
    (folder / "template" / "told.txt.jinja").write_text(told)
    commit_all(folder)
    run(folder, "tag", version)
    return folder


@pytest.fixture
def versions(title: str, tmp_path: Path) -> Path:
    """A template whose versions 1 and 2 are those of a recipe; 3 asks as 2 does."""
    before, after = recipes()[title]
    folder = write_version(tmp_path / "template", "v1", before)
    write_version(folder, "v2", after)
    return write_version(folder, "v3", f"# later\n{after}")


@pytest.mark.parametrize("way", [["v3"], ["v2", "v3"]], ids=["at once", "hop by hop"])
@pytest.mark.parametrize(("title", "before", "after"), CASES)
def test_answers_go_over(before: Any, after: Any, way: list[str], versions: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    copy_project(versions, "v1", before, project)
    put_under_git(project)
    for version in way:
        update(project, version)
        commit_all(project)
    assert recorded_answers(project) == after
    assert differing(read_files(project), fresh_copy(versions, "v3", after, tmp_path / "fresh")) == []
    copy_project(versions, "v2", {}, tmp_path / "defaults")
    assert recorded_answers(tmp_path / "defaults").keys() == after.keys(), "a new project is asked the new questions"


@pytest.mark.parametrize("title", recipes())
def test_the_gate_takes_the_recipes(title: str, tmp_path: Path) -> None:
    assert title in {case[0] for case in CASES}
    for name, questions in zip(("old", "new"), recipes()[title], strict=True):
        (tmp_path / name).mkdir()
        asked = yaml.safe_load(questions)
        text = yaml.safe_dump({key: {"help": "?", **entry} for key, entry in asked.items()}, sort_keys=False)
        (tmp_path / name / "copier.yml").write_text(text)
    assert forgotten_answers(tmp_path / "old", tmp_path / "new") == []
    assert forgotten_answers(tmp_path / "new", tmp_path / "old") != []
