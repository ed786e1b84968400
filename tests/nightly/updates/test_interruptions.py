"""An update that is killed, or whose disk is full, leaves the project as it was."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from generator.update.history import NEXT, History
from generator.update.replay import commit_all, copy_project, put_under_git
from tests.core.test_matrix import everything_in
from tests.support.hardware import small_disk
from tests.support.processes import PATH, scaled
from tests.support.projects.edits import EDITS
from tests.support.projects.instructions import read_guide
from tests.support.versions import replace

KILLS = 12
TOGETHER = ("new_option", "added_metric", "added_dependency", "own_file")


@dataclass
class Owner:
    """A project with edits and a run, and what the owner types there. Temporary files go elsewhere."""

    project: Path
    elsewhere: Path

    def begin(self, commands: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PATH": PATH, "TMPDIR": str(self.elsewhere), "HOME": str(self.elsewhere)}
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        return subprocess.Popen(["bash", "-c", commands], cwd=self.project, env=env, **quiet)

    def type_in(self, commands: str) -> int:
        return self.begin(commands).wait(timeout=scaled(120))

    @contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Compare all files of the project, also those of git, after what happens inside with what they were."""
        before = everything_in(self.project)
        yield
        assert everything_in(self.project) == before


def make_owner(project: Path, elsewhere: Path, template: Path) -> Owner:
    """Make a project of the version before NEXT whose update merges edits, adds files and has a conflict."""
    elsewhere.mkdir()
    copy_project(template, "v1.0.0", {}, project)
    put_under_git(project)
    for name in TOGETHER:
        EDITS[name](project)
    replace(project / "UPDATING.md", "replaces what you left alone", "REPLACES what you left alone")
    commit_all(project)
    (project / "runs" / "default").mkdir(parents=True)
    (project / "runs" / "default" / "train.log").write_text("a run that git ignores\n")
    return Owner(project, elsewhere)


@pytest.fixture(scope="module")
def new_guide(history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("guide") / "project"
    copy_project(history.folder, NEXT, {}, place)
    return place


def kill(process: subprocess.Popen[bytes], delay: float) -> bool:
    """Kill a process and its children after a time, and say whether they were still at work."""
    time.sleep(delay)
    at_work = process.poll() is None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return at_work


def test_a_killed_update_leaves_the_project_as_it_was(history: History, new_guide: Path, tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "project", tmp_path / "elsewhere", history.folder)
    guide = read_guide(new_guide)
    started = time.perf_counter()
    with owner.nothing_changes():
        assert owner.type_in(guide.start) == 0
        takes = time.perf_counter() - started
        owner.type_in(guide.give_up)
    moments, kills = random.Random(3), 0
    for i in range(2 * KILLS):  # half of them while git makes the copy
        with owner.nothing_changes():
            kills += kill(owner.begin(guide.start), moments.uniform(0, takes if i % 2 else 0.05))
            owner.type_in(guide.give_up)
    assert kills >= KILLS
    assert owner.type_in(guide.start) == 0


@pytest.mark.parametrize("room", [0, 500, 1500, 4000])
def test_a_full_disk_leaves_the_project_as_it_was(room: int, history: History, new_guide: Path, tmp_path: Path) -> None:
    guide = read_guide(new_guide)
    with small_disk(tmp_path / "disk", "32m") as disk:
        owner = make_owner(disk / "project", disk / "elsewhere", history.folder)
        stuffing = disk / "stuffing"
        with owner.nothing_changes():
            space = os.statvfs(disk)
            stuffing.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - room * 1000)))
            ended = owner.type_in(f"set -e\n{guide.start}")
            if room <= 500:
                assert ended != 0
            stuffing.unlink()
            owner.type_in(guide.give_up)
        assert owner.type_in(guide.start) == 0
