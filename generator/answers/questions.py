"""What copier.yml says: the questions, which answers decide together what is legal, and whose each file is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from jinja2 import nodes
from pathspec import GitIgnoreSpec

TEMPLATE = Path(__file__).parent.parent.parent
ALL_ANSWERS = "_copier_answers"  # a variable of Copier
# Files that the template and the owner edit, by the table of UPDATING.md.
SHARED = GitIgnoreSpec.from_lines(["/train.py", "/evaluate.py", "/sweep.py", "/*/config.py", "/pyproject.toml"])


@dataclass(frozen=True)
class Choice:
    value: Any
    label: str  # what Copier shows for it
    conditional: bool  # whether a validator may refuse it, depending on other answers


@dataclass(frozen=True)
class Question:
    key: str
    help: str
    default: Any
    choices: tuple[Choice, ...]  # empty for free text; false and true for a bool


def read_questions(template: Path = TEMPLATE) -> list[Question]:
    """Read the questions that a user is asked, in their order; computed values (when: false) are none."""
    return questions_in((template / "copier.yml").read_text())


def questions_in(copier_yml: str) -> list[Question]:
    questions = []
    for key, entry in yaml.safe_load(copier_yml).items():
        if key.startswith("_") or entry.get("when", True) is False:
            continue
        choices = entry.get("choices", {}).items()
        read = [Choice(choice["value"], label, "validator" in choice) for label, choice in choices]
        if entry["type"] == "bool":
            read = [Choice(False, "no", False), Choice(True, "yes", False)]
        questions.append(Question(key, entry["help"], entry.get("default"), tuple(read)))
    return questions


def groups_of_answers(template: Path = TEMPLATE) -> list[frozenset[str]]:
    """Divide the questions with choices so that no text of copier.yml reads, or may read, answers of two groups."""
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
    """Return the names that Jinja texts read. ALL_ANSWERS is among them if a partial may read any answer."""
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


@dataclass(frozen=True)
class Ownership:
    """The files of a project that an update does not treat as the template's."""

    yours: GitIgnoreSpec  # written by a copy alone
    dropped: GitIgnoreSpec  # that only earlier versions wrote
    new: GitIgnoreSpec  # of yours, what earlier versions did not write: their update does, once

    def kept(self, path: str) -> bool:
        return self.yours.match_file(path) or self.dropped.match_file(path)


def read_ownership(template: Path = TEMPLATE, **answers: Any) -> Ownership:
    """Read it from the settings of a version of the template, for projects with these answers, else defaults."""
    settings = yaml.safe_load((template / "copier.yml").read_text())
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(template))
    # Ansible's, of which Copier has the real ones.
    environment.filters |= {"regex_replace": lambda text, *change: text, "fileglob": lambda path: path != "/"}
    defaults = {question.key: question.default for question in read_questions(template)}
    names = defaults | {"package_name": "ddp_project"} | answers

    def patterns(key: str, operation: str, before: Mapping[str, Any]) -> list[str]:
        # A path that is not empty stands for a file of answers that is there.
        project = {"dst_path": "", "answers_file": "answers" if before else ""}
        about = {"_copier_operation": operation, "_external_data": {"before": before}, "_copier_conf": project}
        return [environment.from_string(pattern).render(names | about) for pattern in settings.get(key, [])]

    on_copy = patterns("_exclude", "copy", {})
    yours = [pattern for pattern in patterns("_exclude", "update", names) if pattern not in on_copy]
    skipped = patterns("_skip_if_exists", "update", names)
    from_older = patterns("_exclude", "update", {})
    specs = [*yours, *skipped], on_copy, [pattern for pattern in yours if pattern not in from_older]
    return Ownership(*map(GitIgnoreSpec.from_lines, specs))
