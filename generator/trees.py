"""Reads projects as trees of files, in which it does not matter where the template was found."""

import hashlib
from pathlib import Path

from .rendering import ANSWERS_FILE


def read_tree(project: Path) -> dict[str, tuple[bool, bytes]]:
    """Give all files of a project, by path: whether the owner may execute it, and its content.

    The answers have no line that says where the template is.
    """
    files = {}
    for file in sorted(path for path in project.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.name == ANSWERS_FILE:
            content = b"".join(line for line in content.splitlines(True) if not line.startswith(b"_"))
        files[str(file.relative_to(project))] = (bool(file.stat().st_mode & 0o100), content)
    return files


def tree_digest(project: Path) -> str:
    """A hash of the paths, modes and contents of all files."""
    whole = hashlib.sha256()
    for path, (executable, content) in read_tree(project).items():
        whole.update(repr((path, executable, hashlib.sha256(content).hexdigest())).encode())
    return whole.hexdigest()
