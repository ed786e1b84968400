"""What decides a verdict beside the rendered project: the code of the checks, Python, and what is installed."""

import hashlib
import importlib.util
import platform
from importlib import metadata
from pathlib import Path

from .rendering import RenderError

DECISIVE = ("copier", "torch", "black", "ruff", "mypy")  # packages that the report names
# Modules of this package, beside training/, that decide a verdict.
DECIDING = ("checking.py", "conditions.py", "covers.py", "static.py", "workers.py", "rendering.py", "trees.py")


class NotInstalledError(RenderError):
    """Packages that a check needs are missing. The message is one line that says how to get them."""


def versions() -> dict[str, str]:
    """The versions that decide what is found out. Raises NotInstalledError where one of the tools is missing."""
    missing = [name for name in DECISIVE if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalledError(f"{', '.join(missing)} not installed: a check needs pip install --editable '.[test]'")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in DECISIVE}


def runner_digest() -> str:
    """A hash of all that decides a verdict beside the rendered tree: the checks, Python, and what is installed."""
    whole = hashlib.sha256(platform.python_version().encode())
    package = Path(__file__).parent
    for file in [*sorted(package.glob("training/*.py")), *(package / name for name in DECIDING)]:
        whole.update(file.read_bytes())
    installed = {f"{each.name}=={each.version}" for each in metadata.distributions()}
    whole.update("\n".join(sorted(installed)).encode())
    return whole.hexdigest()
