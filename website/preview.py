"""What the preview asks Python, in a browser and when the site is built: texts in and out, JSON and bytes."""

import io
import json
import shlex
import zipfile
from collections.abc import Mapping
from typing import Any

from website.render import Asked, Files, Form, Template

FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of zip: the same project makes the same bytes


class Preview:
    """A project that changes with its answers."""

    def __init__(self, template: Template) -> None:
        self.template = template

    def show(self, answers: str) -> str:
        """Return the form, the command and the files of these answers; no files if an answer cannot be."""
        return json.dumps(self.shown(json.loads(answers)))

    def shown(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the same as it is before it becomes a text."""
        form = self.template.ask(given)
        files = None if form.problems else self.template.render(form)
        return {
            "questions": [describe(asked) for asked in form.asked],
            "unknown": [key for key in given if key not in {asked.key for asked in form.asked}],
            "command": self.command(form),
            "folder": self.folder(form),
            "files": None if files is None else [describe_file(*file) for file in files.items()],
        }

    def steps(self) -> dict[str, dict[str, Any]]:
        """Return what each choice changes that is not a default, alone: the page knows it before Python is loaded."""
        first = self.shown({})
        found = {}
        for question in first["questions"]:
            for choice in question["choices"]:
                if choice["value"] != question["default"]:
                    shown = self.shown({question["key"]: choice["value"]})
                    found[f"{question['key']}={choice['value']}"] = difference(first, shown)
        return found

    def folder(self, form: Form) -> str:
        """Return the folder that gets the project: named as the package would be by default, if the title is given.

        Otherwise the title is the name of the folder.
        """
        asked = {each.key: each for each in form.asked}
        titled = asked["project_name"].value != asked["project_name"].default
        return str(asked["package_name"].default if titled else self.template.conf["dst_path"])

    def command(self, form: Form) -> str:
        """Return the command that writes this project."""
        given = [f"{asked.key}={word(asked.value)}" for asked in form.asked if asked.value != asked.default]
        data = [part for answer in given for part in ("--data", answer)]
        source = self.template.recorded["_src_path"]
        return shlex.join(["copier", "copy", "--defaults", *data, source, self.folder(form)])

    def archive(self, answers: str) -> bytes:
        """Return a zip of the project's folder. Raises ValueError if an answer cannot be."""
        form = self.template.ask(json.loads(answers))
        if form.problems:
            raise ValueError("; ".join(f"{key}: {problem}" for key, problem in form.problems.items()))
        return pack(self.folder(form), self.template.render(form))


def difference(first: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    """Return the questions and files that are not those of the first, and the paths that it alone has."""
    files = shown["files"] or first["files"]  # none differ where the answer cannot be
    paths = {file["path"] for file in files}
    return {
        "questions": [
            each for each, before in zip(shown["questions"], first["questions"], strict=True) if each != before
        ],
        "files": [file for file in files if file not in first["files"]],
        "gone": [file["path"] for file in first["files"] if file["path"] not in paths],
    }


def pack(folder: str, files: Files) -> bytes:
    """Return a zip with these files in a folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, (executable, content) in files.items():
            entry = zipfile.ZipInfo(f"{folder}/{path}", FIRST_DAY)
            entry.create_system = 3  # Unix: with the modes of files
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def describe(asked: Asked) -> dict[str, Any]:
    """Return what the form shows of a question."""
    choices = [{"value": word(each.value), "label": each.label, "reason": each.reason} for each in asked.choices]
    if asked.kind == "bool":
        choices = [
            {"value": value, "label": label, "reason": ""} for value, label in (("false", "no"), ("true", "yes"))
        ]
    return {
        "key": asked.key,
        "help": asked.help,
        "default": word(asked.default),
        "value": word(asked.value),
        "problem": asked.problem,
        "choices": choices,
    }


def describe_file(path: str, content: tuple[bool, bytes]) -> dict[str, Any]:
    """Return a file with its text; None for one that is no text."""
    executable, raw = content
    try:
        text = None if b"\0" in raw else raw.decode()
    except UnicodeDecodeError:
        text = None
    return {"path": path, "executable": executable, "size": len(raw), "text": text}


def word(value: Any) -> str:
    """Return an answer as it is given in a form or a command."""
    return str(value).lower() if isinstance(value, bool) else str(value)
