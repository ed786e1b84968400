"""The matrix against Copier itself, other revisions, and whatever interrupts it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generator.answers.combinations import Combination, covering, shard
from generator.answers.questions import TEMPLATE
from generator.render.git import git
from generator.render.workers import Workers, ask, legal_combinations
from tests.core.test_matrix import everything_in
from tests.support.cli import COMMAND, members
from tests.support.combinations import PRODUCT, names
from tests.support.processes import scaled, wait_until


def test_what_is_legal_is_what_copier_says_of_each_combination(all_names: list[str], snapshot: Path) -> None:
    every = [Combination.of(answers) for answers in PRODUCT]
    with Workers() as workers:
        verdicts, _ = ask(every, snapshot, workers)
    assert all_names == [each.name for each in every if verdicts[each]]


def test_what_is_legal_does_not_hang_on_the_defaults(snapshot: Path, tmp_path: Path, all_names: list[str]) -> None:
    """Beside the backend mpi, no answer is legal but another launcher: then Copier is asked about each combination."""
    template = shutil.copytree(snapshot, tmp_path / "template")
    questions = (template / "copier.yml").read_text()
    assert questions.count("default: auto") == 1
    (template / "copier.yml").write_text(questions.replace("default: auto", "default: mpi"))
    with Workers() as workers:
        assert names(legal_combinations(template, workers)) == all_names


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a generator of its own, whose last commit changes the README of the mpirun projects."""
    for part in ("generator", "template", "partials"):
        shutil.copytree(TEMPLATE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(TEMPLATE / "copier.yml", tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "copier.yml", "template", "partials")
    git(tmp_path, "commit", "--quiet", "--message", "before")
    with (tmp_path / "template" / "README.md.jinja").open("a") as readme:
        readme.write("{% if launcher == 'mpirun' %}\nOne more line.\n{% endif %}\n")
    git(tmp_path, "commit", "--quiet", "--all", "--message", "change")
    return tmp_path


def matrix_of(clone: Path, *arguments: str) -> str:
    """Run `ddp-template matrix` of a clone for a few combinations, and return what it prints."""
    few = ["task=digits", "launcher=spawn,mpirun", "amp=none", "sync_bn=false"]
    how: dict[str, Any] = {"env": os.environ | {"PYTHONPATH": str(clone)}, "check": True, "text": True}
    done = subprocess.run([COMMAND, "matrix", *few, *arguments], cwd=clone, stdout=subprocess.PIPE, **how)
    return str(done.stdout)


def test_what_differs_from_a_revision_is_chosen_covered_and_divided(clone: Path, legal: list[Combination]) -> None:
    assert matrix_of(clone, "--since", "HEAD", "--shards", "auto", "--format", "json") == '{"include":[]}\n'
    assert matrix_of(clone, "--since", "HEAD", "--cover", "2", "--shard", "1/2", "--format", "names") == ""
    answers = {"task": "digits", "launcher": "mpirun", "amp": "none", "sync_bn": False}
    changed = [one for one in legal if answers.items() <= dict(one.answers).items()]
    assert len(changed) == 35
    since = ["--since", "HEAD~1", "--format", "names"]
    assert matrix_of(clone, *since).split() == names(changed)
    covered = covering(changed, 1)
    second = shard(covered, 2, 2)
    assert 0 < len(second) < len(covered)
    assert matrix_of(clone, *since, "--cover", "1", "--shard", "2/2").split() == names(second)


def rendering_has_begun(folder: Path, group: int) -> bool:
    return len(list(folder.glob("*/.ddp-template-*/projects/*/train.py"))) >= 5


def workers_are_starting(folder: Path, group: int) -> bool:
    """Whether there are the first workers, which load what they need for some tenths of a second."""
    return any("spawn_main" in process for process in members(group))


@pytest.mark.parametrize(
    ("number", "send", "begun"),
    [
        (signal.SIGINT, os.killpg, workers_are_starting),
        (signal.SIGINT, os.kill, rendering_has_begun),
        (signal.SIGTERM, os.kill, rendering_has_begun),
    ],
)
def test_an_interrupt_ends_it_at_once_and_leaves_nothing(
    number: int, send: Callable[[int, int], None], begun: Callable[[Path, int], bool], tmp_path: Path
) -> None:
    """A terminal sends Ctrl-C to the whole process group, others send a signal to the one process that they know."""
    command: list[str | Path] = [COMMAND, "render", tmp_path / "new" / "projects"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as running:
        wait_until(lambda: begun(tmp_path, running.pid))
        time.sleep(0.2)
        send(running.pid, number)
        sent = time.monotonic()
        printed, told = running.communicate(timeout=scaled(30))
    assert time.monotonic() - sent < scaled(5)
    assert (running.returncode, printed) == (130, "")
    assert "Traceback" not in told
    wait_until(lambda: not members(running.pid), 5)
    assert everything_in(tmp_path) == {}
