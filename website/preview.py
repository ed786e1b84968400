"""What the page of the preview asks Python, in a browser and for its first view: texts in and out, JSON and bytes."""

import difflib
import io
import json
import shlex
import zipfile
from typing import Any

from website.render import Asked, Files, Form, Template

FIRST_DAY = (1980, 1, 1, 0, 0, 0)  # of zip: the same project makes the same bytes


class Preview:
    """A project that changes with its answers."""

    def __init__(self, template: Template) -> None:
        self.template = template

    def show(self, answers: str) -> str:
        """Return the form, the command and the files of these answers; no files if an answer cannot be."""
        given: dict[str, Any] = json.loads(answers)
        form = self.template.ask(given)
        files = None if form.problems else self.template.render(form)
        shown = {
            "questions": [describe(asked) for asked in form.asked],
            "unknown": [key for key in given if key not in {asked.key for asked in form.asked}],
            "command": self.command(form),
            "files": None if files is None else [describe_file(*file) for file in files.items()],
        }
        return json.dumps(shown)

    def command(self, form: Form) -> str:
        """Return the command that writes this project."""
        given = [f"{asked.key}={word(asked.value)}" for asked in form.asked if asked.value != asked.default]
        data = [part for answer in given for part in ("--data", answer)]
        source = self.template.recorded["_src_path"]
        return shlex.join(["copier", "copy", "--defaults", *data, source, str(self.template.conf["dst_path"])])

    def archive(self, answers: str) -> bytes:
        """Return a zip of the project's folder. Raises ValueError if an answer cannot be."""
        form = self.template.ask(json.loads(answers))
        if form.problems:
            raise ValueError("; ".join(f"{key}: {problem}" for key, problem in form.problems.items()))
        return pack(str(self.template.conf["dst_path"]), self.template.render(form))


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


def compare(before: str, after: str) -> str:
    """Return which lines differ: [tag, from, to, from, to] for each block, of the one text and of the other."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return json.dumps(matcher.get_opcodes())
