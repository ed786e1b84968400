"""Renders the template through Copier, always without trust, and reads projects as trees of files."""

import ast
import functools
import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import copier
import yaml
from copier.errors import CopierError

from generator.answers.questions import TEMPLATE, Ownership, read_questions

ANSWERS_FILE = ".copier-answers.yml"
NAME = {"project_name": "DDP project"}  # else the folder's name: the same answers make the same project anywhere

Tree = dict[str, tuple[bool, bytes]]  # by path: whether the owner may execute it, and its content


class RenderError(Exception):
    """The answers or the destination do not do. The message is one line that says why."""


def render(
    destination: Path,
    answers: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] = NAME,
    template: Path = TEMPLATE,
    quiet: bool = True,
) -> None:
    """Write a project from these answers, and the defaults for all others: these ones, and then the template's."""
    known = [question.key for question in read_questions(template)]
    for key in answers:
        if key not in known:
            raise RenderError(f"{key} is no question of the template: its questions are {', '.join(known)}")
    refuse_filled(destination)
    # Copier ignores what it does not understand: look at what it makes of the answers before it writes anything.
    recorded = run_copier(destination, answers, template, defaults=defaults, quiet=True, pretend=True)
    assert_understood(answers, recorded)
    run_copier(destination, answers, template, defaults=defaults, quiet=quiet, pretend=False)


def refuse_filled(destination: Path) -> None:
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise RenderError(f"{destination} holds something already: choose a new or empty folder")


def assert_understood(answers: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    for key, value in answers.items():
        if str(recorded[key]).lower() != str(value).lower():
            raise RenderError(f"{key}={value} is not understood (it would become {recorded[key]})")


def run_copier(
    destination: Path,
    answers: Mapping[str, Any],
    template: Path | str,
    *,
    defaults: Mapping[str, Any] = NAME,
    quiet: bool = True,
    pretend: bool = False,
    version: str = "HEAD",
) -> dict[str, Any]:
    """Let Copier write the project, or only find the answers, and return them. Raises RenderError if it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # to try out what is not committed yet is the point
            worker = copier.run_copy(
                str(template),
                destination,
                data={**defaults, **answers},
                defaults=True,
                quiet=quiet,
                pretend=pretend,
                unsafe=False,
                vcs_ref=version,
            )
    except (CopierError, ValueError, OSError) as error:
        raise RenderError(" ".join(str(error).split())) from error
    return dict(worker.answers.combined)


def recorded_answers(project: Path) -> dict[str, Any]:
    return own_answers(yaml.safe_load((project / ANSWERS_FILE).read_text()))


def own_answers(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers to questions, without what Copier notes about itself."""
    return {key: value for key, value in answers.items() if not key.startswith("_")}


def parse_answers(content: bytes) -> dict[str, Any]:
    """Return what a file of answers says; nothing if it is none."""
    try:
        answers = yaml.safe_load(content)
    except yaml.YAMLError:
        answers = None
    return answers if isinstance(answers, dict) else {}


def name_source(project: Path, source: str) -> None:
    """Say in a project's answers where its template is, instead of in a copy that will be gone."""
    answers = project / ANSWERS_FILE
    line = yaml.safe_dump({"_src_path": source}, allow_unicode=True, width=10**6)
    answers.write_text(re.sub(r"^_src_path:.*\n(?: .*\n)*", lambda _: line, answers.read_text(), flags=re.MULTILINE))


def read_files(project: Path) -> Tree:
    found = {}
    for file in sorted(project.rglob("*")):
        path = file.relative_to(project)
        if path.parts[0] != ".git" and file.is_file():
            found[str(path)] = (bool(file.stat().st_mode & 0o100), file.read_bytes())
    return found


def read_tree(project: Path) -> Tree:
    """Return all files of a project; the answers have no line that says where the template was found."""
    files = read_files(project)
    if ANSWERS_FILE in files:
        executable, content = files[ANSWERS_FILE]
        own = b"".join(line for line in content.splitlines(True) if not line.startswith(b"_"))
        files[ANSWERS_FILE] = (executable, own)
    return files


def tree_digest(tree: Tree) -> str:
    whole = hashlib.sha256()
    for path, (executable, content) in tree.items():
        whole.update(repr((path, executable, hashlib.sha256(content).hexdigest())).encode())
    return whole.hexdigest()


def code_digests(tree: Tree, owned: Ownership) -> tuple[str, str]:
    """Return hashes of the template's code that train.py can import, and of the owner's files: what is trained."""
    files = {path: content for path, (_, content) in tree.items() if not path.startswith("tests/")}
    hashes = [(path, hashlib.sha256(content).hexdigest()) for path, content in files.items()]
    in_packages = [file for file in hashes if str(Path(file[0]).with_name("__init__.py")) in files]
    own = [file for file in in_packages if owned.yours.match_file(file[0])]
    trained = imported_by("train.py", files)
    code = [file for file in hashes if file[0] in trained and file not in own]
    return hashlib.sha256(repr(code).encode()).hexdigest(), hashlib.sha256(repr(own).encode()).hexdigest()


def imported_by(program: str, files: Mapping[str, bytes]) -> set[str]:
    """Return the paths of a program and of those files that it can import, also in functions and through others."""
    found: set[str] = set()
    left = [program]
    while left:
        path = left.pop()
        if path in files and path not in found:
            found.add(path)
            left += named_in_imports(path, files[path])
    return found


@functools.lru_cache(maxsize=1024)  # projects share most of their files
def named_in_imports(path: str, content: bytes) -> Sequence[str]:
    """Return the paths that a module's imports could name; none for one that is not valid, and will fail."""
    names: set[tuple[str, ...]] = set()
    package = Path(path).parent.parts
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                names.update(tuple(name.name.split(".")) for name in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else ()
                base = (*above, *(node.module.split(".") if node.module else ()))
                names.update((*base, name.name) for name in node.names)
    modules = sorted({name[:length] for name in names for length in range(1, len(name) + 1)})
    return [f"{'/'.join(module)}{end}" for module in modules for end in (".py", "/__init__.py")]
