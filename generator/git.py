"""Runs git: to find revisions of the template, and to compare two folders."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .rendering import RenderError

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


class GitError(RenderError):
    """git refuses, or is not there. The message is one line that says why."""


def git(folder: Path, *arguments: str, environment: Mapping[str, str] = {}) -> bytes:
    """Run git in a folder, and give what it prints. Raises GitError where it fails."""
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
    """Give what `git diff` says of two folders, which need be in no repository. No settings of the user apply.

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
