"""Versions of the template: the real history, made-up ones, and copies of this repository that a test may change."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from generator.answers.questions import TEMPLATE
from generator.render.cache import Cache
from generator.render.git import run
from generator.render.scratch import scratch_folder
from generator.render.snapshot import PARTS, take_snapshot
from generator.render.workers import Workers
from generator.update.history import FILE, NEXT, TOLD, History, read_releases
from generator.update.replay import commit_all, copy_project, put_under_git
from tools.rewriting import Rewrite

MYPY = Path(".cache") / "mypy"
# Of CHANGELOG.md.
SECTION = f"# Changes\n\n## 1.1.0\n\n{TOLD[0]}\n\n- Nothing.\n\n{TOLD[1]}\n\n- Nothing.\n"


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    with Workers() as workers:
        yield workers


@pytest.fixture
def scratch() -> Iterator[Path]:
    with scratch_folder(2**30) as folder:
        yield folder


class MadeUp:
    """A repository of the template with versions that never were, at first the template as it is, to be changed on."""

    def __init__(self, folder: Path, cache: Cache) -> None:
        self.folder = folder
        self.cache = cache  # of what Copier has said about the same questions
        take_snapshot(folder)
        run(folder, "init", "--quiet")
        (folder / FILE).write_text("")
        self.release("1.0.0")

    def release(self, version: str) -> None:
        commit_all(self.folder)
        run(self.folder, "tag", f"v{version}")
        append(self.folder / FILE, f"{version}: {run(self.folder, 'rev-parse', 'HEAD')}\n")

    def replace(self, path: str, old: str, new: str) -> None:
        replace(self.folder / path, old, new)


def change_many_files(versions: MadeUp) -> None:
    """Change the template as a new version may: lines in many files, and a new file."""
    package, network = "template/{{package_name}}", "class $NAME(nn.Module): $$$BODY"
    for path, edit in {
        "template/train.py.jinja": Rewrite("run.model.train()", "{}  # with dropout"),
        f"{package}/config.py.jinja": Rewrite("epochs: PositiveInt = $N", "epochs: PositiveInt = 21", "Training"),
        "partials/tasks/digits/model.py.jinja": Rewrite(network, "# The template's network.\n{}"),
        "partials/checkpoint/ddp.py.jinja": Rewrite("first_whole($X)", "first_whole([*$X])"),
    }.items():
        edit.apply(versions.folder / path)
    versions.replace("template/pyproject.toml.jinja", '    "numpy>=1.26",\n', '    "numpy>=1.26.4",\n')
    versions.replace("template/UPDATING.md.jinja", "replaces what you left alone", "replaces what you have left alone")
    (versions.folder / package / "runtime" / "sums.py").write_text('"""New in this version."""\n')


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """A made-up history: version 1.0.0 is the template as it is, and NEXT changes something in many files."""
    place = tmp_path_factory.mktemp("history")
    versions = MadeUp(place / "made-up", Cache(place / "cache-of-questions"))
    change_many_files(versions)
    commit_all(versions.folder)
    run(versions.folder, "tag", NEXT)
    return History(versions.folder, read_releases(versions.folder), versions.folder)


@pytest.fixture
def made_up(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> MadeUp:
    """A history whose only version, 1.0.0, is the template as it is."""
    return MadeUp(tmp_path / "made-up", Cache(tmp_path_factory.getbasetemp() / "cache-of-questions"))


@pytest.fixture
def ready(made_up: MadeUp) -> MadeUp:
    (made_up.folder / "CHANGELOG.md").write_text(SECTION)
    (made_up.folder / "pyproject.toml").write_text('[project]\nversion = "1.1.0"\n')
    commit_all(made_up.folder)
    return made_up


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text, f"{old!r} is not in {file}"
    file.write_text(text.replace(old, new))


@pytest.fixture
def old_project(history: History, tmp_path: Path) -> Callable[..., Path]:
    """Return a project of a version, the first one if none is given, with some answers, all of it committed."""

    def get(version: str = history.releases[0].tag, **answers: object) -> Path:
        project = tmp_path / "project"
        copy_project(history.folder, version, answers, project)
        put_under_git(project)
        return project

    return get


@contextmanager
def clone_of_the_template() -> Iterator[Path]:
    """Copy this repository, without the caches of earlier checks, except the one of mypy, which is mostly torch."""
    with tempfile.TemporaryDirectory(prefix="clone-") as folder:  # short, since a socket path in it has a length limit
        place = Path(folder) / "clone"
        place.mkdir()
        for part in (*PARTS, "generator"):
            copy = shutil.copytree if (TEMPLATE / part).is_dir() else shutil.copy2
            copy(TEMPLATE / part, place / part)
        if (TEMPLATE / MYPY).exists():
            shutil.copytree(TEMPLATE / MYPY, place / MYPY, copy_function=copy_if_there)
        yield place


def copy_if_there(source: str, destination: str) -> None:
    """Copy a file, unless another check has renamed it meanwhile."""
    if os.path.exists(source):
        shutil.copy2(source, destination)


def left_behind(clone: Path) -> list[Path]:
    return sorted((clone.parent / "temporary").glob("ddp-template-check-*"))


def append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def append_to_last_block(file: Path, text: str) -> None:
    """Add to the last block of a partial of the clone: what is outside of its blocks is not rendered."""
    before, end, after = file.read_text().rpartition("{% endblock %}")
    file.write_text(before + text + end + after)
