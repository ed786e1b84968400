"""What the preview and the page on the loop show is what Copier writes, byte for byte."""

import html
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from generator.answers.combinations import Combination, covering
from generator.answers.questions import TEMPLATE
from generator.render.git import git
from generator.render.project import NAME, RenderError, read_files, run_copier
from generator.update.replay import put_under_git
from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.projects.instructions import follow_recipe, recipes_of
from website.excerpts import Variants
from website.recipes import write_pages
from website.render import Template

TEXTS: dict[str, Any] = {
    "project_name": "Ünüsual: 'it\"s' {{ 1 }} # 50 %",
    "package_name": "own_2",
    "description": "- a: b\\",
    "author_name": "Ä. Ö. 中",
}


def test_every_answer_makes_the_files_of_copier(snapshot: Path, legal: list[Combination], tmp_path: Path) -> None:
    """And records the version as Copier does."""
    repository = shutil.copytree(snapshot, tmp_path / "template")
    put_under_git(repository)
    git(repository, "tag", "v7.0.0")
    for number, combination in enumerate(covering(legal, 1)):
        answers = dict(combination.answers) | (TEXTS if number == 0 else {})
        source, version = (repository, "v7.0.0") if number == 0 else (snapshot, None)
        project = tmp_path / f"Project {number}"
        template = Template(source, str(source), version, str(project))
        run_copier(project, answers, source, defaults={}, version=version or "HEAD")
        assert template.render(template.ask(answers)) == read_files(project)


@pytest.mark.parametrize(
    "answers", [{"backend": "mpi"}, {"launcher": "pigeon"}, {"package_name": "torch"}, {"project_name": "two\nlines"}]
)
def test_what_copier_refuses_is_refused_for_the_same_reason(answers: Any, snapshot: Path, tmp_path: Path) -> None:
    problems = Template(snapshot, str(snapshot), destination=str(tmp_path / "project")).ask(answers).problems
    assert problems.keys() == answers.keys()
    with pytest.raises(RenderError) as refused:
        run_copier(tmp_path / "project", answers, snapshot, defaults={})
    (reason,) = problems.values()
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "answers", [{}, {"launcher": "slurm", "amp": "torch"}, {"launcher": "spawn", "amp": "apex"}, {"launcher": "ray"}]
)
def test_the_page_on_the_loop_has_the_code_of_copier(answers: dict[str, str], snapshot: Path, project: Render) -> None:
    variants = Variants(Template(snapshot, "source"), NAME)
    files = read_files(project(**answers))
    key = f"{answers.get('launcher', 'torchrun')}-{answers.get('amp', 'torch')}"
    page = (TEMPLATE / "website" / "pages" / "loop.md").read_text()
    for sources in re.findall(r"^```{excerpt} (.*)$", page, re.MULTILINE):
        code = variants.html(sources)
        found = re.findall(r'<template data-for="(.*?)" data-path="(.*?)">(.*?)</template>', code, re.DOTALL)
        [(path, shown)] = [(path, shown) for keys, path, shown in found if key in keys.split()]
        text = html.unescape(re.sub(r"<[^>]*>", "", shown))
        assert len(text.splitlines()) > 1, sources
        assert text.encode() in files[path][1], sources


def test_the_pages_of_recipes_have_a_diff_for_each(snapshot: Path, project: Render, tmp_path: Path) -> None:
    """Git applies it to the project of Copier, and makes the files of which a test trains the recipe."""
    write_pages(Template(snapshot, "source", destination="DDP project"), tmp_path)
    page = (tmp_path / "recipes" / "language.md").read_text()
    before = project(task="language")
    recipes = re.findall(r"^## ([^\n]+)$(.*?)^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [title for title, *_ in recipes] == [*recipes_of(before)]
    for number, (title, about, diff) in enumerate(recipes):
        followed = follow_recipe(title, before, tmp_path / f"followed {number}")
        patched = shutil.copytree(before, tmp_path / f"patched {number}")
        (patched / "recipe.diff").write_text(diff)
        output_of(["git", "apply", "recipe.diff"], patched)
        (patched / "recipe.diff").unlink()
        assert read_files(patched) == read_files(followed), title
        assert recipes_of(before)[title].shows in about
