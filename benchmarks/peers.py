"""Virtual environments of pinned packages, each made once: all contenders run in that of peers.txt."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from generator.answers.questions import TEMPLATE

from .failures import CommandError

PINNED = TEMPLATE / "benchmarks" / "peers.txt"
SHOWN = ("torch", "lightning", "accelerate", "pytorch-ignite", "transformers")


def peers_python() -> Path:
    """Return the Python of the contenders. Raises CommandError if pip fails."""
    return python_with(PINNED)


def python_with(pinned: Path) -> Path:
    """Return the Python of an environment, which is made where it is not there. Raises CommandError if pip fails."""
    digest = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = TEMPLATE / ".cache" / pinned.stem / digest
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        venv.create(place, clear=True, with_pip=True)
        install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--requirement", pinned]
        done = subprocess.run(install, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            shutil.rmtree(place)
            reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["it says nothing"]
            raise CommandError(f"pip cannot install what {pinned} names (is PyPI in reach?): {reason[-1]}")
        (place / "complete").touch()
    return python


def pinned_versions() -> dict[str, str]:
    """The versions of those that are compared."""
    pinned = dict(line.split("==") for line in PINNED.read_text().splitlines() if "==" in line)
    return {name: pinned[name] for name in SHOWN}
