"""The judge of edits: what counts as still in its place."""

from pathlib import Path

import pytest

from generator.update.edits import ChangedFile, choose_edits, judge

CODE = """import math

LIMIT = 3


def area(radius):
    if radius < 0:
        return 0
    elif radius > LIMIT:
        radius = LIMIT
    else:
        for _ in range(2):
            radius += 1
    return math.pi * radius**2


class Shape:
    sides = 0
"""
DEEP, RETURN = " " * 12, "        return 0.0\n"
# The function with another name, and with that of something else.
RENAMED = CODE.replace("area", "disc").replace("return 0", "return 0.0").replace("< 0", "< 0.0")
TAKEN = RENAMED.replace("disc", "Shape")
JUDGED = [
    (8, 8, CODE, "{edited}", ""),
    (8, 8, CODE, CODE, "it is gone"),
    (8, 8, CODE, CODE.replace(f"{DEEP}radius", f"{DEEP}{{name}} = 0\n{DEEP}radius"), "it has moved"),
    (3, 0, CODE, CODE.replace("import", 'TEXT = """\n{name} = 0\n"""\nimport', 1), "it is no statement any more"),
    (3, 0, CODE, CODE.replace("    sides = 0", "    {name} = 0\n    sides = 0"), "it has moved to Shape"),
    (8, 8, CODE, CODE.replace("return 0\n", "return 0\n        {name} = 0 0\n"), "the file is no Python any more"),
    (8, 8, CODE, "<<<<<<< before updating\n{name} = 0\n=======\n>>>>>>> after updating\n", ""),
    (8, 8, RENAMED, RENAMED.replace(RETURN, f"        {{name}} = 0\n{RETURN}"), ""),
    (8, 8, TAKEN, TAKEN.replace(RETURN, f"        {{name}} = 0\n{RETURN}"), "it has moved to Shape.if"),
]


@pytest.mark.parametrize(("line", "indent", "new", "result", "wrong"), JUDGED)
def test_an_edit_is_judged_by_what_is_around_it(
    line: int, indent: int, new: str, result: str, wrong: str, tmp_path: Path
) -> None:
    edits = choose_edits([ChangedFile("a.py", CODE, new)])
    edit = next(edit for edit in edits if (edit.place.line + 1, len(edit.place.indent)) == (line, indent))
    file = tmp_path / edit.path
    file.parent.mkdir()
    file.write_text(result.replace("{edited}", edit.edited).replace("{name}", edit.name))
    said = judge(edit, tmp_path)
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)
