"""Owners' edits, one at every place of every file, survive a version that changes each of these files elsewhere."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from generator.answers.combinations import Combination, covering
from generator.answers.questions import read_ownership
from generator.render.project import ANSWERS_FILE, read_files
from generator.render.workers import Workers
from generator.update.edits import ChangedFile, carry_edits, choose_edits, find_places
from generator.update.replay import is_text
from tests.conftest import Render

GROUPS = 8


@pytest.fixture(scope="module")
def files(legal: Sequence[Combination], project: Render) -> dict[str, list[str]]:
    """The distinct texts of each file of the template's, over a set in which every answer occurs."""
    owned = read_ownership()
    texts: dict[str, list[str]] = {}
    for combination in covering(legal, 1):
        for path, (_, content) in read_files(project(**dict(combination.answers))).items():
            if is_text(content) and not owned.kept(path) and path != ANSWERS_FILE:
                texts.setdefault(path, [])
                if content.decode() not in texts[path]:
                    texts[path].append(content.decode())
    return texts


def changed_elsewhere(path: str, text: str) -> str:
    """Change a file as a new version may: lines come at one place in eight, and one line in twenty goes."""
    draw = random.Random(path)
    lines = text.splitlines(keepends=True)
    places = {place.line: place.indent for place in find_places(path, text)}
    changed = []
    for number, line in enumerate([*lines, ""]):
        if number in places and draw.random() < 1 / 8:
            words = f"new_in_the_template = {number}\n"
            changed.append(f"{places[number]}{words}" if path.endswith((".py", ".md")) else f"# {words}")
        if draw.random() >= 1 / 20 or not line.isspace():
            changed.append(line)
    return "".join(changed)


def test_an_edit_at_any_place_stays_there_or_is_a_visible_conflict(
    files: dict[str, list[str]], workers: Workers, tmp_path: Path
) -> None:
    assert {"train.py", "README.md", "pyproject.toml", "launch.sh", "ddp_project/runtime/checkpoint.py"} <= files.keys()
    # The longest text of each file: other answers change a few lines of it.
    each = [(path, max(texts, key=len)) for path, texts in files.items()]
    edits = choose_edits(ChangedFile(path, text, changed_elsewhere(path, text)) for path, text in each)
    assert {edit.file.path for edit in edits} == files.keys()
    assert len(edits) > 1000
    jobs = [workers.submit(carry_edits, edits[i::GROUPS], tmp_path / str(i)) for i in range(GROUPS)]
    wrong = [words for job in jobs for words in job.result()]
    assert not wrong, "\n".join(wrong)
