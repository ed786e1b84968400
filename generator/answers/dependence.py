"""Which answers decide together whether they are legal: those that one text of copier.yml reads."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import yaml
from jinja2 import nodes

from generator.answers.questions import TEMPLATE, read_questions

ALL_ANSWERS = "_copier_answers"  # a variable of Copier


def groups_of_answers(template: Path = TEMPLATE) -> list[frozenset[str]]:
    """Divide the questions with choices so that no text of copier.yml reads answers of two groups.

    They are one group if a text reads answers in a way that its syntax does not show, or cannot be parsed.
    """
    keys = [question.key for question in read_questions(template) if question.choices]
    groups = [frozenset([key]) for key in keys]
    for read in answers_read_together((template / "copier.yml").read_text()):
        related = frozenset(keys) if ALL_ANSWERS in read else read.intersection(keys)
        touched = [group for group in groups if group & related]
        groups = [group for group in groups if group not in touched]
        groups.append(related.union(*touched))
    return sorted((group for group in groups if group), key=lambda group: min(map(keys.index, group)))


def answers_read_together(copier_yml: str) -> Iterator[frozenset[str]]:
    """Yield what each question, with all that it reads, and each text of a setting read."""
    entries = yaml.safe_load(copier_yml)
    options = {key: value for key, value in entries.get("_envops", {}).items() if key != "undefined"}
    environment = jinja2.Environment(**options)  # it parses, and renders nothing
    read = {key: variables(environment, texts_in(entry)) | {key} for key, entry in entries.items() if key[0] != "_"}
    for key in read:
        yield reached([key], read)
    for key, entry in entries.items():
        if key[0] == "_" and key != "_envops" and not key.startswith("_message_"):  # a message refuses nothing
            yield from (reached(variables(environment, [text]), read) for text in texts_in(entry))


def texts_in(entry: Any) -> Iterator[str]:
    """Yield all texts of an entry of copier.yml, at any depth."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for key, value in entry.items():
            yield from texts_in(key)
            yield from texts_in(value)
    elif isinstance(entry, list):
        for each in entry:
            yield from texts_in(each)


def variables(environment: jinja2.Environment, texts: Iterable[str]) -> frozenset[str]:
    """Return the names that texts of Jinja read; that of all answers where a partial of theirs may read any."""
    found: set[str] = set()
    for text in texts:
        try:
            tree = environment.parse(text)
        except jinja2.TemplateSyntaxError:
            return frozenset([ALL_ANSWERS])
        found.update(name.name for name in tree.find_all(nodes.Name))
        # An include knows all answers, as an import "with context" does.
        if tree.find(nodes.Extends) or any(getattr(each, "with_context", False) for each in tree.find_all(nodes.Stmt)):
            found.add(ALL_ANSWERS)
    return frozenset(found)


def reached(names: Iterable[str], read: dict[str, frozenset[str]]) -> frozenset[str]:
    """Return these names and, where a name is a question or a computed value, all that it reads, and so on."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting.extend(read.get(name, ()))
    return frozenset(found)
