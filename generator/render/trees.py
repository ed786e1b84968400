"""Reads projects as trees of files; in those that are compared, it does not matter where the template was found."""

import hashlib
from pathlib import Path

from generator.render.project import ANSWERS_FILE

Tree = dict[str, tuple[bool, bytes]]  # by path: whether the owner may execute it, and its content


def read_files(project: Path) -> Tree:
    """Return all files of a project, by path, but for its repository."""
    found = {}
    for file in sorted(project.rglob("*")):
        path = file.relative_to(project)
        if path.parts[0] != ".git" and file.is_file():
            found[str(path)] = (bool(file.stat().st_mode & 0o100), file.read_bytes())
    return found


def read_tree(project: Path) -> Tree:
    """Return all files of a project; the answers have no line that says where the template is."""
    files = read_files(project)
    if ANSWERS_FILE in files:
        executable, content = files[ANSWERS_FILE]
        own = b"".join(line for line in content.splitlines(True) if not line.startswith(b"_"))
        files[ANSWERS_FILE] = (executable, own)
    return files


def tree_digest(project: Path) -> str:
    """A hash of the paths, modes and contents of all files."""
    whole = hashlib.sha256()
    for path, (executable, content) in read_tree(project).items():
        whole.update(repr((path, executable, hashlib.sha256(content).hexdigest())).encode())
    return whole.hexdigest()
