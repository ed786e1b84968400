"""What decides a verdict beside the rendered project: the code of the checks, Python, and what is installed."""

import functools
import hashlib
import importlib.util
import platform
from importlib import metadata
from pathlib import Path

from generator.check.static import SourceFile, tool_versions
from generator.render.project import RenderError

DECISIVE = ("copier", "torch", "black", "ruff", "mypy")  # packages that the report names
DECIDING = ("answers/*.py", "render/*.py", "check/*.py", "check/train/*.py")  # files of this package


class NotInstalledError(RenderError):
    """Packages that a check needs are missing. The message is one line that says how to get them."""


def versions() -> dict[str, str]:
    """The versions that decide what is found out. Raises NotInstalledError if one of the tools is missing."""
    missing = [name for name in DECISIVE if importlib.util.find_spec(name) is None]
    if missing:
        raise NotInstalledError(f"{', '.join(missing)} not installed: a check needs pip install --editable '.[test]'")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in DECISIVE}


def verdict_key(tree: str) -> str:
    """Return what the verdict on a rendered tree depends on, given the hash of the tree."""
    return hashlib.sha256(f"{tree} {runner_digest()}".encode()).hexdigest()


def file_key(stage: str, file: SourceFile) -> str:
    """Return what the verdict of a tool on a file depends on."""
    return hashlib.sha256(f"{stage} {file.key} {tool_versions()}".encode()).hexdigest()


@functools.cache
def runner_digest() -> str:
    """A hash of all that decides a verdict beside the rendered tree: the checks, Python, and what is installed."""
    whole = hashlib.sha256(platform.python_version().encode())
    package = Path(__file__).parent.parent
    for file in sorted(file for pattern in DECIDING for file in package.glob(pattern)):
        whole.update(file.read_bytes())
    installed = {f"{each.name}=={each.version}" for each in metadata.distributions()}
    whole.update("\n".join(sorted(installed)).encode())
    return whole.hexdigest()
