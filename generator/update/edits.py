"""Tests how Copier carries over owners' edits, one at every place of every file that a new version changes.

A made-up template has the files of all projects, with one copy of a file for each of its places. One update then
carries over thousands of edits that do not meet.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from generator.render.git import MARKERS, run
from generator.update.migrate import merge
from generator.update.replay import commit_all, copy_project, is_text, put_under_git, update

SETTINGS_OF_TEMPLATE = "_subdirectory: template\n_templates_suffix: .jinja\n"
OLD, NEW = "v1", "v2"
CONTEXT = 3  # lines before and after an edit: Copier's --context-lines
NEAREST = 2  # lines on each side of an edit
TO_COPY_FROM = "RECIPES.md"  # nobody edits it, and pieces of code in it may be alike
HEADINGS = {".md": r"#+ ", ".toml": r"\[", ".yml": r"\s*- |\w"}  # patterns of a heading, by the suffix of a file

# Functions, classes and blocks around a place, outermost first; in files without statements the heading above it.
Chain = tuple[str, ...]
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Place:
    line: int  # the place is before this line, counted from 0
    indent: str
    chain: Chain


def find_places(path: str, source: str) -> list[Place]:
    """Return every statement boundary of a Python file, or every line boundary of another file."""
    lines = source.splitlines()
    if not path.endswith(".py"):
        return [Place(line, "", section_of(path, lines, line)) for line in range(len(lines) + 1)]
    places = []
    for block, chain, above in blocks_in(ast.parse(source).body):
        for statement in block:
            decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
            begin = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
            if begin > above or not chain:  # otherwise it shares the line of its parent
                places.append(Place(begin - 1, " " * statement.col_offset, chain))
                if statement is block[-1]:
                    places.append(Place(statement.end_lineno or begin, " " * statement.col_offset, chain))
    return sorted(dict.fromkeys(places), key=lambda place: (place.line, place.indent)) or [Place(len(lines), "", ())]


def blocks_in(block: list[ast.stmt], chain: Chain = (), above: int = 0) -> Iterator[tuple[list[ast.stmt], Chain, int]]:
    """Yield blocks of statements, outermost first, each with its chain and the line at which its parent begins."""
    yield block, chain, above
    for statement in block:
        kind_of = "loop" if isinstance(statement, ast.For | ast.While) else type(statement).__name__.lower()
        name = getattr(statement, "name", kind_of)
        holders = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        for part in (getattr(holder, kind, []) for holder in holders for kind in ("body", "orelse", "finalbody")):
            if part and isinstance(part[0], ast.If) and part[0].col_offset == statement.col_offset:
                holders.append(part[0])  # an elif is part of its if: its blocks come next
            elif part:
                yield from blocks_in(part, (*chain, name), statement.lineno)


def section_of(path: str, lines: Sequence[str], line: int) -> Chain:
    """Return the heading of the section that a line of a file without statements is in."""
    heading = HEADINGS.get(PurePath(path).suffix)
    above = (text for text in reversed(lines[:line]) if heading and re.match(heading, text))
    return tuple(text for text in [next(above, None)] if text)


def chain_of(path: str, source: str, edit: str) -> Chain | None:
    """Return the chain of an edit; None if it is not a statement. Raises SyntaxError if the file is not Python."""
    if not path.endswith(".py"):
        lines = source.splitlines()
        return section_of(path, lines, next(i for i, text in enumerate(lines) if edit in text))
    for block, chain, _ in blocks_in(ast.parse(source).body):
        for statement in block:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == edit:
                return chain
    return None


def around(lines: Sequence[str], line: int, reach: int = CONTEXT) -> tuple[Lines, Lines]:
    """Return the lines before and after a place, up to a number on each side; fewer at the ends of the file."""
    return tuple(lines[max(0, line - reach) : line]), tuple(lines[line : line + reach])


def repeats_in(path: str, content: bytes) -> list[str]:
    """Say where a file has equal lines around two places, so that an update could mistake one for another."""
    lines = content.decode().splitlines() if is_text(content) and path != TO_COPY_FROM else []
    begins: dict[Lines, list[int]] = {}
    for size in range(CONTEXT + 1, 2 * CONTEXT + 1):
        for begin in range(len(lines) - size + 1):
            begins.setdefault(tuple(lines[begin : begin + size]), []).append(begin)
    words = []
    for place in range(CONTEXT + 1, len(lines)):  # git takes surroundings at the begin and the end only there
        before, after = around(lines, place)
        if others := [begin for begin in begins[before + after] if begin != place - CONTEXT]:
            same = f"the lines around line {place + 1} are those around line {others[0] + CONTEXT + 1}"
            words.append(f"{same}: an update could move an edit between them")
    return words


@dataclass(frozen=True)
class ChangedFile:
    path: str
    old: str
    new: str
    about: str = field(default="", compare=False)  # the first update that changes it


@dataclass(frozen=True)
class Edit:
    file: ChangedFile
    place: Place
    number: int

    @property
    def name(self) -> str:
        return f"owners_edit_{self.number}"

    @property
    def line(self) -> str:
        if self.file.path.endswith(".py"):
            return f"{self.place.indent}{self.name} = {self.number}\n"
        return f"{self.name}\n" if self.file.path.endswith(".md") else f"# {self.name}\n"

    @property
    def path(self) -> str:
        return f"{self.number}/{PurePath(self.file.path).name}"

    @property
    def edited(self) -> str:
        lines = self.file.old.splitlines(keepends=True)
        return "".join([*lines[: self.place.line], self.line, *lines[self.place.line :]])

    def __str__(self) -> str:
        inside = f" in {'.'.join(self.place.chain)}" if self.place.chain else ""
        about = f"{self.file.about}: " if self.file.about else ""
        return f"{about}{self.file.path}, an edit before line {self.place.line + 1}{inside}"


def choose_edits(files: Iterable[ChangedFile]) -> list[Edit]:
    """Return an edit for each place of the files; of places with the same lines around, before and after, the first."""
    edits: dict[object, Edit] = {}
    for file in files:
        lines, new_lines = file.old.splitlines(), file.new.splitlines()
        holding: dict[Lines, tuple[Chain, ...]] = {}  # by the lines around places of the new version
        for place in find_places(file.path, file.new):
            before, after = around(new_lines, place.line)
            holding[before + after] = (*holding.get(before + after, ()), place.chain)
        for place in find_places(file.path, file.old):
            before, after = around(lines, place.line)
            whole = len(before + after) == 2 * CONTEXT
            ends = () if whole else (*new_lines[:CONTEXT], *new_lines[-CONTEXT:])
            # Where git does not find these lines, what becomes of the edit depends on the whole new file.
            found = holding.get(before + after, file.new)
            key = (file.path, place.chain, place.indent, before, after, ends, found)
            edits.setdefault(key, Edit(file, place, len(edits)))
    return [*edits.values()]


def carry_edits(edits: Sequence[Edit], folder: Path) -> list[str]:
    """Let Copier carry all edits over, and say which are gone or have moved."""
    template, project = folder / "template", folder / "project"
    (template / "template").mkdir(parents=True)
    (template / "copier.yml").write_text(SETTINGS_OF_TEMPLATE)
    (template / "template" / "{{ _copier_conf.answers_file }}.jinja").write_text("{{ _copier_answers | to_nice_yaml }}")
    run(template, "init", "--quiet")
    for version in (OLD, NEW):
        for edit in edits:  # each has a copy of its file
            file = template / "template" / edit.path
            file.parent.mkdir(exist_ok=True)
            file.write_text(edit.file.old if version == OLD else edit.file.new)
        commit_all(template)
        run(template, "tag", version)
    copy_project(template, OLD, {}, project)
    put_under_git(project)
    for edit in edits:
        (project / edit.path).write_text(edit.edited)
    commit_all(project)
    update(project, NEW)
    judged = ((edit, judge(edit, project)) for edit in edits)
    return [f"{edit}: {wrong}" for edit, wrong in judged if wrong]


def merge_edits(edits: Sequence[Edit], folder: Path) -> list[str]:
    """Merge all edits of files that have moved as `migrate` does it, and say which are gone or in another place."""
    wrong = []
    for edit in edits:
        merged = merge(edit.edited, edit.file.old, edit.file.new)
        if merged is not None:  # else it goes to a folder outside of the package
            (folder / edit.path).parent.mkdir(parents=True)
            (folder / edit.path).write_text(merged)
            wrong += [f"{edit}: {words}" for words in [judge(edit, folder)] if words]
    return wrong


def judge(edit: Edit, project: Path) -> str:
    """Say what is wrong with an edit after the update: "" if it is in its place, or in a visible conflict."""
    file = project / edit.path
    text = file.read_text() if file.exists() else ""
    if edit.name not in text.replace("\n", " ").split():
        return "it is gone"
    if any(line.encode().startswith(MARKERS) for line in text.splitlines()):
        return ""
    try:
        chain = chain_of(edit.path, text, edit.name)
    except SyntaxError as error:
        return f"the file is no Python any more: {error}"
    if chain is None:
        return "it is no statement any more"
    if chain == edit.place.chain or is_inherited(edit, chain, text):
        return ""
    chains = {place.chain for place in find_places(edit.path, edit.file.new)}
    # An edit may move if two of these are true: its old section is gone (always true outside Python), the section was
    # renamed, the edit moved together with the lines around it.
    is_gone = edit.place.chain not in chains or not edit.path.endswith(".py")
    if is_gone + is_renamed(edit, chain) + keeps_company(edit, text) >= 2:
        return ""
    return f"it has moved to {'.'.join(chain) or 'the outside of all functions'}"


def is_renamed(edit: Edit, chain: Chain) -> bool:
    """Return whether two sections differ only by names that are new in this version."""
    known = {name for place in find_places(edit.path, edit.file.old) for name in place.chain}
    both = [*zip(edit.place.chain, chain, strict=False)]
    return len(chain) == len(edit.place.chain) and all(was == now or now not in known for was, now in both)


def is_inherited(edit: Edit, chain: Chain, text: str) -> bool:
    """Return whether an edit is in a base of the class that it was in, which so has it too."""
    source = text if edit.path.endswith(".py") else ""
    classes = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef)]
    bases = [ast.unparse(base) for each in classes if (each.name,) == edit.place.chain[-1:] for base in each.bases]
    return bool(chain) and chain[-1] in bases


def keeps_company(edit: Edit, text: str) -> bool:
    """Return whether an edit is between the lines it was made between: all of one side, or the nearest of both."""
    sides = []
    for lines in (edit.edited.splitlines(), text.splitlines()):
        at = next(i for i, line in enumerate(lines) if edit.name in line.split())
        del lines[at]
        sides.append((*around(lines, at), around(lines, at, NEAREST)))
    return any(before == after for before, after in zip(*sides, strict=True))
