"""The recipes of RECIPES.md: what their steps change in a project, and the pages that show it as diffs."""

import ast
import difflib
import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from website.render import Template

PAGE = "RECIPES.md"
TITLE = r"^## (.+)$"
ABOUT = r"^\*\*(\w+)\*\*: (.+)$"
STEP = r"^\d+\. `([\w/]+\.py)`(?:, in `(\w+)`|[^\n]*):\n\n```(python|diff)\n(.*?)^```$"
RENAME = r"^\d+\. In `([\w/]+\.py)`(?: and `([\w/]+\.py)`)?, rename `(\w+)\(\)` to `(\w+)\(\)`"
DELETE = r"^\d+\. In `([\w/]+\.py)`, delete ((?:(?:, | and )?`\w+`)+)\."
FOLLOW = r"^1\. Follow \[(.+?)\].*"
INTRODUCTION = """# Recipes

Changes that you can copy into a project, by task. Each page shows what a recipe changes in the files of a new project.
RECIPES.md of your project has the same recipes as steps, for your answers.

"""


class Block(NamedTuple):
    """A step of a recipe."""

    file: str
    place: str  # the class that it goes into; "" for the file itself
    language: str  # python, diff, rename or delete
    code: str  # for rename the two names, for delete those of functions and classes


class Recipe(NamedTuple):
    """A section of RECIPES.md."""

    difficulty: str
    shows: str
    blocks: list[Block]  # its steps; the first ones may be those of another recipe
    text: str  # all of it but the code


def read_recipes(page: str) -> dict[str, Recipe]:
    """Return each recipe by its title. A recipe may begin with all steps of an earlier one."""
    sections = re.split(f"(?m){TITLE}", page)[1:]
    recipes: dict[str, Recipe] = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        [(difficulty, shows)] = re.findall(ABOUT, text, re.MULTILINE)
        earlier = [recipes[other].blocks for other in re.findall(FOLLOW, text, re.MULTILINE)]
        renames = [
            Block(file, "", "rename", f"{old} {new}")
            for *files, old, new in re.findall(RENAME, text, re.MULTILINE)
            for file in filter(None, files)
        ]
        deletions = [
            Block(file, "", "delete", " ".join(re.findall(r"\w+(?=`)", names)))
            for file, names in re.findall(DELETE, text, re.MULTILINE)
        ]
        own = [Block(*found) for found in re.findall(STEP, text, re.MULTILINE | re.DOTALL)]
        words = re.sub(STEP, "", text, flags=re.MULTILINE | re.DOTALL)
        words = re.sub(rf"(?m){ABOUT}|{RENAME}.*|{DELETE}|{FOLLOW}|^\d+\. (?=Add)", "", words)
        blocks = [*chain(*earlier), *renames, *deletions, *own]
        recipes[title] = Recipe(difficulty, shows, blocks, re.sub(r"\n{3,}", "\n\n", words).strip())
    return recipes


def follow(files: Mapping[str, str], blocks: Sequence[Block]) -> dict[str, str]:
    """Return the files of a project after these steps, of those that are given."""
    done = dict(files)
    for block in blocks:
        code = done[block.file]
        if block.language == "diff":
            code = patched(block.code, code)
        elif block.language == "rename":
            old, new = block.code.split()
            code = renamed(old, new, code)
        elif block.language == "delete":
            for name in block.code.split():
                code = without(name, code)
        else:
            code = put_in_class(block.code, code, block.place) if block.place else put_in(block.code, code)
        done[block.file] = code
    return done


def renamed(old: str, new: str, code: str) -> str:
    """Rename a function where it is defined, and in another file wherever it is named."""
    assert re.search(rf"\b{old}\b", code), old
    defined = f"\ndef {old}("
    return code.replace(defined, f"\ndef {new}(") if defined in code else re.sub(rf"\b{old}\b", new, code)


def without(name: str, code: str) -> str:
    """Delete a function or a class, and the empty lines below it."""
    [old] = [node for node in definitions(ast.parse(code).body) if name_of(node) == name]
    lines = code.splitlines(keepends=True)
    return "".join(lines[: first_line(old) - 1]) + "".join(lines[old.end_lineno :]).lstrip("\n")


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
    below_docstring = "\n" if len(owner.body) == 1 else ""
    lines[first_line(old) - 1 if old else owner.end_lineno : (old or owner).end_lineno] = [below_docstring + new]
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
            spare = isinstance(node, ast.Assign) and not added  # one empty line of two between imports and a constant
            lines[first - 1 - spare : first - 1] = [f"{text}\n\n"]
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


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what differs between files, as `git diff` shows it."""
    lines: list[str] = []
    for path in before:
        one, other = (files[path].splitlines(keepends=True) for files in (before, after))
        lines += difflib.unified_diff(one, other, f"a/{path}", f"b/{path}")
    return "".join(lines)


def write_pages(template: Template, folder: Path) -> None:
    """Write recipes.md and a page for each task, for Sphinx."""
    for task in write_list(template, "task", folder / "recipes", INTRODUCTION):
        (folder / "recipes" / f"{task}.md").write_text(page_of(template, task))


def write_list(template: Template, key: str, folder: Path, introduction: str) -> list[str]:
    """Write a page above those of a folder, one for each answer to a question; return the answers."""
    folder.mkdir()
    [question] = [asked for asked in template.ask({}).asked if asked.key == key]
    rows = [f"- [{choice.label}]({folder.name}/{choice.value}.md)" for choice in question.choices]
    answers = [str(choice.value) for choice in question.choices]
    names = "\n".join(f"{folder.name}/{answer}" for answer in answers)
    listed = f"```{{toctree}}\n:hidden:\n\n{names}\n```"
    folder.with_suffix(".md").write_text(introduction + "\n".join(rows) + f"\n\n{listed}\n")
    return answers


def page_of(template: Template, task: str) -> str:
    """Return the page of a task: the list of its recipes, and the diff of each."""
    files = template.render(template.ask({"task": task}))
    texts = {path: raw.decode() for path, (_, raw) in files.items() if path.endswith((".py", ".md"))}
    listed = re.findall(r"^\|.*\|\n", texts[PAGE], re.MULTILINE)
    parts = [f"# Recipes: {task}\n\n{''.join(listed)}"]
    for title, recipe in read_recipes(texts[PAGE]).items():
        changed = {block.file: texts[block.file] for block in recipe.blocks}
        diff = difference(changed, follow(changed, recipe.blocks))
        about = f"## {title}\n\n**{recipe.difficulty}**: {recipe.shows}\n\n{recipe.text}\n"
        parts.append(f"{about}\n```diff\n{diff}```\n")
    return "\n".join(parts)
