"""What is remembered of a template: which edits leave it, and what Copier was seen to read."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.render.cache import Cache, Remembered
from generator.render.scratch import forget_killed
from generator.render.snapshot import take_snapshot

CSV = "partials/tracking/csv.py.jinja"
CONSOLE = "partials/tracking/console.py.jinja"


def append(path: Path, text: str = "# more\n") -> None:
    with open(path, "a") as file:
        file.write(text)


EDITS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "nothing": (lambda place: None, True),
    "a partial that was not read": (lambda place: append(place / CONSOLE), True),
    "a partial that was read": (lambda place: append(place / CSV), False),
    "a new partial": (lambda place: append(place / "partials/tracking/new.py.jinja"), False),
    "a partial that goes": (lambda place: (place / CONSOLE).unlink(), False),
    "the questions": (lambda place: append(place / "copier.yml"), False),
    "a file of the project": (lambda place: append(place / "template/train.py.jinja"), False),
    "the mode of a file of the project": (lambda place: (place / "template/train.py.jinja").chmod(0o755), False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_fact_is_forgotten_when_anything_changes_that_it_may_depend_on(edit: str, tmp_path: Path) -> None:
    template = take_snapshot(tmp_path / "template")
    cache = Cache(tmp_path / "cache")
    Remembered(cache, "facts", template, ["copier.yml", "template"]).write("one", 42, [CSV])
    change, stays = EDITS[edit]
    change(template)
    remembered = Remembered(cache, "facts", template, ["copier.yml", "template"])
    assert remembered.read("one") == (42 if stays else None)
    assert remembered.read("another") is None


def test_what_killed_checks_left_is_forgotten_after_a_day(tmp_path: Path) -> None:
    for name in ("ddp-template-check-old", "ddp-template-check-new", "other"):
        (tmp_path / name / "project").mkdir(parents=True)
    for name in ("ddp-template-check-old", "other"):
        os.utime(tmp_path / name, (0, 0))
    forget_killed(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ddp-template-check-new", "other"]
