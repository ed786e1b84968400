"""Runs git: to find revisions of the template, and to compare two folders."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from plumbum import local

from generator.render.project import RenderError, Tree

# maintenance and gc work in the background, and can disturb who deletes a repository.
CONFIG = {
    "maintenance.auto": "false",
    "gc.auto": "0",
    "init.defaultBranch": "main",
    "init.templateDir": "",
    "safe.directory": "*",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
}
SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(CONFIG)},
    **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(CONFIG.values())},
    "GIT_CONFIG_COUNT": str(len(CONFIG)),
    "GIT_AUTHOR_NAME": "ddp-template",
    "GIT_AUTHOR_EMAIL": "nobody@example.com",
    "GIT_COMMITTER_NAME": "ddp-template",
    "GIT_COMMITTER_EMAIL": "nobody@example.com",
}

MARKERS = (b"<<<<<<< ", b">>>>>>> ")  # of a conflict


class GitError(RenderError):
    """git refuses, or is not there. The message is one line that says why."""


def git_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("GIT_")} | SETTINGS


def git(folder: Path, *arguments: str, environment: Mapping[str, str] = {}) -> bytes:
    """Run git in a folder, and return what it prints. Raises GitError if it fails."""
    settings = {**git_environment(os.environ), **environment}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *arguments], cwd=folder, capture_output=True, env=settings
        )
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"git ended with code {done.returncode}"
        raise GitError(" ".join(reason.split()))
    return done.stdout


def run(folder: Path, *arguments: str) -> str:
    return git(folder, *arguments).decode().strip()


def conflicts(tree: Tree) -> list[str]:
    """Return the paths of files with conflicts that nobody has resolved."""
    marked = [path for path, (_, text) in tree.items() if any(line.startswith(MARKERS) for line in text.splitlines())]
    return [path for path in tree if path in marked or path.endswith(".rej")]


def compare_folders(old: Path, new: Path, *options: str) -> str:
    """Return what `git diff` says of two folders, in no repository; surrogateescape keeps what is not UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        git(Path(folder), "init", "--quiet", "--bare")
        trees = []
        for name, side in (("old", old), ("new", new)):
            place = {"GIT_DIR": folder, "GIT_WORK_TREE": str(side), "GIT_INDEX_FILE": f"{folder}/{name}.index"}
            git(side, "add", "--all", "--force", ".", environment=place)
            trees.append(git(side, "write-tree", environment=place).decode().strip())
        return git(Path(folder), "diff", "--no-color", *options, *trees).decode(errors="surrogateescape")


@contextmanager
def hermetic_git(temporary: Path) -> Iterator[None]:
    """Let Copier run git with these settings, by plumbum and otherwise, and make temporary folders in this one."""
    folder, environment = tempfile.tempdir, dict(os.environ)
    tempfile.tempdir = str(temporary)
    hermetic = git_environment(environment)
    try:
        os.environ.clear()
        os.environ.update(hermetic)
        with local.env():
            local.env.clear()
            local.env.update(hermetic)
            yield
    finally:
        tempfile.tempdir = folder
        os.environ.clear()
        os.environ.update(environment)
