"""Edits of code that find their place by its syntax, not by its text: by a function's name and the shape of a statement.

A pattern is code in which $NAME stands for one node and $$$NAME for any number of them, as in
https://ast-grep.github.io/guide/pattern-syntax.html. What they match can be used in the replacement.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ast_grep_py import SgNode, SgRoot

VARIABLE = re.compile(r"\$\$\$([A-Z][A-Z0-9_]*)|\$([A-Z][A-Z0-9_]*)")
STATEMENT = re.compile(r"(^|_)statement$|_definition$|^pass$")


class RewriteError(Exception):
    """The place of an edit is not in the code, or is there more than once."""


@dataclass(frozen=True)
class Rewrite:
    """One edit of Python code."""

    pattern: str
    replacement: str  # "" deletes the statement; "{}" is what was matched, as it stands
    function: str = ""  # that holds the place, such as "main" or "Checkpoints.save"; "" is anywhere in the file

    def apply(self, file: Path) -> None:
        """Edit a file. Raises RewriteError if the place is not there exactly once."""
        file.write_text(self.applied(file.read_text(), str(file)))

    def applied(self, code: str, name: str = "the code") -> str:
        """Return the edited code. Raises RewriteError if the place is not there exactly once."""
        found = [node for node in matches(code, self.pattern) if self.is_in_function(node)]
        if len(found) != 1:
            where = f"{self.function}() of {name}" if self.function else name
            raise RewriteError(f"{self.pattern!r} is in {where} {len(found)} times, not once")
        [node] = found
        span = node.range()
        new = indented(self.filled(node, code), span.start.column)
        return code[: span.start.index] + new + code[span.end.index :]

    def is_in_function(self, node: SgNode) -> bool:
        """Whether the innermost functions and classes around a node have the wanted names."""
        wanted = self.function.split(".") if self.function else []
        return enclosing_names(node)[-len(wanted) :] == wanted if wanted else True

    def filled(self, node: SgNode, code: str) -> str:
        """Return the replacement, with what the pattern's variables matched."""

        def matched(variable: re.Match[str]) -> str:
            if variable[2]:
                one = node.get_match(variable[2])
                return one.text() if one else variable[0]
            several = node.get_multiple_matches(variable[1])
            return code[several[0].range().start.index : several[-1].range().end.index] if several else ""

        return VARIABLE.sub(matched, self.replacement.replace("{}", node.text())) or "pass"


def matches(code: str, pattern: str) -> Iterator[SgNode]:
    """Find a pattern; one for a keyword argument, such as "fused=$X", is found among the arguments of calls."""
    root = SgRoot(code, "python").root()
    found = root.find_all(pattern=pattern)
    if not found and re.fullmatch(r"\w+=.*", pattern):
        found = root.find_all({"rule": {"pattern": {"context": f"f({pattern})", "selector": "keyword_argument"}}})
    return iter(found)


def enclosing_names(node: SgNode) -> list[str]:
    """Return the names of the functions and classes around a node, outermost first."""
    around = [each for each in node.ancestors() if each.kind() in ("function_definition", "class_definition")]
    named = [name.text() for each in reversed(around) if (name := each.field("name"))]
    return named


def indented(text: str, columns: int) -> str:
    """Indent all lines but the first."""
    return text.replace("\n", "\n" + " " * columns)
