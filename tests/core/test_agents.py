"""AGENTS.md, of every project and of this repository, is short, and its files and commands exist."""

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE
from generator.render.git import run
from tests.conftest import Render
from tests.support.cli import ddp_template
from tests.support.processes import PATH, output_of
from tests.support.projects.instructions import named_files, read_commands
from website.render import Template

MOST_LINES = 79
MADE = {"runs/", "../project"}  # by the commands
PACKAGE = "ddp_project"


def missing(page: str, files: set[str], folders: tuple[str, ...] = ("",)) -> list[str]:
    """Return what a page names, and what is not there, nor in one of some folders."""
    names = files | {f"{parent}/" for file in files for parent in Path(file).parents}
    return [
        pattern
        for pattern in sorted(named_files(page) - MADE)
        if not any(fnmatch(name, folder + pattern) for folder in folders for name in names)
    ]


def test_agents_md_of_every_project_is_short_and_names_what_is_there(snapshot: Path, legal: list[Combination]) -> None:
    template = Template(snapshot, str(snapshot))
    form_of = {}
    for combination in legal:
        form = template.ask({"package_name": PACKAGE, **dict(combination.answers)})
        page = template.content(snapshot / "template" / "AGENTS.md.jinja", template.context(form.values)).decode()
        form_of[page] = form
    assert len(form_of) > 7, "launchers differ"
    for page, form in form_of.items():
        assert len(page.splitlines()) <= MOST_LINES
        assert not re.search(r"\n\n\n|[{}]", page)
        assert named_files(page) >= {"README.md", "ddp_project/task.py", "tests/test_*.py", "runs/"}
        assert missing(page, {*template.render(form)}, ("", f"{PACKAGE}/", f"{PACKAGE}/runtime/")) == []


def test_a_new_task_is_trained_and_evaluated_as_agents_md_says(own_project: Render) -> None:
    place = own_project()
    _, *commands, tests = read_commands((place / "AGENTS.md").read_text())
    assert tests == "pytest"  # tests/nightly/test_agents.py runs it
    for command in commands:
        printed = output_of(["bash", "-c", command], place, os.environ | {"PATH": PATH})
    assert '{"set": "validation", "loss": ' in printed
    assert len([*place.glob("runs/*/checkpoints/best.pt")]) == 2


def test_the_repositorys_own_agents_md_names_what_is_there() -> None:
    page = (TEMPLATE / "AGENTS.md").read_text()
    assert len(page.splitlines()) <= MOST_LINES
    assert missing(page, {*run(TEMPLATE, "ls-files").split("\n")}, ("", "template/{{package_name}}/")) == []
    for command in read_commands(page):
        program, *words = command.split()
        if program == "ddp-template":
            shown = ddp_template(words[0], "--help").output
            assert all(word in shown for word in words if word.startswith("-")), command
        elif "/" in program:
            assert os.access(TEMPLATE / program, os.X_OK)
        else:
            for each in command.split(" && "):  # as .ci/run has them
                subprocess.run(["bash", "-c", f"type {each.split()[0]}"], env={"PATH": PATH}, check=True)
