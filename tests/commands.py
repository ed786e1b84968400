"""Runs the ddp-template command in this process: its own process would take a second to import Copier."""

import sys
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner, Result

from generator.cli.main import app

__all__ = ["COMMAND", "Result", "ddp_template"]

COMMAND = Path(sys.executable).with_name("ddp-template")  # for what needs a process of its own


def ddp_template(
    *arguments: str | Path, code: int = 0, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Result:
    """Run the command in a folder, with variables beside those of the tests. Fails if it ends with another code."""
    with chdir(cwd or Path.cwd()):
        done = CliRunner().invoke(app, [*map(str, arguments)], env=env)
    assert done.exit_code == code, done.output
    return done
