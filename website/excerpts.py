"""Parts of the rendered code for a page, with what they are for each other answer to some questions."""

import ast
import itertools
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer, PythonLexer

from website.preview import word
from website.render import Asked, Template

QUESTIONS = ("launcher", "amp")  # what the reader can switch; copier.yml has the answers


class Variants:
    """The default project and those with other answers to the questions, rendered once."""

    def __init__(self, template: Template, given: Mapping[str, Any] | None = None) -> None:
        form = template.ask(given or {})
        self.asked: list[Asked] = [asked for asked in form.asked if asked.key in QUESTIONS]
        self.default = self.key(asked.value for asked in self.asked)
        self.package = form.values["package_name"]
        self.projects: dict[str, dict[str, str]] = {}
        for values in itertools.product(*([choice.value for choice in asked.choices] for asked in self.asked)):
            answers = dict(zip((asked.key for asked in self.asked), values, strict=True))
            if not (form := template.ask({**(given or {}), **answers})).problems:
                files = template.render(form).items()
                self.projects[self.key(values)] = {path: raw.decode() for path, (_, raw) in files if b"\0" not in raw}

    @staticmethod
    def key(values: Iterable[Any]) -> str:
        """Return a word for the answers to the questions, in their order."""
        return "-".join(map(word, values))

    def find(self, sources: str, key: str) -> tuple[str, str] | None:
        """Return the path and the text of the first of some sources that a project has, each FILE:NAME."""
        files = self.projects[key]
        for source in sources.split():
            path, _, name = source.partition(":")
            path = path if path in files else f"{self.package}/{path}"
            if path in files and (text := excerpt(path, files[path], name)):
                return path, text
        return None

    def html(self, sources: str) -> str:
        """Return the figure: the default, and a template for each other text. Raises LookupError without a default."""
        if self.find(sources, self.default) is None:
            raise LookupError(f"the default project has nothing of {sources}")
        keys: dict[tuple[str, str], list[str]] = {}
        for key in (self.default, *self.projects):
            if (found := self.find(sources, key)) and key not in keys.setdefault(found, []):
                keys[found].append(key)
        highlighted = {(path, text): code(path, text) for path, text in keys}
        path, text = next(iter(keys))
        templates = [
            f'<template data-for="{" ".join(those)}" data-path="{escape(path)}">{highlighted[path, text]}</template>'
            for (path, text), those in keys.items()
        ]
        caption = f'<a href="preview/index.html#file={escape(path)}"><code>{escape(path)}</code></a>'
        shown = f'<div class="highlight"><pre tabindex="0">{highlighted[path, text]}</pre></div>'
        name = sources.split()[0].partition(":")[2]
        name = path if name in ("__doc__", "usage") else name
        return (
            f'<figure class="excerpt" data-name="{escape(name)}"><figcaption>{caption}</figcaption>'
            f"{shown}{''.join(templates)}</figure>"
        )


def excerpt(path: str, text: str, name: str) -> str:
    """Return a part of a file, as it is there: a function, class or method, __doc__, or usage of a script; else ""."""
    lines = text.splitlines(keepends=True)
    if not path.endswith(".py"):
        return usage(lines) if name == "usage" else ""
    node: Any = ast.parse(text)
    for part in name.split("."):
        found = (each for each in node.body if part in (getattr(each, "name", None), name_of_text(each)))
        if (node := next(found, None)) is None:
            return ""
    decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
    return "".join(lines[min([node.lineno, *decorators]) - 1 : node.end_lineno])


def name_of_text(node: ast.stmt) -> str | None:
    """Return __doc__ for a text that is a statement of its own."""
    return "__doc__" if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None


def usage(lines: list[str]) -> str:
    """Return the first sentence at the top of a script, and the commands below it."""
    rest = itertools.takewhile(lambda line: line.strip() == "#" or line.startswith("#  "), lines[2:])
    return "".join([lines[1], *rest]).removesuffix("#\n")


def code(path: str, text: str) -> str:
    """Return the text highlighted, with line breaks and spaces as they are."""
    lexer = PythonLexer if path.endswith(".py") else BashLexer
    html: str = highlight(text, lexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True))
    return html
