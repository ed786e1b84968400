"""The README of a project, as its owner follows it."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Guide:
    """The commands of the section on updates, as they stand."""

    start: str
    finish: str
    take_over: str
    give_up: str
    in_place: str
    rename: str


def read_guide(project: Path) -> Guide:
    """Take the commands from the README of a project."""
    _, _, section = (project / "README.md").read_text().partition("\n## Bring it up to date\n")
    blocks = re.findall(r"^```\n(.*?)^```$", section.partition("\n## ")[0], flags=re.MULTILINE | re.DOTALL)
    return Guide(*blocks)
