"""Edits of code that find their place by syntax, not by text: by a function's name and the shape of a statement.

A pattern is code in which $NAME stands for one node and $$$NAME for any number of them, as in
https://ast-grep.github.io/guide/pattern-syntax.html. What they match can be used in the replacement. A pattern can
also be an argument, written as black writes it (fused=$X), or an item of a dict ("lr": $X).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ast_grep_py import Pattern, SgNode, SgRoot

VARIABLE = re.compile(r"\$\$\$([A-Z][A-Z0-9_]*)|\$([A-Z][A-Z0-9_]*)|\{\}")
# What patterns that are no code by themselves look like, and in what they are code.
PARTS = {"keyword_argument": (r"\w+=[^= ].*", "f(%s)"), "pair": (r"\"[^\"]*\": .+", "{%s}")}


class RewriteError(Exception):
    """The place of an edit is not in the code, or is there more than once."""


@dataclass(frozen=True)
class Rewrite:
    """One edit of Python code."""

    pattern: str
    replacement: str  # "" deletes the statement; "{}" is what was matched, as it stands
    function: str = ""  # or class around the place, such as "main" or "Checkpoints.save"; "" is anywhere

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
        return code[: span.start.index] + self.filled(node, code) + code[span.end.index :]

    def is_in_function(self, node: SgNode) -> bool:
        """Whether the innermost functions and classes around a node have the wanted names."""
        wanted = self.function.split(".") if self.function else []
        return enclosing_names(node)[-len(wanted) :] == wanted if wanted else True

    def filled(self, node: SgNode, code: str) -> str:
        """Return the replacement, as deep as the node, with what the pattern's variables matched."""

        def matched(variable: re.Match[str]) -> str:
            if variable[1]:
                several = node.get_multiple_matches(variable[1])
                return code[several[0].range().start.index : several[-1].range().end.index] if several else ""
            one = node.get_match(variable[2]) if variable[2] else node
            return one.text() if one else variable[0]

        # What was matched keeps its own lines as they are: only new ones are indented.
        return VARIABLE.sub(matched, indented(self.replacement, node.range().start.column)) or "pass"


def matches(code: str, pattern: str) -> list[SgNode]:
    """Return all nodes that a pattern matches."""
    root = SgRoot(code, "python").root()
    for kind, (shape, context) in PARTS.items():
        if re.fullmatch(shape, pattern):
            return root.find_all(pattern=Pattern(context=context % pattern, selector=kind, strictness="smart"))
    return root.find_all(pattern=pattern)


def enclosing_names(node: SgNode) -> list[str]:
    """Return the names of the functions and classes around a node, outermost first."""
    around = [each for each in node.ancestors() if each.kind() in ("function_definition", "class_definition")]
    return [name.text() for each in reversed(around) if (name := each.field("name"))]


def indented(text: str, columns: int) -> str:
    """Indent all lines but the first."""
    return re.sub(r"\n(?!\n)", "\n" + " " * columns, text)


def extend(file: Path, code: str = "", *, imports: str = "") -> None:
    """Add imports (lines) above the first statement of a file that may follow others, and code at its end."""
    text = file.read_text()
    statements = SgRoot(text, "python").root().children()
    place = next((node.range().start.index for node in statements if not comes_first(node)), len(text))
    file.write_text(text[:place] + imports + text[place:] + code)


def comes_first(node: SgNode) -> bool:
    """Whether a node must stay above all statements: a comment, the docstring, or what is of __future__."""
    docstring = [child.kind() for child in node.children()] == ["string"]
    return docstring or node.kind() in ("comment", "future_import_statement")
