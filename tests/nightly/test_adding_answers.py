"""docs/adding-answers.md, followed to the letter in a clone: what it adds passes, and its default changes nothing."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from generator.answers.questions import TEMPLATE
from generator.render.git import git
from generator.render.snapshot import PARTS
from tests.support.adding_answers import read_page
from tests.support.cli import COMMAND, check, environment, flowing
from tests.support.processes import output_of
from tests.support.versions import clone_of_the_template

PAGE = read_page()
LOGGER, LAUNCHER, QUESTION = PAGE
COPIED = (*PARTS, "generator", "tests", "tools", "benchmarks", "pyproject.toml", "constraints.txt", "README.md")
# Of the combinations that a command of the page looks at, the two with these answers are tried here,
FEW = {
    "task": "digits",
    "launcher": "torchrun",
    "backend": "auto",
    "amp": "none",
    "parallel": "ddp",
    "sync_bn": "false",
    "logging": "csv",
}
# and of its tests those with these words in their names: what looks at an answer, or at the traces of all.
ADDED = {LOGGER: "sqlite", LAUNCHER: "flux", QUESTION: "stack_dumps"}
LISTS = "words_that_would_betray or no_trace_of_an_answer"


Followed = Callable[[str], Path]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A copy of this repository in which every test begins anew, but with what mypy has parsed of torch."""
    with clone_of_the_template() as place:
        yield place


@pytest.fixture
def followed(place: Path) -> Followed:
    """Give a clone in which a section of the page was followed, and only that is not committed."""

    def follow(title: str) -> Path:
        for part in COPIED:  # in the place of what a test has left there
            if (TEMPLATE / part).is_dir():
                shutil.rmtree(place / part, ignore_errors=True)
                shutil.copytree(TEMPLATE / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(TEMPLATE / part, place / part)
        shutil.rmtree(place / ".git", ignore_errors=True)
        git(place, "init", "--quiet")
        git(place, "add", *COPIED)
        git(place, "commit", "--quiet", "--message", "Before")
        PAGE[title].follow(place)
        return place

    return follow


def command(title: str, program: str) -> list[str]:
    """Give the words behind a program in the one command of a section that begins with it."""
    (words,) = [words for words in map(shlex.split, PAGE[title].commands) if " ".join(words).startswith(program)]
    return words[len(program.split()) :]


@pytest.mark.parametrize("title", PAGE)
def test_what_the_page_adds_passes_its_check_and_its_tests(title: str, followed: Followed) -> None:
    clone, words = followed(title), command(title, "ddp-template check")
    asked = {word.partition("=")[0] for word in words}
    printed = check(clone, *words, *(f"{key}={value}" for key, value in FEW.items() if key not in asked))
    assert "2 combinations: 2 passed, 0 failed" in printed
    assert "only its metrics.jsonl was read" not in flowing(printed)
    chosen = [*command(title, "scripts/test.sh"), "-k", f"{ADDED[title]} or {LISTS}"]
    pytest_of_clone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    output_of([*pytest_of_clone, *chosen], clone, environment(clone), timeout=600)


def changed_files(clone: Path) -> set[str]:
    """Return the files that the section of the question changes in projects with its default."""
    words = command(QUESTION, "ddp-template diff")
    few = [f"{key}={value}" for key, value in FEW.items()]
    printed = output_of([COMMAND, "diff", *words, "--since", "HEAD", *few], clone, environment(clone))
    assert "1 of 1 combinations" in printed
    return set(re.findall(r"^ *\+\d.*  (\S+)$", printed, re.MULTILINE))


def test_the_default_of_the_question_changes_no_project(followed: Followed) -> None:
    clone = followed(QUESTION)
    assert changed_files(clone) == {".copier-answers.yml"}
    train = clone / "template" / "train.py.jinja"
    train.write_text(re.sub(r"{% if stack_dumps %}\n(    faulthandler.*\n){% endif %}\n", r"\1", train.read_text()))
    assert changed_files(clone) == {".copier-answers.yml", "train.py"}
