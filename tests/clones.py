"""Copies of this repository whose template a test may change, and the check that they make of themselves."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.snapshot import PARTS
from tests.launching import output_of

COMMAND = Path(sys.executable).with_name("ddp-template")
MYPY = Path(".cache") / "mypy"


@contextmanager
def clone_of_the_template() -> Iterator[Path]:
    """Copy this repository. The copy remembers of earlier checks only what mypy has parsed, which is mostly torch."""
    with tempfile.TemporaryDirectory(prefix="clone-") as folder:  # the path of a socket in it is to be short
        place = Path(folder) / "clone"
        place.mkdir()
        for part in (*PARTS, "generator"):
            copy = shutil.copytree if (TEMPLATE / part).is_dir() else shutil.copy2
            copy(TEMPLATE / part, place / part)
        if (TEMPLATE / MYPY).exists():
            shutil.copytree(TEMPLATE / MYPY, place / MYPY, copy_function=copy_if_there)
        yield place


def copy_if_there(source: str, destination: str) -> None:
    """Copy a file, unless another check has renamed it meanwhile."""
    if os.path.exists(source):
        shutil.copy2(source, destination)


def environment(clone: Path) -> dict[str, str]:
    """In which the command is the one of the clone, and leaves its projects beside it."""
    temporary = clone.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(temporary), "COLUMNS": "100"}


def check(clone: Path, *arguments: str, code: int = 0) -> str:
    """Run the command of the clone, and return all that it printed. Fails where it ends with another exit code."""
    return output_of([COMMAND, "check", *arguments], clone, environment(clone), code=code)


def left_behind(clone: Path) -> list[Path]:
    """The temporary folders of the check that are still there."""
    return sorted((clone.parent / "temporary").glob("ddp-template-check-*"))


def flowing(printed: str) -> str:
    """What was printed, without the line breaks and spaces of tables."""
    return " ".join(printed.split())


def append(file: Path, text: str) -> None:
    """Add to a file of the clone."""
    with file.open("a") as opened:
        opened.write(text)
