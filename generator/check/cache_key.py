"""What decides a verdict beside the rendered project: the code of the checks, Python, and what is installed."""

import functools
import hashlib
import importlib.util
import platform
from importlib import metadata
from pathlib import Path

from generator.check.static import SourceFile
from generator.render.project import RenderError

DECISIVE = ("copier", "torch", "black", "ruff", "mypy")  # packages that the report names
DECIDING = ("answers/*.py", "render/*.py", "check/*.py", "check/train/*.py")  # files of this package
version = functools.cache(metadata.version)


def versions() -> dict[str, str]:
    """The versions that decide what is found out. Raises RenderError if one of the tools is missing."""
    missing = [name for name in DECISIVE if importlib.util.find_spec(name) is None]
    if missing:
        raise RenderError(f"{', '.join(missing)} not installed: a check needs pip install --editable '.[test]'")
    return {"python": platform.python_version()} | {name: version(name) for name in DECISIVE}


def verdict_key(tree: str) -> str:
    """Return what the verdict on a rendered tree depends on, given the hash of the tree."""
    return hashlib.sha256(f"{tree} {runner_digest()}".encode()).hexdigest()


def file_key(stage: str, file: SourceFile) -> str:
    """Return what the verdict of a tool on a file depends on."""
    tools = " ".join(f"{tool} {version(tool)}" for tool in ("black", "ruff", "mypy"))
    return hashlib.sha256(f"{stage} {file.key} {tools}".encode()).hexdigest()


@functools.cache
def runner_digest() -> str:
    """A hash of all that decides a verdict beside the rendered tree: the checks, Python, and what is installed."""
    package = Path(__file__).parent.parent
    files = sorted(file for pattern in DECIDING for file in package.glob(pattern))
    installed = sorted({f"{each.name}=={each.version}" for each in metadata.distributions()})
    words = [platform.python_version().encode(), *(file.read_bytes() for file in files), "\n".join(installed).encode()]
    return hashlib.sha256(b"".join(words)).hexdigest()
