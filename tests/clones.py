"""Checks in a process of their own: of this repository, and of copies of it whose template a test may change."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from generator.answers.questions import TEMPLATE
from generator.render.snapshot import PARTS
from tests.commands import COMMAND
from tests.launching import output_of

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


def check_report(
    report: Path, *arguments: str, code: int | None = 0, timeout: float = 600, **variables: str
) -> list[dict[str, Any]]:
    """Check this repository in a process of its own, and return what is reported of each combination."""
    command: list[str | Path] = [COMMAND, "check", *arguments, "--json", report]
    printed = output_of(command, Path.cwd(), {**os.environ, **variables}, code=code, timeout=timeout)
    assert report.exists(), printed
    combinations: list[dict[str, Any]] = json.loads(report.read_text())["combinations"]
    return combinations


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


def append_to_last_block(file: Path, text: str) -> None:
    """Add to the last block of a partial of the clone: what is outside of its blocks is not rendered."""
    before, end, after = file.read_text().rpartition("{% endblock %}")
    file.write_text(before + text + end + after)
