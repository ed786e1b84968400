"""No answer can break the output: it is refused with a reason and nothing is written, or it stays mere text."""

import fcntl
import itertools
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import copier
import jinja2
import pytest
import tomllib
import yaml
from copier.errors import UnsafeTemplateError
from jinja2.sandbox import SandboxedEnvironment
from packaging.utils import canonicalize_name

from generator.answers.questions import read_questions
from generator.render.project import NAME, RenderError, recorded_answers, render
from tests.conftest import Render
from tests.support.processes import hang_timeout

QUESTIONS = read_questions()
TEXT_QUESTIONS = [question.key for question in QUESTIONS if not question.choices]
LAUNCHERS = [choice.value for question in QUESTIONS if question.key == "launcher" for choice in question.choices]

TEXTS = {
    "double quotes": 'say "hi"',
    "single quotes": "it's 'so'",
    "three double quotes": 'x"""y',
    "three single quotes": "x'''y",
    "typographic quotes": "\u201ca\u201d \u2018b\u2019 \u00abc\u00bb",
    "one double quote": '"',
    "newline": "a\nb",
    "trailing newline": "a\n",
    "carriage return": "a\rb",
    "both": "a\r\nb",
    "tab": "a\tb",
    "NUL": "a\0b",
    "escape sequence": "\x1b[2Ja",
    "delete": "a\x7fb",
    "next line": "a\x85b",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
    "lone surrogate": "a\ud800b",
    "surrogate of an undecodable byte": "a\udcffb",
    "Jinja expression": "{{7*7}}",
    "Jinja attribute": "{{ ''.__class__.__mro__ }}",
    "Jinja raw": "{% raw %}",
    "Jinja endraw": "{% endraw %}{{7*7}}",
    "Jinja if": "{% if launcher %}",
    "Jinja include": "{% include 'copier.yml' %}",
    "Jinja comment": "{# a",
    "Jinja yield": "{% yield x from [1] %}{% endyield %}",
    "command substitution": "$(touch x)",
    "backticks": "`touch x`",
    "command": "; touch x #",
    "variable": "$HOME ${HOME}",
    "code fence": "```",
    "path upwards": "../../x",
    "absolute path": "/x",
    "backslashes": "a\\b\\",
    "escape of a newline": "a\\nb\\u000ac",
    "end of CDATA": "]]>",
    "HTML": "<!-- <script>alert(1)</script>",
    "TOML table": 'x"\nname = "y',
    "TOML table on one line": 'x" }], name = "y',
    "TOML comment": "x # y",
    "YAML tag": "!!python/object/apply:os.system ['touch x']",
    "YAML item": "- a",
    "YAML mapping": "a: b",
    "YAML colon": ": ",
    "YAML anchor": "&a",
    "YAML alias": "*a",
    "YAML block": "|",
    "YAML document": "--- a",
    "YAML document end": "...",
    "YAML flow": "[a, {b: c}]",
    "YAML null": "~",
    "YAML null word": "null",
    "YAML merge": "<<",
    "leading at sign": "@a",
    "leading per cent": "%a",
    "percent format": "%s %(a)s {0} {a}",
    "emoji": "\U0001f680 \U0001f468\u200d\U0001f52c",
    "right-to-left override": "a\u202eb",
    "byte order mark": "\ufeffa",
    "no characters": "\ufffe\uffff\U0010ffff",
    "10,000 characters": "x" * 10_000,
    "201 characters": "x" * 201,
    "200 characters": "\U0001f680" * 200,
    "spaces where YAML would fold": "a  " * 66,
    "empty": "",
    "spaces": "   ",
    "wide space": "\u3000",
    "spaces around": "  a  ",
    "true": "true",
    "no": "no",
    "number": "42",
    "float": "1e3",
    "date": "2024-01-01",
    "ligature": "\ufb01le",
    "umlauts": "\u00fcn\u00ef",
    "dotted capital I": "\u0130stanbul",
    "leading digit": "3d_models",
    "upper case": "MyProject",
    "dots": "a.b.c",
    "hyphens": "a-b-c",
    "device": "con",
}

# What these would shadow, or what would shadow them.
TAKEN_NAMES = ["class", "async", "torch", "numpy", "json", "train", "tests", "conftest", "con", "nul"]
NAMES = {
    **TEXTS,
    **{name: name for name in TAKEN_NAMES},
    "constant": "None",
    "dunder": "__init__",
    "leading underscore": "_a",
    "trailing underscore": "a_",
    "slash": "a/b",
    "dot": ".",
    "two dots": "..",
    "41 characters": "x" * 41,
    "40 characters": "x" * 40,
    "one letter": "x",
    "soft keyword": "match",
    "words": "digits_of_2_writers",
}


def text_fits(key: str, text: str) -> bool:
    """Whether this is one line of at most 200 characters that is not blank, where the answer may not be empty."""
    unprintable = any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text)
    return not unprintable and len(text) <= 200 and (key == "author_name" or bool(text.strip()))


def name_fits(name: str) -> bool:
    """Whether this is a lower-case identifier that pip takes for a project's name, and free."""
    identifier = name.isascii() and name.isidentifier() and name == name.lower()
    ends_with_letters = identifier and name[0] != "_" and name[-1] != "_"
    return ends_with_letters and len(name) <= 40 and name not in TAKEN_NAMES


def copy(snapshot: Path, destination: Path, **answers: object) -> None:
    """Let Copier make a project of these answers and the defaults, without trust."""
    copier.run_copy(str(snapshot), destination, data=NAME | answers, defaults=True, quiet=True, unsafe=False)


def assert_refused(snapshot: Path, destination: Path, key: str, text: str) -> None:
    """Copier names the question and a reason, and writes nothing."""
    with pytest.raises(ValueError, match=rf"^Validation error for question '{key}': [^\n]{{15,}}$"):
        copy(snapshot, destination, **{key: text})
    assert not destination.exists()


def files(project: Path) -> dict[str, bytes]:
    """The content of all files by their paths, in which the package is called "package"."""
    package = recorded_answers(project)["package_name"]
    paths = (path.relative_to(project) for path in project.rglob("*") if path.is_file())
    return {re.sub(rf"^{package}/", "package/", str(path)): (project / path).read_bytes() for path in paths}


def assert_inert(benign: Path, project: Path, answers: dict[str, str]) -> None:
    """The answers are in the project as they were given, and nothing else differs from the benign one."""
    made, plain = files(project), files(benign)
    assert made.keys() == plain.keys()
    for path, content in made.items():
        if path.endswith(".py"):
            compile(content, path, "exec")
    recorded = yaml.safe_load(made[".copier-answers.yml"].decode())
    derived = {"package_name": recorded["package_name"]}
    assert recorded == {**yaml.safe_load(plain[".copier-answers.yml"]), **derived, **answers}

    metadata = tomllib.loads(made["pyproject.toml"].decode())["project"]
    assert canonicalize_name(metadata["name"], validate=True) == metadata["name"]
    assert metadata["description"] == recorded["description"]
    authors = [{"name": recorded["author_name"]}] if recorded["author_name"] else None
    assert metadata.get("authors") == authors
    title, *text = made["README.md"].decode().split("\n")
    assert title == f"# {recorded['project_name']}"
    text.remove(recorded["description"])
    assert recorded["author_name"] in "\n".join(text)
    if recorded["package_name"] == recorded_answers(benign)["package_name"]:
        differing = {path for path in made if made[path] != plain[path]}
        assert differing <= {"README.md", "pyproject.toml", ".copier-answers.yml"}


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a project beside the working directory. Fails where something else appears in either."""
    working, place = tmp_path / "working", tmp_path / "place"
    working.mkdir()
    place.mkdir()
    monkeypatch.chdir(working)
    yield place
    assert sorted(tmp_path.iterdir()) == [place, working]
    assert not list(working.iterdir())
    assert [path.name for path in place.iterdir()] in ([], ["project"])


def test_every_free_text_question_is_tried() -> None:
    assert TEXT_QUESTIONS == ["project_name", "package_name", "description", "author_name"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_text_is_refused_with_a_reason_or_stays_text(
    snapshot: Path, project: Render, empty_folder: Path, text: str
) -> None:
    answers = {}
    for key in ("project_name", "description", "author_name"):
        if text_fits(key, text):
            answers[key] = text
        else:
            assert_refused(snapshot, empty_folder / "project", key, text)
    if answers:
        copy(snapshot, empty_folder / "project", **answers)
        assert_inert(project(), empty_folder / "project", answers)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_package_name_is_refused_with_a_reason_or_stays_a_name(
    snapshot: Path, project: Render, empty_folder: Path, name: str
) -> None:
    if name_fits(name):
        copy(snapshot, empty_folder / "project", package_name=name)
        assert_inert(project(), empty_folder / "project", {"package_name": name})
    else:
        assert_refused(snapshot, empty_folder / "project", "package_name", name)


class Questionnaire:
    """The validators and defaults of copier.yml, evaluated by Jinja alone: a thousand names in a second."""

    def __init__(self, snapshot: Path) -> None:
        self.entries: dict[str, Any] = yaml.safe_load((snapshot / "copier.yml").read_text())
        options = {**self.entries["_envops"], "undefined": jinja2.StrictUndefined}
        filters = "jinja2_ansible_filters.AnsibleCoreFiltersExtension"
        self.environment = SandboxedEnvironment(
            loader=jinja2.FileSystemLoader(snapshot), extensions=[filters], **options
        )

    def problem(self, key: str, answer: str) -> str:
        """The reason why this may not be the answer, or nothing."""
        new_project = {"dst_path": "nowhere", "answers_file": ".copier-answers.yml"}
        validator = self.environment.from_string(self.entries[key]["validator"])
        return validator.render({key: answer, "_copier_conf": new_project, "_external_data": {}}).strip()

    def default_package_name(self, project_name: str) -> str:
        """What Copier suggests where nothing is given."""
        return self.environment.from_string(self.entries["package_name"]["default"]).render(project_name=project_name)

    def assert_all_taken(self, names: set[str]) -> None:
        """None of these may be the name of the package."""
        free = [name for name in sorted(names) if not self.problem("package_name", name)]
        assert not free, f"missing in TAKEN_NAMES of partials/validators.jinja: {' '.join(free)}"


@pytest.fixture(scope="module")
def questionnaire(snapshot: Path) -> Questionnaire:
    return Questionnaire(snapshot)


def test_no_package_takes_the_name_of_another_part_of_the_project(
    questionnaire: Questionnaire, project: Render
) -> None:
    """Modules beside it and in tests/, which pytest imports by their bare names, and folders that git ignores."""
    folder = project()
    package = recorded_answers(folder)["package_name"]
    modules = {path.stem for path in [*folder.glob("*.py"), *folder.glob("tests/*.py")]}
    folders = {path.name for path in folder.iterdir() if path.is_dir()}
    ignored = {line.rstrip("/") for line in (folder / ".gitignore").read_text().splitlines()}
    assert {"train", "conftest", "tests", "runs"} <= modules | folders | ignored
    questionnaire.assert_all_taken((modules | folders | ignored) - {package})


def illegal_launchers() -> list[str]:
    """All that do not hand the mpi backend its ranks."""
    assert "mpirun" in LAUNCHERS
    return [launcher for launcher in LAUNCHERS if launcher != "mpirun"]


@pytest.mark.parametrize("launcher", illegal_launchers())
def test_the_mpi_backend_is_refused_without_mpirun(snapshot: Path, empty_folder: Path, launcher: str) -> None:
    reason = rf"mpirun gives this backend its ranks, so it needs launcher=mpirun \(here it is {launcher}\)"
    answers = {"launcher": launcher, "backend": "mpi"}
    with pytest.raises(ValueError, match=f"^Invalid choice for 'backend': {reason}$"):
        copy(snapshot, empty_folder / "project", **answers)
    with pytest.raises(RenderError, match=reason):
        render(empty_folder / "project", answers, template=snapshot)
    assert not (empty_folder / "project").exists()


def test_the_mpi_backend_is_accepted_with_mpirun(snapshot: Path, empty_folder: Path) -> None:
    copy(snapshot, empty_folder / "project", launcher="mpirun", backend="mpi")
    assert recorded_answers(empty_folder / "project")["backend"] == "mpi"


def test_the_template_asks_for_no_trust(snapshot: Path, empty_folder: Path) -> None:
    settings = yaml.safe_load((snapshot / "copier.yml").read_text())
    assert not settings.keys() & {"_jinja_extensions", "_tasks", "_migrations"}
    assert settings["_external_data"] == {"before": "{{ _copier_conf.answers_file }}"}  # in the project itself
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor does it warn of anything
        copy(snapshot, empty_folder / "project")
    assert (empty_folder / "project" / "train.py").exists()


def test_copier_would_refuse_a_template_that_asks_for_trust(snapshot: Path, tmp_path: Path) -> None:
    template = shutil.copytree(snapshot, tmp_path / "template")
    with open(template / "copier.yml", "a") as file:
        file.write("\n_tasks: [touch x]\n")
    with pytest.raises(UnsafeTemplateError):
        copy(template, tmp_path / "project")
    assert not (tmp_path / "project").exists()


class Terminal:
    """A program that believes to run in a terminal of 200 columns."""

    def __init__(self, *command: str) -> None:
        self.terminal, programs_end = pty.openpty()
        fcntl.ioctl(programs_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        # Without CPR, questionary does not ask the terminal where its cursor is.
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.program = subprocess.Popen(
            command,
            stdin=programs_end,
            stdout=programs_end,
            stderr=programs_end,
            env=environment,
            start_new_session=True,
        )
        os.close(programs_end)
        self.shown = ""

    def wait_for(self, text: str, limit: float = 60) -> None:
        """Read until the text is on the screen; colours and movements of the cursor are left out."""
        deadline = time.monotonic() + hang_timeout(limit)
        raw = b""
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.shown}"
            if select.select([self.terminal], [], [], 1)[0]:
                raw += self.read()
                self.shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", raw.decode(errors="replace"))

    def read(self) -> bytes:
        """Read what there is; the end of the program is an error of the terminal."""
        try:
            return os.read(self.terminal, 65536)
        except OSError:
            return pytest.fail(f"the program has ended:\n{self.shown}")

    def press(self, *keys: str) -> None:
        """Type keys, each by itself."""
        for key in keys:
            os.write(self.terminal, key.encode())

    def close(self) -> None:
        """End the program where it has not ended yet."""
        self.program.kill()
        self.program.wait()
        os.close(self.terminal)


ARROW_UP, ENTER = "\x1b[A", "\r"


@pytest.mark.parametrize(
    ("launcher", "shown", "chosen"),
    [
        (
            "torchrun",
            "- mpi (needs a PyTorch built with MPI) (mpirun gives this backend its ranks, "
            "so it needs launcher=mpirun (here it is torchrun))",
            "gloo",
        ),
        ("mpirun", "  mpi (needs a PyTorch built with MPI)", "mpi"),
    ],
    ids=["torchrun", "mpirun"],
)
def test_the_questionnaire_shows_why_the_mpi_backend_cannot_be_chosen(
    snapshot: Path, tmp_path: Path, launcher: str, shown: str, chosen: str
) -> None:
    """The arrow goes up from the first choice to the last one that is not disabled."""
    answers = {question.key: question.default for question in QUESTIONS if question.key != "backend"}
    answers = {**answers, "launcher": launcher, "package_name": "digits", "description": "Digits"}
    data = itertools.chain.from_iterable(("--data", f"{key}={answer}") for key, answer in answers.items())
    project = tmp_path / "project"
    terminal = Terminal(sys.executable, "-m", "copier", "copy", *data, str(snapshot), str(project))
    try:
        terminal.wait_for(shown)
        terminal.press(ARROW_UP, ENTER)
        terminal.wait_for("README.md says the rest")
    finally:
        terminal.close()
    assert recorded_answers(project)["backend"] == chosen
