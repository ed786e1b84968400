"""Renders the template from answers as Copier does, by the same engine: Copier itself does not import in a browser.

Of Copier it does what this template uses; a test compares the bytes of all combinations.
"""

import functools
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pathspec
import yaml
from jinja2.sandbox import SandboxedEnvironment

SUFFIX = ".jinja"
ANSWERS_FILE = ".copier-answers.yml"
TRUE = {"y", "yes", "t", "true", "on"}
FALSE = {"n", "no", "f", "false", "off", "", "~", "null", "none"}

Files = dict[str, tuple[bool, bytes]]  # by path: whether the owner may execute it, and its content


@dataclass(frozen=True)
class Choice:
    """An answer that a question offers, and why it is impossible beside the answers so far, if it is."""

    value: Any
    label: str
    reason: str


@dataclass(frozen=True)
class Asked:
    """A question that a user is asked, as it stands after the answers before it."""

    key: str
    help: str
    kind: str  # the type that copier.yml gives it
    default: Any
    value: Any
    choices: list[Choice]
    problem: str  # why the value cannot be, or ""


@dataclass
class Form:
    """All questions with their answers, and the computed values."""

    asked: list[Asked] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def problems(self) -> dict[str, str]:
        """Why answers cannot be, by question; nothing can be rendered from them."""
        return {question.key: question.problem for question in self.asked if question.problem}


class Template:
    """A template in a folder, which does not change meanwhile."""

    def __init__(self, folder: Path, source: str, commit: str | None = None, destination: str = "myproj") -> None:
        entries: dict[str, Any] = yaml.safe_load((folder / "copier.yml").read_text("utf-8"))
        self.settings = {key: value for key, value in entries.items() if key.startswith("_")}
        self.questions = {key: value for key, value in entries.items() if not key.startswith("_")}
        self.recorded = {"_commit": commit, "_src_path": source} if commit else {"_src_path": source}
        self.root = folder / self.settings["_subdirectory"]
        self.files = sorted(path for path in self.root.rglob("*") if path.is_file())
        self.conf = {"src_path": folder, "dst_path": Path(destination), "answers_file": Path(ANSWERS_FILE)}
        options = dict(self.settings["_envops"])
        options["undefined"] = getattr(jinja2, options["undefined"].removeprefix("jinja2."))
        self.environment = SandboxedEnvironment(
            loader=jinja2.FileSystemLoader(folder),
            extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"],
            cache_size=-1,
            **options,
        )
        self.compiled = functools.cache(self.environment.from_string)

    def ask(self, answers: Mapping[str, Any]) -> Form:
        """Answer all questions in their order: by these answers, else by the defaults."""
        form = Form()
        for key, entry in self.questions.items():
            context = self.context({**answers, **form.values})
            if entry.get("when", True) is False:
                form.values[key] = self.text(entry["default"], context)
                continue
            asked = self.ask_one(key, entry, answers, context)
            form.asked.append(asked)
            form.values[key] = asked.value
        return form

    def ask_one(self, key: str, entry: dict[str, Any], answers: Mapping[str, Any], context: dict[str, Any]) -> Asked:
        """Return a question with its answer, and what speaks against that."""
        kind = entry["type"]
        choices = [
            Choice(choice["value"], self.text(label, context), self.text(choice.get("validator", ""), context))
            for label, choice in entry.get("choices", {}).items()
        ]
        default = cast(kind, self.text(entry["default"], context))
        value = cast(kind, answers.get(key, default))
        problem = ""
        if choices:
            offered = {choice.value: choice.reason for choice in choices}
            problem = offered.get(value, f"{value!r} is not in {list(offered)}")
        elif not isinstance(value, bool) and kind == "bool":
            problem = f"{value!r} is neither true nor false"
        if not problem:
            try:
                problem = self.text(entry.get("validator", ""), {**context, key: value}).strip()
            except jinja2.TemplateError as error:
                problem = str(error)
        return Asked(key, self.text(entry["help"], context), kind, default, value, choices, problem)

    def render(self, form: Form) -> Files:
        """Return the files of the project, by path."""
        context = self.context(form.values)
        excluded = pathspec.PathSpec.from_lines("gitignore", self.excluded(context))
        files: Files = {}
        for file in self.files:
            relative = file.relative_to(self.root)
            if file.with_name(file.name + SUFFIX).exists():
                continue
            parts = relative.with_suffix("").parts if file.suffix == SUFFIX else relative.parts
            path = [self.text(part, context) for part in parts]
            if all(path) and not excluded.match_file("/".join(path)):
                executable = bool(file.stat().st_mode & 0o100)
                files["/".join(path)] = executable, self.content(file, context)
        return dict(sorted(files.items()))

    def content(self, file: Path, context: dict[str, Any]) -> bytes:
        """Return what a file of the template becomes."""
        if file.suffix != SUFFIX:
            return file.read_bytes()
        name = file.relative_to(self.root.parent).as_posix()
        return self.environment.get_template(name).render(context).encode()

    def excluded(self, context: dict[str, Any]) -> Iterable[str]:
        """Yield the patterns of files that a copy does not write."""
        for pattern in self.settings.get("_exclude", []):
            rendered = self.text(pattern, {**context, "_copier_operation": "copy"})
            yield from unicodedata.normalize("NFD", rendered).splitlines()

    def context(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names that the template's Jinja may read."""
        computed = [key for key, entry in self.questions.items() if entry.get("when", True) is False]
        known = {key: values[key] for key in self.questions if key in values and key not in computed}
        # A copy finds no project before it.
        external: dict[str, dict[str, Any]] = {name: {} for name in self.settings.get("_external_data", {})}
        return {
            **values,
            "_external_data": external,
            "_copier_answers": {**self.recorded, **known},
            "_copier_conf": self.conf,
        }

    def text(self, source: Any, context: dict[str, Any]) -> Any:
        """Render a text of Jinja; anything else stays as it is."""
        return self.compiled(source).render(context) if isinstance(source, str) else source


def cast(kind: str, value: Any) -> Any:
    """Return an answer as the type of its question; as it is where that is impossible."""
    if kind == "str":
        return str(value)
    if kind == "bool" and isinstance(value, str):
        word = value.strip().lower()
        return True if word in TRUE else False if word in FALSE else value
    if kind in ("int", "float"):
        with suppress(ValueError):
            return int(value) if kind == "int" else float(value)
    return value
