"""UPDATING.md and RECIPES.md of a project, as their reader follows them."""

import ast
import re
import shutil
import textwrap
from itertools import chain
from pathlib import Path
from typing import NamedTuple


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


class Block(NamedTuple):
    file: str
    place: str  # the class that it goes into; "" for the file itself
    language: str  # python, diff, or rename
    code: str  # for rename, the two names


class Recipe(NamedTuple):
    difficulty: str
    shows: str
    blocks: list[Block]  # its steps; the first ones may be those of another recipe


TITLE = r"^## (.+)$"
STEP = r"^\d\. `([\w/]+\.py)`(?:, in `(\w+)`|[^\n]*):\n\n```(python|diff)\n(.*?)^```$"
RENAME = r"^\d\. In `([\w/]+\.py)`(?: and `([\w/]+\.py)`)?, rename `(\w+)\(\)` to `(\w+)\(\)`"


def read_recipes(project: Path) -> dict[str, Recipe]:
    """Return each recipe by its title. A recipe may begin with all steps of an earlier one."""
    sections = re.split("(?m)" + TITLE, (project / "RECIPES.md").read_text())[1:]
    recipes: dict[str, Recipe] = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        [(difficulty, shows)] = re.findall(r"^\*\*(\w+)\*\*: (.+)$", text, re.MULTILINE)
        earlier = [recipes[other].blocks for other in re.findall(r"^1\. Follow \[(.+?)\]", text, re.MULTILINE)]
        renames = [
            Block(file, "", "rename", f"{old} {new}")
            for *files, old, new in re.findall(RENAME, text, re.MULTILINE)
            for file in filter(None, files)
        ]
        own = [Block(*found) for found in re.findall(STEP, text, re.MULTILINE | re.DOTALL)]
        recipes[title] = Recipe(difficulty, shows, [*chain(*earlier), *renames, *own])
    return recipes


def follow_recipe(title: str, project: Path, place: Path) -> Path:
    """Return a copy of a project, in which a recipe has been followed."""
    shutil.copytree(project, place)
    follow(place, read_recipes(place)[title].blocks)
    return place


def follow(project: Path, blocks: list[Block]) -> None:
    for block in blocks:
        file = project / block.file
        code = file.read_text()
        if block.language == "diff":
            code = patched(block.code, code)
        elif block.language == "rename":
            old, new = block.code.split()
            code = renamed(old, new, code)
        else:
            code = put_in_class(block.code, code, block.place) if block.place else put_in(block.code, code)
        file.write_text(code)


def renamed(old: str, new: str, code: str) -> str:
    """Rename a function where it is defined, and in another file wherever it is named."""
    assert re.search(rf"\b{old}\b", code)
    defined = f"\ndef {old}("
    return code.replace(defined, f"\ndef {new}(") if defined in code else re.sub(rf"\b{old}\b", new, code)


def patched(diff: str, code: str) -> str:
    """Delete and add lines. Those that stay or go must be in the code once, in this order."""
    for lines in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        old, new = (re.sub(f"^[{gone}].*\\n|^.", "", lines, flags=re.MULTILINE) for gone in "+-")
        assert f"\n{code}".count(f"\n{old}") == 1, f"not once in the file:\n{old}"
        code = f"\n{code}".replace(f"\n{old}", f"\n{new}")[1:]
    return code


def put_in_class(new: str, code: str, place: str) -> str:
    """Replace the method of the same name in a class, or add something at its end."""
    lines = code.splitlines(keepends=True)
    [owner] = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == place]
    added = name_of(ast.parse(textwrap.dedent(new)).body[0])
    old = next((node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == added), None)
    lines[first_line(old) - 1 if old else owner.end_lineno : (old or owner).end_lineno] = [new]
    return "".join(lines)


def put_in(new: str, code: str) -> str:
    """Replace what has the same name as something new. Put the rest below what it uses, or else below the imports."""
    added: set[str | None] = set()
    for node in ast.parse(new).body:
        text = "".join(new.splitlines(keepends=True)[first_line(node) - 1 : node.end_lineno])
        lines, body = code.splitlines(keepends=True), ast.parse(code).body
        alike = [each for each in body if type(each) is type(node) and name_of(each) == name_of(node) is not None]
        old = next(iter(alike), None)
        if old is not None:
            lines[first_line(old) - 1 : old.end_lineno] = [text]
        elif name_of(node) is None:
            imports = [each.end_lineno or 0 for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
            lines.insert(max(imports), text)
        elif named := [each.end_lineno or 0 for each in definitions(body) if name_of(each) in names_in(node)]:
            lines.insert(max(named), f"\n\n{text}")
            added.add(name_of(node))
        else:
            first = next(first_line(each) for each in definitions(body) if name_of(each) not in added)
            lines.insert(first - 1, f"{text}\n\n")
            added.add(name_of(node))
        code = "".join(lines)
    return code


def definitions(body: list[ast.stmt]) -> list[ast.stmt]:
    return [each for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)]


def names_in(node: ast.stmt) -> set[str | None]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None
