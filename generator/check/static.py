"""Checks each distinct Python file of projects once, by black, ruff and mypy, and compiles it."""

import ast
import functools
import hashlib
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from generator.answers.combinations import greedy_cover
from generator.render.scratch import die_with_parent

Complaints = dict[str, str]  # by the key of a file: what is wrong with it


@dataclass(frozen=True)
class SourceFile:
    """A Python file of a rendered project. One check covers all files with the same key."""

    path: Path  # in its project
    project: Path
    content: str  # hash
    key: str  # what the verdict of a tool depends on, except the tool itself


def source_files(project: Path) -> list[SourceFile]:
    told = [section for tool in ("black", "ruff", "mypy") for section in settings_of(tool, project)]
    files = []
    for file in sorted(project.rglob("*.py")):
        source, path = file.read_bytes(), file.relative_to(project)
        content = hashlib.sha256(source).hexdigest()
        settings = hashlib.sha256("".join(each for each in told if concerns(each, source)).encode()).hexdigest()
        files.append(SourceFile(path, project, content, f"{path} {content} {settings}"))
    return files


def settings_of(tool: str, project: Path) -> list[str]:
    sections = re.split(r"^(?=\[)", (project / "pyproject.toml").read_text(), flags=re.MULTILINE)
    return [section for section in sections if re.match(rf"\[+tool\.{tool}[.\]]", section)]


@functools.lru_cache(maxsize=4096)  # projects share most of their files
def concerns(settings: str, source: bytes) -> bool:
    """Whether settings can change what a tool says of a file: settings for modules can if the file names one."""
    modules = re.search(r"^module = \[(.*)\]", settings, flags=re.MULTILINE)
    names = re.findall(r'"(\w+)', modules[1]) if modules else []
    return not names or any(re.search(rf"\b{name}\b".encode(), source) for name in names)


def distinct(files: Iterable[SourceFile]) -> list[SourceFile]:
    return list({file.key: file for file in files}.values())


def check_format(files: Sequence[SourceFile]) -> Complaints:
    """Ask black, as a library, whether it would change a file."""
    import black
    from black.const import DEFAULT_LINE_LENGTH
    from black.files import parse_pyproject_toml
    from black.output import diff
    from black.parsing import InvalidInput

    settings_in = functools.cache(parse_pyproject_toml)
    complaints = {}
    for file in files:
        source = (file.project / file.path).read_text()
        line_length = int(settings_in(str(file.project / "pyproject.toml")).get("line_length", DEFAULT_LINE_LENGTH))
        try:
            formatted = black.format_str(source, mode=black.Mode(line_length=line_length))
        except InvalidInput as error:
            complaints[file.key] = f"{file.path}: black cannot read it: {error}"
            continue
        if formatted != source:
            change = diff(source, formatted, str(file.path), "black would write")
            complaints[file.key] = f"{file.path}: black would change it\n{change}"
    return complaints


def check_lint(files: Sequence[SourceFile]) -> Complaints:
    """Ask ruff once for all files; it finds the settings in the folder of each."""
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


def check_types(
    having: Mapping[Path, AbstractSet[object]], wanted: AbstractSet[object], stage: Path, cache: Path
) -> Complaints:
    """Let mypy read the files with these keys, in the fewest projects that have all of them, and all else wanted.

    At a syntax error mypy stops, and does not read other files: it is asked again, without projects that have one.
    """
    complaints: Complaints = {}
    said, sound, left, asked = "", dict(having), set(wanted), 0
    while True:
        groups = defaultdict(list)
        for project in greedy_cover(sound, left):
            # The files to check are named to mypy here.
            told = "".join(settings_of("mypy", project))
            groups[re.sub(r"^files = .*\n", "", told, flags=re.MULTILINE)].append(project)
        broken: Complaints = {}
        for settings, members in groups.items():
            asked += 1
            found, stopped = ask_mypy(settings, members, stage / str(asked), cache)
            complaints |= found
            if stopped:
                said, broken = stopped, broken | found
            else:
                left -= set().union(*(having[each] for each in members))
        sound = {project: keys for project, keys in sound.items() if keys.isdisjoint(broken)}
        if not broken:  # all is read, or asking again is useless
            unread = (key for key in left if isinstance(key, str))
            return dict.fromkeys(unread, f"mypy stopped before it read this: {said}") | complaints


def ask_mypy(settings: str, members: Sequence[Path], folder: Path, cache: Path) -> tuple[Complaints, str]:
    """Ask mypy for projects with the same settings, each staged as a package: mypy needs unique names.

    Returns its complaints and, if it has stopped before it read all files, what it said.
    """
    staged = {f"project{i}": project for i, project in enumerate(members)}
    keys = {name: {str(file.path): file.key for file in source_files(project)} for name, project in staged.items()}
    for name, project in staged.items():
        stage_project(project, folder / name, name)
    (folder / "mypy.toml").write_text(settings)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.toml", "--explicit-package-bases"]
    words = [*command, "--cache-dir", str(cache), "--no-error-summary", "--hide-error-context", *staged]
    for workers in ("auto", "0"):  # on a busy machine, its workers may not start in the 3 s that mypy waits
        asked = [*words, f"--num-workers={workers}"]
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, preexec_fn=die_with_parent)
        if "Failed to establish connection with worker" not in done.stdout:
            break
    lines = defaultdict(list)
    for line in done.stdout.splitlines():
        found = re.match(r"(project\d+)/([^:]+):(\d+: .*)", line)
        if found and found[2] in keys[found[1]]:
            # as mypy would have said it in the project
            said = re.sub(rf"\b{found[1]}\.(tests\.(?=conftest))?", "", found[3])
            lines[keys[found[1]][found[2]]].append(f"{found[2]}:{said}")
    stopped = "" if done.returncode in (0, 1) else f"{done.stdout}{done.stderr}"
    return {key: "\n".join(said) for key, said in lines.items()}, stopped


def stage_project(project: Path, place: Path, name: str) -> None:
    """Copy the Python files of a project into a package of this name."""
    packages = {path.stem: name for path in project.iterdir() if path.suffix == ".py" or list(path.glob("*.py"))}
    # pytest puts tests/ on the path
    packages |= {path.stem: f"{name}.tests" for path in (project / "tests").glob("*.py")}
    own = "|".join(packages)
    for file in project.rglob("*.py"):
        target = place / file.relative_to(project)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text()
        # from module[.part] import name
        text = re.sub(rf"^(\s*from )({own})(?=[. ])", lambda at: f"{at[1]}{packages[at[2]]}.{at[2]}", text, flags=re.M)
        # import module [as name]
        imports = rf"^(\s*)(import ({own}))(?= as |$)"
        text = re.sub(imports, lambda at: f"{at[1]}from {packages[at[3]]} {at[2]}", text, flags=re.M)
        target.write_text(text)


def imports_of(projects: Iterable[Sequence[SourceFile]]) -> list[str]:
    """Return the third-party modules that programs import anywhere but in tests, to import them before ranks fork."""
    every = [file for files in projects for file in files if file.path.parts[0] != "tests"]
    own = {file.path.parts[0].removesuffix(".py") for file in every}
    modules: set[str] = set()
    for file in distinct(every):
        try:
            tree = ast.parse((file.project / file.path).read_text())
        except SyntaxError:
            continue  # which all stages report
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    return sorted(module for module in modules if module.partition(".")[0] not in own)
