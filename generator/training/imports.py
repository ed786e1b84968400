"""Finds what programs import, so that it can be imported before they run."""

import ast
import importlib.util
from collections.abc import Iterable, Sequence

from ..static import SourceFile, distinct


def imports_of(projects: Iterable[Sequence[SourceFile]]) -> list[str]:
    """The modules of others that the programs import anywhere, tests aside: what a rank should find imported."""
    modules: set[str] = set()
    for file in distinct(file for files in projects for file in files if file.path.parts[0] != "tests"):
        try:
            tree = ast.parse((file.project / file.path).read_text())
        except SyntaxError:
            continue  # which all stages tell
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    return sorted(module for module in modules if is_installed(module))


def is_installed(module: str) -> bool:
    """Whether a module is one of Python's or of an installed package, and not of the project itself."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
