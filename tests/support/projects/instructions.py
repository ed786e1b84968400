"""UPDATING.md, RECIPES.md and AGENTS.md of a project, as their reader follows them."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

from website.recipes import Recipe, follow, read_recipes


class Guide(NamedTuple):
    start: str
    finish: str
    take_over: str
    give_up: str
    in_place: str
    migrate: str
    rename: str
    move: str


def read_guide(project: Path) -> Guide:
    page = (project / "UPDATING.md").read_text()
    return Guide(*re.findall(r"^```\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL))


ALTERNATING = "Alternating optimizers"


def follow_recipe(title: str, project: Path, place: Path) -> Path:
    """Return a copy of a project, in which a recipe has been followed."""
    shutil.copytree(project, place)
    blocks = recipes_of(place)[title].blocks
    before = {block.file: (place / block.file).read_text() for block in blocks}
    for path, code in follow(before, blocks).items():
        (place / path).write_text(code)
    return place


def recipes_of(project: Path) -> dict[str, Recipe]:
    return read_recipes((project / "RECIPES.md").read_text())


PAGE_OR_FILE = re.compile(r"[\w*{}-][\w./*{}-]*(?:/|\.(?:py|md|sh|toml|yml|jinja|json))(?![\w*])")


def read_commands(page: str) -> list[str]:
    """Return the commands in the table of AGENTS.md, in their order."""
    [section] = re.findall(r"^## Commands$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)


def named_files(page: str) -> set[str]:
    """Return the files and folders that AGENTS.md names, as patterns; folders end with a slash."""
    return {*PAGE_OR_FILE.findall(page)}
