"""What is remembered of a template: which edits leave it, and what Copier was seen to read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from generator.render.cache import Cache, Remembered
from generator.render.snapshot import take_snapshot
from tests.support.versions import append

CSV = "partials/tracking/csv.py.jinja"
CONSOLE = "partials/tracking/console.py.jinja"
EDITS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "nothing": (lambda place: None, True),
    "a partial that was not read": (lambda place: append(place / CONSOLE, "# more\n"), True),
    "a partial that was read": (lambda place: append(place / CSV, "# more\n"), False),
    "a new partial": (lambda place: append(place / "partials/tracking/new.py.jinja", "# more\n"), False),
    "a partial that goes": (lambda place: (place / CONSOLE).unlink(), False),
    "the questions": (lambda place: append(place / "copier.yml", "# more\n"), False),
    "a file of the project": (lambda place: append(place / "template/train.py.jinja", "# more\n"), False),
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
