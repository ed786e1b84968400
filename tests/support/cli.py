"""Runs the ddp-template command in this process, or in a new one if the process matters."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from generator.cli.main import app
from tests.support.processes import output_of

__all__ = ["COMMAND", "Result", "ddp_template"]

COMMAND = Path(sys.executable).with_name("ddp-template")


def ddp_template(
    *arguments: str | Path, code: int | None = 0, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Result:
    """Run the command in this process, which has imported Copier. Fails on another exit code (None: any)."""
    with chdir(cwd or Path.cwd()):
        done = CliRunner().invoke(app, [*map(str, arguments)], env=env)
    assert code in (None, done.exit_code), done.output
    return done


def environment(clone: Path) -> dict[str, str]:
    """Return variables with which the command is the clone's, and leaves its projects next to the clone."""
    temporary = clone.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "PYTHONPATH": str(clone), "TMPDIR": str(temporary), "COLUMNS": "100"}


def check(clone: Path, *arguments: str, code: int = 0) -> str:
    """Run the command of the clone, and return its output. Fails on another exit code."""
    return output_of([COMMAND, "check", *arguments], clone, environment(clone), code=code)


def check_report(report: Path, *arguments: str, code: int | None = 0, timeout: int = 600, **env: str) -> list[Any]:
    """Check this repository in a process of its own, and return what is reported of each combination."""
    command: list[str | Path] = [COMMAND, "check", *arguments, "--json", report]
    printed = output_of(command, Path.cwd(), {**os.environ, **env}, code=code, timeout=timeout)
    assert report.exists(), printed
    return [*json.loads(report.read_text())["combinations"]]


def members(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-ww", "-o", "stat=,pid=,args=", "-s", str(session)], capture_output=True, text=True)
    return [line for line in listed.stdout.splitlines() if not line.startswith("Z")]


def flowing(printed: str) -> str:
    """Return the output without the line breaks and spaces of tables."""
    return " ".join(printed.split())
