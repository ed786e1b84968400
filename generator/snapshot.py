"""A copy of the template's own files, outside git: quick to render from, and the same for every render."""

import shutil
from pathlib import Path

from .questions import TEMPLATE

PARTS = ("copier.yml", "template", "partials")


def take_snapshot(folder: Path, template: Path = TEMPLATE) -> Path:
    """Copy what Copier reads into a new folder, and give that folder."""
    folder.mkdir(parents=True)
    for name in PARTS:
        copy = shutil.copytree if (template / name).is_dir() else shutil.copy2
        copy(template / name, folder / name)
    return folder
