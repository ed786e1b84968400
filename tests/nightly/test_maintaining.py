"""docs/maintaining.md, followed to the letter in a clone: what it adds passes, and mistakes in it are named."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from generator.answers.questions import TEMPLATE
from generator.render.git import git
from generator.render.snapshot import PARTS
from tests.support.cli import COMMAND, check, environment, flowing
from tests.support.maintaining import read_page
from tests.support.processes import output_of, scaled
from tests.support.versions import clone_of_the_template

PAGE = read_page()
LOGGER, LAUNCHER, QUESTION = PAGE
COPIED = (*PARTS, "generator", "tests", "tools", "benchmarks", "pyproject.toml", "constraints.txt", "README.md")
# Of the combinations that a command of the page looks at, the two with these answers are tried here,
FEW = {"task": "digits", "launcher": "torchrun", "backend": "auto", "amp": "none", "sync_bn": "false", "logging": "csv"}
# and of its tests those with these words in their names: what looks at an answer, or at the traces of all.
ADDED = {LOGGER: "sqlite", LAUNCHER: "flux", QUESTION: "stack_dumps"}
LISTS = "words_that_would_betray or no_trace_of_an_answer"


@dataclass(frozen=True)
class Mistake:
    """Something that a maintainer may get wrong in a section, and a regular expression of what must be said of it."""

    name: str
    title: str
    file: str
    right: str
    wrong: str
    said: str

    def make(self, clone: Path) -> None:
        """Make it in a clone. Fails if what is right is not there once."""
        text = (clone / self.file).read_text()
        assert text.count(self.right) == 1
        (clone / self.file).write_text(text.replace(self.right, self.wrong))


SQLITE = "partials/tracking/sqlite.py.jinja"
DROPPED = '"DELETE FROM metrics WHERE step > ?", [start_step]'
TRAIN = "template/train.py.jinja"
REGISTER = "    faulthandler.register(signal.SIGUSR2)\n"
CONDITION = "{% if stack_dumps %}\n" + REGISTER + "{% endif %}\n"
RUN = "    run = Run(config, world, device)\n"
FOR_CHECK = [
    Mistake(
        "a resumed run begins its file anew",
        LOGGER,
        SQLITE,
        DROPPED,
        '"DELETE FROM metrics"',
        r"train/loss is recorded at the steps \[4, 5\], which should rise to 5 by way of 3",
    ),
    Mistake(
        "the contract is left out",
        LAUNCHER,
        "generator/check/train/environments.py",
        '    "flux": ADDRESS + "FLUX_TASK_RANK={rank} FLUX_TASK_LOCAL_ID={rank} '
        'FLUX_JOB_SIZE={size} FLUX_JOB_NNODES=1",\n',
        "",
        # Both take themselves for rank 0: the second one to come finds the run taken, or is the one that may not write.
        "flux-auto-none-false-csv train (a rank other than 0 wrote a file|exit code 0, exit code 2)",
    ),
    Mistake(
        "an answer changes a number, and should not",
        QUESTION,
        TRAIN,
        CONDITION + RUN,
        RUN + CONDITION.replace(REGISTER, REGISTER + "    torch.manual_seed(12345)\n"),
        "agree its weights differ from those of digits-torchrun-auto-none-false-csv-false from step 1 on",
    ),
]
NO_CONDITION = Mistake(
    "the condition is left out", QUESTION, TRAIN, CONDITION, REGISTER, r"train\.py:\d+: faulthandler\.register"
)
FOR_TESTS = [
    Mistake(
        "what was recorded after the checkpoint stays",
        LOGGER,
        SQLITE,
        DROPPED,
        '"DELETE FROM metrics WHERE step < 0"',
        r"FAILED \S+::test_each_metric_has_each_step_once_and_in_order\[sqlite\]",
    ),
    Mistake(
        "the words that betray a launcher are left out",
        LAUNCHER,
        "tests/core/test_rendered_code.py",
        '    ("launcher", "flux"): r"\\bflux",\n',
        "",
        r"FAILED \S+::test_every_choice_has_words_that_would_betray_it",
    ),
    NO_CONDITION,
]

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
        for part in COPIED:
            begin_anew(place, part)
        shutil.rmtree(place / ".git", ignore_errors=True)
        git(place, "init", "--quiet")
        git(place, "add", *COPIED)
        git(place, "commit", "--quiet", "--message", "Before")
        PAGE[title].follow(place)
        return place

    return follow


def begin_anew(place: Path, part: str) -> None:
    """Copy a file or a folder of this repository into a clone, in the place of what a test has left there."""
    if (TEMPLATE / part).is_dir():
        shutil.rmtree(place / part, ignore_errors=True)
        shutil.copytree(TEMPLATE / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(TEMPLATE / part, place / part)


def command(title: str, program: str) -> list[str]:
    """Give the words behind a program in the one command of a section that begins with it."""
    (words,) = [words for words in map(shlex.split, PAGE[title].commands) if " ".join(words).startswith(program)]
    return words[len(program.split()) :]


def filters(title: str) -> list[str]:
    """Give the words of a section's check, and filters for the questions that it leaves open."""
    words = command(title, "ddp-template check")
    asked = {word.partition("=")[0] for word in words}
    return [*words, *(f"{key}={value}" for key, value in FEW.items() if key not in asked)]


def run_tests(clone: Path, title: str, chosen: str) -> subprocess.CompletedProcess[str]:
    """Run the chosen ones of the tests that a section names, in its clone, as scripts/test.sh does there."""
    files = command(title, "scripts/test.sh")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *files, "-k", chosen]
    return subprocess.run(
        words, cwd=clone, env=environment(clone), stdout=subprocess.PIPE, text=True, timeout=scaled(600)
    )


@pytest.mark.parametrize("title", PAGE)
def test_what_the_page_adds_passes_its_check_and_its_tests(title: str, followed: Followed) -> None:
    clone = followed(title)
    printed = check(clone, *filters(title))
    assert "2 combinations: 2 passed, 0 failed" in printed
    assert "only its metrics.jsonl was read" not in flowing(printed)
    done = run_tests(clone, title, f"{ADDED[title]} or {LISTS}")
    assert done.returncode == 0, done.stdout


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
    NO_CONDITION.make(clone)
    assert changed_files(clone) == {".copier-answers.yml", "train.py"}


@pytest.mark.parametrize("mistake", FOR_CHECK, ids=lambda mistake: mistake.name)
def test_the_check_names_a_mistake(mistake: Mistake, followed: Followed) -> None:
    clone = followed(mistake.title)
    mistake.make(clone)
    printed = check(clone, *filters(mistake.title), code=1)
    assert "2 combinations: 1 passed, 1 failed" in printed
    assert re.search(mistake.said, flowing(printed)), printed


@pytest.mark.parametrize("mistake", FOR_TESTS, ids=lambda mistake: mistake.name)
def test_the_tests_name_a_mistake(mistake: Mistake, followed: Followed) -> None:
    clone = followed(mistake.title)
    mistake.make(clone)
    done = run_tests(clone, mistake.title, f"({ADDED[mistake.title]} and in_order) or {LISTS}")
    assert done.returncode == 1, done.stdout
    assert re.search(mistake.said, done.stdout), done.stdout
