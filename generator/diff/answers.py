"""Compares the projects of two sets of answers."""

import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.diff.versions import template_errors
from generator.render.git import compare_folders
from generator.render.project import RenderError, name_source, render
from generator.render.snapshot import take_snapshot


def read_side(side: str) -> dict[str, str]:
    """Split KEY=VALUE pairs at spaces, with quotes as in a shell. Raises RenderError if they are no such pairs."""
    try:
        pairs = shlex.split(side)
    except ValueError as error:
        raise RenderError(f"{side} is not understood: {error}") from None
    return read_pairs(pairs, hint="; spaces need quotes, such as \"project_name='My project'\"", where=f" in {side}")


def read_pairs(pairs: Iterable[str], option: str = "", hint: str = "", where: str = "") -> dict[str, str]:
    """Split KEY=VALUE pairs. Raises RenderError, with these words in it, if one has no "=" or a key comes twice."""
    answers: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RenderError(f"{option}{pair} is no KEY=VALUE, such as launcher=slurm{hint}")
        if key in answers:
            raise RenderError(f"{option}{key} is given twice{where}")
        answers[key] = value
    return answers


def compare_answers(old: Mapping[str, str], new: Mapping[str, str], template: Path = TEMPLATE) -> str:
    """Render the defaults with the old and with the new answers, and return what `git diff` says of the two projects.

    `git apply` turns a project of the old answers into one of the new ones by it. Raises RenderError if answers
    are unknown or illegal.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        snapshot = take_snapshot(folder / "template", template)
        for name, answers in (("old", old), ("new", new)):
            with template_errors(snapshot):
                render(folder / name, answers, template=snapshot)
            name_source(folder / name, ".")  # equal answers give equal files
        return without_source(compare_folders(folder / "old", folder / "new", "--find-renames"))


def without_source(diff: str) -> str:
    """Leave out the lines around an edit of the answers that say where the template is: each project has its own."""

    def shorten(hunk: re.Match[str]) -> str:
        begin, length, new_begin, new_length = map(int, hunk.groups()[:4])
        left_out = hunk[5].count("\n")
        old, new = f"{begin + left_out},{length - left_out}", f"{new_begin + left_out},{new_length - left_out}"
        return f"@@ -{old} +{new} @@\n"

    first = r"(?<=\n\+\+\+ b/\.copier-answers\.yml\n)@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n((?: [_# ].*\n)+)"
    return re.sub(first, shorten, diff)
