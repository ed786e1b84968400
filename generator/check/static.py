"""The checks that read code and do not run it: black, ruff and mypy, on each distinct file once."""

import functools
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from generator.render.processes import die_with_parent

Complaints = dict[str, str]  # by the key of a file: what is wrong with it


@dataclass(frozen=True)
class SourceFile:
    """A Python file of a rendered project; others of the same key are checked with it."""

    path: Path  # in its project
    project: Path
    content: str  # hash
    settings: str  # hash of what the project's pyproject.toml tells the tools

    @property
    def key(self) -> str:
        """What the verdict of a tool depends on, beside the tool itself."""
        return f"{self.path} {self.content} {self.settings}"


def source_files(project: Path) -> list[SourceFile]:
    """The Python files of a project, sorted."""
    settings = digest("".join(settings_of(tool, project) for tool in ("black", "ruff", "mypy")).encode())
    files = sorted(project.rglob("*.py"))
    return [SourceFile(file.relative_to(project), project, digest(file.read_bytes()), settings) for file in files]


def settings_of(tool: str, project: Path) -> str:
    """The part of pyproject.toml that is a tool's."""
    sections = re.split(r"^(?=\[)", (project / "pyproject.toml").read_text(), flags=re.MULTILINE)
    return "".join(section for section in sections if re.match(rf"\[+tool\.{tool}[.\]]", section))


def digest(content: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(content).hexdigest()[:32]


def distinct(files: Iterable[SourceFile]) -> list[SourceFile]:
    """One file for each key: the first."""
    first: dict[str, SourceFile] = {}
    for file in files:
        first.setdefault(file.key, file)
    return list(first.values())


def check_format(files: Sequence[SourceFile]) -> Complaints:
    """Ask black, as a library, whether it would change a file."""
    import black
    from black.output import diff
    from black.parsing import InvalidInput

    complaints = {}
    for file in files:
        source = (file.project / file.path).read_text()
        try:
            formatted = black.format_str(source, mode=black_mode(file.project / "pyproject.toml", file.settings))
        except InvalidInput as error:
            complaints[file.key] = f"{file.path}: black cannot read it: {error}"
            continue
        if formatted != source:
            change = diff(source, formatted, str(file.path), "black would write")
            complaints[file.key] = f"{file.path}: black would change it\n{change}"
    return complaints


@functools.cache
def black_mode(pyproject: Path, settings: str) -> "black.Mode":  # type: ignore[name-defined]  # noqa: F821
    """The settings of black in a project, as black itself reads them."""
    import black
    from black.const import DEFAULT_LINE_LENGTH
    from black.files import parse_pyproject_toml

    return black.Mode(line_length=int(parse_pyproject_toml(str(pyproject)).get("line_length", DEFAULT_LINE_LENGTH)))


def check_lint(files: Sequence[SourceFile]) -> Complaints:
    """Ask ruff, once for all files; it finds the settings beside each of them."""
    if not files:
        return {}  # without a path it would look at the current folder
    by_path = {str(file.project / file.path): file for file in files}
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", *by_path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        return {file.key: f"ruff fails: {done.stderr}" for file in files}
    lines = defaultdict(list)
    for finding in json.loads(done.stdout):
        file = by_path[finding["filename"]]
        lines[file.key].append(f"{file.path}:{finding['location']['row']}: {finding['code']} {finding['message']}")
    return {key: "\n".join(found) for key, found in lines.items()}


def check_types(projects: Sequence[Path], stage: Path, cache: Path) -> Complaints:
    """Ask mypy about whole projects, in one run for all those with the same settings.

    mypy wants one name for each module: each project becomes a package of its own, and imports of its modules from
    itself are written accordingly. Lines stay where they are.
    """
    groups = defaultdict(list)
    for project in projects:
        # The files to check are named to mypy here.
        groups[re.sub(r"^files = .*\n", "", settings_of("mypy", project), flags=re.MULTILINE)].append(project)
    complaints: Complaints = {}
    for number, (settings, members) in enumerate(groups.items()):
        complaints |= ask_mypy(settings, members, stage / f"settings{number}", cache)
    return complaints


def ask_mypy(settings: str, members: Sequence[Path], folder: Path, cache: Path) -> Complaints:
    """Ask mypy about projects with the same settings."""
    staged = {f"project{i}": project for i, project in enumerate(members)}
    for name, project in staged.items():
        stage_project(project, folder / name, name)
    (folder / "mypy.toml").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.toml", "--explicit-package-bases"]
    options = ["--cache-dir", str(cache), "--no-error-summary", "--hide-error-context", *staged]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, preexec_fn=die_with_parent)
    complaints = type_errors(done.stdout, staged)
    if done.returncode in (0, 1):
        return complaints
    # At a syntax error mypy stops, and says nothing of other files: ask again without the projects that have it.
    keys = {project: {file.key for file in source_files(project)} for project in members}
    rest = [project for project in members if not keys[project] & complaints.keys()]
    if rest and len(rest) < len(members):
        complaints |= ask_mypy(settings, rest, folder / "rest", cache)
    unread = set().union(*keys.values()) - set().union(*(keys[project] for project in rest)) - complaints.keys()
    return dict.fromkeys(unread, f"mypy stopped before it read this: {done.stdout}{done.stderr}") | complaints


def stage_project(project: Path, place: Path, name: str) -> None:
    """Copy the Python files of a project into a package of this name."""
    modules = [path.stem for path in project.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))]
    packages = dict.fromkeys(modules, name)
    # pytest puts tests/ on the path
    packages |= dict.fromkeys((path.stem for path in (project / "tests").glob("*.py")), f"{name}.tests")
    # "from module[.part] import name", or "import module [as name]"
    own = "|".join(packages)
    imports = re.compile(rf"^(\s*)(?:from ({own})(?=[. ])|import ({own})(?= as |$))", re.MULTILINE)

    def moved(found: re.Match[str]) -> str:
        indent, part_of, module = found.groups()
        if part_of:
            return f"{indent}from {packages[part_of]}.{part_of}"
        return f"{indent}from {packages[module]} import {module}"

    for file in project.rglob("*.py"):
        target = place / file.relative_to(project)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(imports.sub(moved, file.read_text()))


def type_errors(output: str, staged: Mapping[str, Path]) -> Complaints:
    """Find the files that mypy's lines are about, and write the lines as it would have said them in the project."""
    keys = {name: {str(file.path): file.key for file in source_files(project)} for name, project in staged.items()}
    lines: dict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        found = re.match(r"(project\d+)/([^:]+):(\d+: .*)", line)
        if found and found[2] in keys[found[1]]:
            said = re.sub(rf"\b{found[1]}\.(tests\.(?=conftest))?", "", found[3])
            lines[keys[found[1]][found[2]]].append(f"{found[2]}:{said}")
    return {key: "\n".join(said) for key, said in lines.items()}


@functools.cache
def tool_versions() -> str:
    """What decides verdicts beside the files."""
    return " ".join(f"{tool} {metadata.version(tool)}" for tool in ("black", "ruff", "mypy"))
