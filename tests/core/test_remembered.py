"""What is remembered of a template: which edits leave it, and what Copier was seen to read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE
from generator.render.cache import Cache, Remembered
from generator.render.scratch import forget_killed
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers, legal_combinations

CSV = "partials/tracking/csv.py.jinja"
CONSOLE = "partials/tracking/console.py.jinja"


def append(path: Path, text: str = "# more\n") -> None:
    """Make a file longer, or make it."""
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


def test_an_edit_of_a_logger_does_not_ask_again_what_is_legal(
    legal: list[Combination], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, cache = take_snapshot(tmp_path / "template"), Cache(tmp_path / "cache")
    with Workers() as workers:
        assert legal_combinations(template, workers, cache) == legal
        append(template / CSV)
        monkeypatch.setattr("generator.render.workers.ask_about", lambda *_: pytest.fail("asked again"))
        assert legal_combinations(template, workers, cache) == legal
        monkeypatch.undo()
        shutil.copy(TEMPLATE / "partials/validators.jinja", template / "partials/validators.jinja")
        append(template / "partials/validators.jinja", "{# more #}\n")
        monkeypatch.setattr(
            "generator.render.workers.ask_about", lambda product, *_: ([True] * len(product), frozenset[str]())
        )
        assert len(legal_combinations(template, workers, cache)) > len(legal), "asked again"


def test_what_killed_checks_left_is_forgotten_after_a_day(tmp_path: Path) -> None:
    for name in ("ddp-template-check-old", "ddp-template-check-new", "other"):
        (tmp_path / name / "project").mkdir(parents=True)
    for name in ("ddp-template-check-old", "other"):
        os.utime(tmp_path / name, (0, 0))
    forget_killed(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ddp-template-check-new", "other"]
