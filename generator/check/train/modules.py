"""The modules of programs: which ones of others they import, and their own as bytecode, each compiled once."""

import ast
import py_compile
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from generator.check.static import SourceFile, distinct


def imports_of(projects: Iterable[Sequence[SourceFile]]) -> list[str]:
    """The modules of others that the programs import anywhere, tests aside: what a rank should find imported."""
    every = [file for files in projects for file in files if file.path.parts[0] != "tests"]
    own = {file.path.parts[0].removesuffix(".py") for file in every}
    modules: set[str] = set()
    for file in distinct(every):
        try:
            tree = ast.parse((file.project / file.path).read_text())
        except SyntaxError:
            continue  # which all stages tell
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    return sorted(module for module in modules if module.partition(".")[0] not in own)


def precompile(projects: Iterable[Sequence[SourceFile]]) -> None:
    """Put bytecode where Python looks for it and would write it itself, after compiling each distinct module once.

    Whoever loads bytecode puts the path of the module in. What does not compile is left to fail when it is run.
    """
    compiled: dict[str, Path] = {}
    for file in (file for files in projects for file in files if file.path.parts[0] != "tests"):
        source = file.project / file.path
        target = Path(cache_from_source(str(source)))
        if file.content in compiled:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(compiled[file.content], target)
        else:
            with suppress(py_compile.PyCompileError):
                # By its hash: the time at which a file was written says little of one that was copied.
                by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
                py_compile.compile(str(source), str(target), doraise=True, invalidation_mode=by_hash)
                compiled[file.content] = target
