"""The places of a file where its owner may add a line, in which function or section each of them is, and where
an update could mistake one for another.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from generator.update.replay import is_text

# The functions, classes and blocks around a place, from the outside; in files without statements the heading above it.
Chain = tuple[str, ...]

# By the ending of a file: what begins a section of it.
HEADINGS = {".md": r"#+ ", ".toml": r"\[", ".yml": r"\s*- |\w"}


@dataclass(frozen=True)
class Place:
    """A place between two lines."""

    line: int  # it is before the line of this number, from 0
    indent: str
    chain: Chain


def find_places(path: str, source: str) -> list[Place]:
    """Return every statement boundary of a Python file, and every line boundary of another one."""
    lines = source.splitlines()
    if path.endswith(".py"):
        statements = ast.parse(source).body
        if not statements:
            return [Place(len(lines), "", ())]
        return sorted(dict.fromkeys(boundaries(statements, (), 0)), key=lambda place: (place.line, place.indent))
    return [Place(line, "", section_of(path, lines, line)) for line in range(len(lines) + 1)]


def boundaries(body: Sequence[ast.stmt], chain: Chain, least: int) -> Iterator[Place]:
    """Yield the boundaries of the statements of a block and of the blocks in it, the outer ones first."""
    for statement in body:
        begin = first_line(statement)
        if begin > least or not chain:  # else it is in the line of what it belongs to
            yield Place(begin - 1, " " * statement.col_offset, chain)
    last = body[-1]
    if first_line(last) > least or not chain:
        assert last.end_lineno is not None
        yield Place(last.end_lineno, " " * last.col_offset, chain)
    for statement in body:
        for block in blocks_of(statement):
            yield from boundaries(block, (*chain, name_of(statement)), statement.lineno)


def name_of(statement: ast.stmt) -> str:
    """What a statement that holds others is called: its name, or if, for, with and so on."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    return type(statement).__name__.lower()


def blocks_of(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks that a statement holds, those of its elif branches among them."""
    holders = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    blocks = [getattr(holder, name, []) for holder in holders for name in ("body", "orelse", "finalbody")]
    return [
        part for block in blocks if block for part in (blocks_of(block[0]) if is_elif(block, statement) else [block])
    ]


def is_elif(block: Sequence[ast.stmt], statement: ast.stmt) -> bool:
    """Whether the block is that of an elif, which is no statement of its own."""
    return isinstance(block[0], ast.If) and block[0].col_offset == statement.col_offset


def first_line(statement: ast.stmt) -> int:
    """The line that a statement begins at, with its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def section_of(path: str, lines: Sequence[str], line: int) -> Chain:
    """Return the heading of the section that a line of a file without statements is in."""
    heading = HEADINGS.get(PurePath(path).suffix)
    above = (text for text in reversed(lines[:line]) if heading and re.match(heading, text))
    return tuple(text for text in [next(above, None)] if text)


def chain_of(path: str, source: str, edit: str) -> Chain | None:
    """Return what is around the line of an edit, or None if it is no statement any more.

    Raises SyntaxError if the file is no Python any more.
    """
    if not path.endswith(".py"):
        lines = source.splitlines()
        return section_of(path, lines, next(i for i, text in enumerate(lines) if edit in text))
    return chain_within(ast.parse(source).body, (), edit)


def chain_within(body: Sequence[ast.stmt], chain: Chain, edit: str) -> Chain | None:
    """Return what is around the assignment of an edit in a block or deeper, or None if it is not there."""
    for statement in body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == edit:
            return chain
        for block in blocks_of(statement):
            found = chain_within(block, (*chain, name_of(statement)), edit)
            if found is not None:
                return found
    return None


def chains_in(path: str, source: str) -> set[Chain]:
    """Return all functions, classes and blocks, or sections, of a file."""
    return {place.chain for place in find_places(path, source)}


CONTEXT = 3  # lines before and after an edit: Copier's --context-lines


def ambiguous_places(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of a file where an inserted line has the surroundings of another place: both line numbers.

    Lines count from 1, and a place is before the line of its number. git takes surroundings that begin with the file
    only at its begin, and those without lines after them only at its end; all others anywhere.
    """
    found = []
    for place in range(CONTEXT + 1, len(lines)):  # 0 to CONTEXT, and the end, are held by the begin and the end
        around = lines[place - CONTEXT : place + CONTEXT]
        others = (other for other in occurrences(lines, around) if other != place - CONTEXT)
        if (other := next(others, None)) is not None:
            found.append((place + 1, other + CONTEXT + 1))
    return found


def occurrences(lines: Sequence[str], window: Sequence[str]) -> Iterator[int]:
    """Yield where a window of lines begins, wherever it occurs."""
    for begin in range(len(lines) - len(window) + 1):
        if lines[begin] == window[0] and lines[begin : begin + len(window)] == window:
            yield begin


def repeats_in(content: bytes) -> list[str]:
    """Say where a file has equal lines around two places; nothing if it is no text."""
    lines = content.decode().splitlines() if is_text(content) else []
    return [
        f"the lines around line {place} are those around line {other}: an update could move an edit between them"
        for place, other in ambiguous_places(lines)
    ]
