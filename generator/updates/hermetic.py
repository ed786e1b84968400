"""git as everybody has it: without the settings, the hooks and the background work of the user."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbum import local

from ..git import LOCAL, NO_SETTINGS, git

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


def run(folder: Path, *arguments: str) -> str:
    """Run git in a folder with these settings, and give what it prints. Raises GitError where it fails."""
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
