"""Runs git: to find revisions of the template, and to compare two folders."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from plumbum import local

from generator.render.project import RenderError

# What a hook or an alias of git sets for its own repository, which need not be the one that is asked for.
LOCAL = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_TEMPLATE_DIR",
    "GIT_WORK_TREE",
)
NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
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
    **NO_SETTINGS,
    **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(CONFIG)},
    **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(CONFIG.values())},
    "GIT_CONFIG_COUNT": str(len(CONFIG)),
    "GIT_AUTHOR_NAME": "ddp-template",
    "GIT_AUTHOR_EMAIL": "nobody@example.com",
    "GIT_COMMITTER_NAME": "ddp-template",
    "GIT_COMMITTER_EMAIL": "nobody@example.com",
}


class GitError(RenderError):
    """git refuses, or is not there. The message is one line that says why."""


def git(folder: Path, *arguments: str, environment: Mapping[str, str] = {}) -> bytes:
    """Run git in a folder, and return what it prints. Raises GitError if it fails."""
    kept = {key: value for key, value in os.environ.items() if key not in LOCAL}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, env={**kept, **environment})
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"git ended with code {done.returncode}"
        raise GitError(" ".join(reason.split()))
    return done.stdout


def compare_folders(old: Path, new: Path, *options: str) -> str:
    """Return what `git diff` says of two folders, which need be in no repository. No settings of the user apply.

    Bytes that are not UTF-8 are kept by surrogateescape.
    """
    with tempfile.TemporaryDirectory() as folder:
        git(Path(folder), "init", "--quiet", "--bare", "--template=", environment=NO_SETTINGS)
        trees = []
        for name, side in (("old", old), ("new", new)):
            place = {"GIT_DIR": folder, "GIT_WORK_TREE": str(side), "GIT_INDEX_FILE": f"{folder}/{name}.index"}
            git(side, "add", "--all", "--force", ".", environment={**NO_SETTINGS, **place})
            trees.append(git(side, "write-tree", environment={**NO_SETTINGS, **place}).decode().strip())
        settings = ("-c", "core.quotePath=false")
        shown = git(Path(folder), *settings, "diff", "--no-color", *options, *trees, environment=NO_SETTINGS)
    return shown.decode(errors="surrogateescape")


def run(folder: Path, *arguments: str) -> str:
    """Run git in a folder with these settings, and return what it prints. Raises GitError if it fails."""
    return git(folder, *arguments, environment=SETTINGS).decode().strip()


@contextmanager
def hermetic_git(temporary: Path) -> Iterator[None]:
    """Let Copier run git with these settings, by plumbum and otherwise, even where it was made to find none.

    Its temporary folders are in the given one.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(temporary)
    environment = dict(os.environ)
    for variable in LOCAL:
        os.environ.pop(variable, None)
    os.environ.update(SETTINGS)
    try:
        with local.env(PATH=environment["PATH"], **SETTINGS):
            for variable in LOCAL:
                local.env.pop(variable, "")
            yield
    finally:
        tempfile.tempdir = before
        os.environ.clear()
        os.environ.update(environment)
