"""The judge of edits: what counts as still in its place."""

from pathlib import Path

import pytest

from generator.update.edits import ChangedFile, Edit, choose_edits, judge

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


def edit_at(line: int, indent: int, new: str = CODE) -> Edit:
    edits = choose_edits([ChangedFile("a.py", CODE, new)])
    return next(edit for edit in edits if (edit.place.line + 1, len(edit.place.indent)) == (line, indent))


@pytest.mark.parametrize(
    ("line", "indent", "result", "wrong"),
    [
        (8, 8, "{edited}", ""),
        (8, 8, CODE, "it is gone"),
        (8, 8, CODE.replace(" " * 12 + "radius", " " * 12 + "{name} = 0\n" + " " * 12 + "radius"), "it has moved"),
        (3, 0, CODE.replace("import", 'TEXT = """\n{name} = 0\n"""\nimport', 1), "it is no statement any more"),
        (3, 0, CODE.replace("    sides = 0", "    {name} = 0\n    sides = 0"), "it has moved to Shape"),
        (8, 8, CODE.replace("return 0\n", "return 0\n        {name} = 0 0\n"), "the file is no Python any more"),
        (8, 8, "<<<<<<< before updating\n{name} = 0\n=======\n>>>>>>> after updating\n", ""),
    ],
)
def test_an_edit_is_judged_by_what_is_around_it(
    line: int, indent: int, result: str, wrong: str, tmp_path: Path
) -> None:
    edit = edit_at(line, indent)
    file = tmp_path / edit.path
    file.parent.mkdir()
    file.write_text(result.replace("{edited}", edit.edited).replace("{name}", edit.name))
    said = judge(edit, tmp_path)
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)


@pytest.mark.parametrize(
    ("new", "wrong"),
    [
        (CODE.replace("area", "disc").replace("return 0", "return 0.0").replace("< 0", "< 0.0"), ""),
        (
            CODE.replace("area", "Shape").replace("return 0", "return 0.0").replace("< 0", "< 0.0"),
            "it has moved to Shape.if",
        ),
    ],
    ids=["another name", "the name of something else"],
)
def test_an_edit_may_go_along_into_what_has_another_name(new: str, wrong: str, tmp_path: Path) -> None:
    edit = edit_at(8, 8, new)
    file = tmp_path / edit.path
    file.parent.mkdir()
    file.write_text(new.replace("        return 0.0\n", f"        {edit.name} = 0\n        return 0.0\n"))
    assert judge(edit, tmp_path) == wrong
