"""Moves a project of version 1, which Copier has updated to version 2, to the new layout, and loses no edit.

Copier carries no edit from a file to one of another name: it leaves the old file where it is.
"""

import difflib
import shutil
import symtable
import tempfile
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from generator.render.git import GitError, conflicts, git, run
from generator.render.project import (
    ANSWERS_FILE,
    RenderError,
    Tree,
    own_answers,
    parse_answers,
    read_files,
    recorded_answers,
    run_copier,
)
from generator.update.rewrite import MODULES, Runtime, dangling, rewrite

# Files of version 1, by what they are called now; * is the package.
MOVED = {f"*/runtime/{old}.py": f"*/runtime/{new}.py" for old, new in MODULES.items()} | {
    "tests/test_meter.py": "tests/test_metrics.py"
}
EDITS = "edits-of-version-1"  # the folder of edits that fit nowhere


@dataclass
class Plan:
    """What becomes of a project: nothing is written before all of it is known."""

    written: dict[str, str] = field(default_factory=dict)  # paths and texts
    deleted: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # what was done, a line each
    left: list[str] = field(default_factory=list)  # what the owner must do, a line each

    def applied(self, tree: Tree) -> Tree:
        """Return what the project is made of after the move."""
        kept = {path: file for path, file in tree.items() if path not in self.deleted}
        return kept | {path: (False, text.encode()) for path, text in self.written.items()}


def move_project(project: Path) -> Plan:
    """Move a project, and say what was done. Raises RenderError, and changes nothing, if that is not possible."""
    plan = plan_for(project)
    for path, text in plan.written.items():
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_bytes(text.encode())
    for path in plan.deleted:
        (project / path).unlink()
    return plan


def plan_for(project: Path) -> Plan:
    file = project / ANSWERS_FILE
    answers = parse_answers(file.read_bytes() if file.is_file() else b"")
    package = str(answers.get("package_name", ""))
    if not package or not (project / package / "runtime" / "watchdog.py").is_file():
        raise RenderError(f"{project} is no project of version 2: copier update comes first")
    if marked := conflicts(read_files(project)):
        raise RenderError(f"{marked[0]} has a conflict: resolve it first")
    plan = Plan()
    moved = [(old, new) for old, new in moved_paths(project) if (project / old).is_file()]
    if moved:
        with tempfile.TemporaryDirectory() as folder:
            base = write_version_1(project, package, Path(folder) / "base")
            for old, new in moved:
                move(plan, project, base, old, new)
    rewrite_files(plan, project, package)
    return plan


def is_to_be_moved(project: Path) -> bool:
    """Return whether a project has modules of both versions."""
    moved = any([*project.glob(old)] for old in MOVED if "/runtime/" in old)
    return moved and bool([*project.glob("*/runtime/watchdog.py")])


def moved_paths(project: Path) -> list[tuple[str, str]]:
    """Return the files that version 1 had elsewhere: the old path, and the new one."""
    package = recorded_answers(project)["package_name"]
    return [(old.replace("*", package), new.replace("*", package)) for old, new in MOVED.items()]


def write_version_1(project: Path, package: str, place: Path) -> Path:
    """Write the project that the last version 1 had written for its answers, as git remembers them."""
    for commit in ["HEAD", *run(project, "log", "--format=%H", "--", ANSWERS_FILE).split()]:
        answers = parse_answers(git(project, "show", f"{commit}:./{ANSWERS_FILE}"))
        version, source = str(answers.get("_commit")), str(answers.get("_src_path"))
        run_copier(place, own_answers(answers), source, version=version)
        if not (place / package / "runtime" / "watchdog.py").exists():
            return place
        shutil.rmtree(place)
    raise RenderError(f"git has no commit of {ANSWERS_FILE} with version 1, so it is unknown what was edited")


def move(plan: Plan, project: Path, base: Path, old: str, new: str) -> None:
    """Delete a file of version 1. Carry its edits to the file that has taken its place, or else to a folder."""
    edited = text_of(project, old)
    before, now = text_of(base, old), text_of(project, new)
    plan.deleted.append(old)
    if edited == before:
        return
    merged = merge(edited, before, plan.written.get(new, now)) if before and now else None
    if merged is not None:
        plan.written[new] = merged
        plan.told.append(f"your edits of {old} are in {new} now")
    else:
        sides = before.splitlines(keepends=True), edited.splitlines(keepends=True)
        patch = "".join(difflib.unified_diff(*sides, fromfile="version 1", tofile=old))
        plan.written[f"{EDITS}/{Path(old).name}.diff"] = patch
        plan.left.append(f"your edits of {old} do not fit {new}: {EDITS}/{Path(old).name}.diff has them")


def text_of(project: Path, path: str) -> str:
    """Return the text of a file, which is empty if there is none. Raises RenderError if it is not UTF-8."""
    file = project / path
    try:
        return file.read_text(encoding="utf-8") if file.is_file() else ""
    except UnicodeDecodeError as error:
        raise RenderError(f"{path} is not text in UTF-8: save it as such, and commit it ({error})") from None


def merge(edited: str, base: str, new: str) -> str | None:
    """Return a new file with the edits of an old one; None if git finds no place for one of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("edited", edited), ("base", base), ("new", new)):
            (Path(folder) / name).write_text(text)
        try:
            return git(Path(folder), "merge-file", "--stdout", "new", "base", "edited").decode()
        except GitError:  # its exit code is the number of conflicts
            return None


def rewrite_files(plan: Plan, project: Path, package: str) -> None:
    """Rewrite all Python files, and say which names they still take that are gone."""
    listed = run(project, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.py").split("\0")
    there = {path for path in listed if path and (project / path).is_file()} - {*plan.deleted}
    runtime = read_runtime(project, package)
    for path in sorted(there | {path for path in plan.written if path.endswith(".py")}):
        try:
            text = plan.written.get(path) or (project / path).read_bytes().decode("utf-8-sig")
            new = rewrite(PurePath(path), text, runtime)
            plan.left += dangling(PurePath(path), new, runtime)
        except (SyntaxError, ValueError) as error:
            plan.left.append(f"{path} is no Python in UTF-8, and stays as it is: {error}")
            continue
        if new != text:
            plan.written[path] = new
            plan.told.append(f"{path} has the imports and signatures of version 2")


def read_runtime(project: Path, package: str) -> Runtime:
    """Read which names the modules of runtime/ define and import, and which its __init__.py offers."""
    modules: dict[str, Set[str]] = {}
    imported: dict[str, Set[str]] = {}
    for path in sorted((project / package / "runtime").glob("*.py")):
        if path.stem not in MODULES:
            text = text_of(project, str(path.relative_to(project)))
            try:
                names = symtable.symtable(text, path.name, "exec").get_symbols()
            except (SyntaxError, ValueError) as error:
                raise RenderError(f"{path} is no Python: {error}") from None
            modules[path.stem] = {each.get_name() for each in names if each.is_assigned() or each.is_namespace()}
            imported[path.stem] = {each.get_name() for each in names if each.is_imported()}
    door = modules.pop("__init__") and imported.pop("__init__")
    return Runtime(package, door, modules, imported)
