"""What is remembered of a template, and which edits leave it; what a program can import decides what it trains."""

from collections.abc import Callable
from pathlib import Path

import pytest

from generator.render.cache import Cache, Remembered
from generator.render.project import imported_by
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
# Of a project.
FILES = {
    "train.py": b"from package import model\nfrom package.runtime.loop import run\nimport torch\n",
    "launch.py": b"import package.runtime.jobs\n",
    "package/__init__.py": b"",
    "package/model.py": b"def build():\n    from .runtime import layers, Missing\n",
    "package/runtime/__init__.py": b"from .first import Missing\n",
    "package/runtime/first.py": b"",
    "package/runtime/loop.py": b"from ..runtime.loop import run\nfrom . import *\nimport package.broken as broken\n",
    "package/runtime/layers.py": b"",
    "package/runtime/jobs.py": b"",
    "package/broken.py": b"def import\n",
    "package/runtime/data.npz": b"",
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


def test_files_that_a_program_imports_are_found_wherever_it_does_so() -> None:
    others = {"launch.py", "package/runtime/jobs.py", "package/runtime/data.npz"}
    assert imported_by("train.py", FILES) == FILES.keys() - others
