"""UPDATING.md of a project, as its owner follows it."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Guide:
    """The commands of the page, as they stand."""

    start: str
    finish: str
    take_over: str
    give_up: str
    in_place: str
    rename: str
    move: str


def read_guide(project: Path) -> Guide:
    """Take the commands from UPDATING.md of a project."""
    page = (project / "UPDATING.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return Guide(*blocks)
