"""No answer can break the output: it is refused with a reason and nothing is written, or it stays mere text."""

import re
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
from jinja2.sandbox import SandboxedEnvironment
from packaging.utils import canonicalize_name

from generator.answers.questions import read_questions
from generator.render.project import NAME, read_files, recorded_answers
from tests.conftest import Render, without_git

QUESTIONS = read_questions()

# Each is one test, which ascii() names.
TEXTS = [
    # quotes
    *('say "hi"', "it's 'so'", 'x"""y', "x'''y", "\u201ca\u201d \u2018b\u2019 \u00abc\u00bb", '"'),
    # ends of lines, and what is not printed
    *("a\nb", "a\n", "a\rb", "a\r\nb", "a\tb", "a\0b", "\x1b[2Ja", "a\x7fb", "a\x85b", "a\u2028b", "a\u2029b"),
    *("a\ud800b", "a\udcffb", "a\u202eb", "\ufeffa", "\ufffe\uffff\U0010ffff"),
    # Jinja
    *("{{7*7}}", "{{ ''.__class__.__mro__ }}", "{% raw %}", "{% endraw %}{{7*7}}", "{% if launcher %}"),
    *("{% include 'copier.yml' %}", "{# a", "{% yield x from [1] %}{% endyield %}"),
    # shells, paths and formats
    *("$(touch x)", "`touch x`", "; touch x #", "$HOME ${HOME}", "```", "../../x", "/x", "a\\b\\", "a\\nb\\u000ac"),
    *("]]>", "<!-- <script>alert(1)</script>", "@a", "%a", "%s %(a)s {0} {a}"),
    # TOML and YAML
    *('x"\nname = "y', 'x" }], name = "y', "x # y", "!!python/object/apply:os.system ['touch x']", "- a", "a: b", ": "),
    *("&a", "*a", "|", "--- a", "...", "[a, {b: c}]", "~", "null", "<<", "true", "no", "42", "1e3", "2024-01-01"),
    # lengths and spaces
    *("x" * 10_000, "x" * 201, "\U0001f680" * 200, "a  " * 66, "", "   ", "\u3000", "  a  "),
    # letters, and what is no name of a package
    *("\U0001f680 \U0001f468\u200d\U0001f52c", "\ufb01le", "\u00fcn\u00ef", "\u0130stanbul"),
    *("3d_models", "MyProject", "a.b.c", "a-b-c", "con"),
]
MAY_DIFFER = {"README.md", "pyproject.toml", ".copier-answers.yml"}
# What these would shadow, or what would shadow them.
TAKEN_NAMES = ["class", "async", "torch", "numpy", "json", "train", "tests", "conftest", "con", "nul"]
NAMES = [*dict.fromkeys([*TEXTS, *TAKEN_NAMES, "None", "__init__", "_a", "a_", "a/b", ".", ".."])]
NAMES += ["x" * 41, "x" * 40, "x", "match", "digits_of_2_writers"]


def text_fits(key: str, text: str) -> bool:
    """Whether this is one line of at most 200 characters that is not blank, where the answer may not be empty."""
    unprintable = any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in text)
    return not unprintable and len(text) <= 200 and (key == "author_name" or bool(text.strip()))


def name_fits(name: str) -> bool:
    """Whether this is a lower-case identifier that pip takes for a project's name, and free."""
    identifier = name.isascii() and name.isidentifier() and name == name.lower()
    return identifier and name[0] != "_" and name[-1] != "_" and len(name) <= 40 and name not in TAKEN_NAMES


def copy(snapshot: Path, destination: Path, **answers: object) -> None:
    with without_git():
        copier.run_copy(str(snapshot), destination, data=NAME | answers, defaults=True, quiet=True, unsafe=False)


def assert_refused(snapshot: Path, destination: Path, key: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"^Validation error for question '{key}': [^\n]{{15,59}}$"):
        copy(snapshot, destination, **{key: text})
    assert not destination.exists()


def files(project: Path) -> dict[str, bytes]:
    """The content of all files by their paths, in which the package is called "package"."""
    package = recorded_answers(project)["package_name"]
    return {re.sub(rf"^{package}/", "package/", path): file for path, (_, file) in read_files(project).items()}


def assert_inert(benign: Path, project: Path, answers: dict[str, str]) -> None:
    """The answers are in the project as they were given, and nothing else differs from the benign one."""
    made, plain = files(project), files(benign)
    assert made.keys() == plain.keys()
    changed = {path for path in made if made[path] != plain[path]}
    assert all(compile(made[path], path, "exec") for path in changed if path.endswith(".py"))
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
        assert changed <= MAY_DIFFER


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a project may be made, beside the working directory. Fails where something else appears in either."""
    working, folder = tmp_path / "working", tmp_path / "folder"
    working.mkdir()
    folder.mkdir()
    monkeypatch.chdir(working)
    yield folder / "project"
    found = {path for each in (tmp_path, working, folder) for path in each.iterdir()}
    assert found <= {working, folder, folder / "project"}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[1:40])
def test_a_text_is_refused_with_a_reason_or_stays_text(snapshot: Path, project: Render, place: Path, text: str) -> None:
    answers = {}
    for key in {question.key for question in QUESTIONS if not question.choices} - {"package_name"}:
        if text_fits(key, text):
            answers[key] = text
        else:
            assert_refused(snapshot, place, key, text)
    if answers:
        copy(snapshot, place, **answers)
        assert_inert(project(), place, answers)


@pytest.mark.parametrize("name", NAMES, ids=lambda text: ascii(text)[1:40])
def test_a_package_name_is_refused_with_a_reason_or_stays_a_name(
    snapshot: Path, project: Render, place: Path, name: str
) -> None:
    if name_fits(name):
        copy(snapshot, place, package_name=name)
        assert_inert(project(), place, {"package_name": name})
    else:
        assert_refused(snapshot, place, "package_name", name)


class Questionnaire:
    """The validators and defaults of copier.yml, evaluated by Jinja alone: a thousand names in a second."""

    def __init__(self, snapshot: Path) -> None:
        self.entries: dict[str, Any] = yaml.safe_load((snapshot / "copier.yml").read_text())
        options = {**self.entries["_envops"], "undefined": jinja2.StrictUndefined}
        options["extensions"] = ["jinja2_ansible_filters.AnsibleCoreFiltersExtension"]
        self.environment = SandboxedEnvironment(loader=jinja2.FileSystemLoader(snapshot), **options)

    def problem(self, key: str, answer: str, folder: str | Path = "nowhere", **before: str) -> str:
        """The reason why this may not be the answer in a folder with such answers before, or nothing."""
        project = {"dst_path": folder, "answers_file": ".copier-answers.yml"}
        validator = self.environment.from_string(self.entries[key]["validator"])
        return validator.render({key: answer, "_copier_conf": project, "_external_data": {"before": before}}).strip()

    def reasons_of_choices(self, **answers: str) -> set[str]:
        """The reasons why choices may not be taken beside these answers."""
        asked = [entry["choices"] for entry in self.entries.values() if "choices" in entry]
        texts = [choice["validator"] for choices in asked for choice in choices.values() if "validator" in choice]
        return {self.environment.from_string(text).render(answers).strip() for text in texts} - {""}

    def default_package_name(self, project_name: str) -> str:
        return self.environment.from_string(self.entries["package_name"]["default"]).render(project_name=project_name)

    def assert_all_taken(self, names: set[str]) -> None:
        free = [name for name in sorted(names) if not self.problem("package_name", name)]
        assert not free, f"missing in TAKEN_NAMES of partials/validators.jinja: {' '.join(free)}"


def test_no_package_takes_the_name_of_another_part_of_the_project(snapshot: Path, project: Render) -> None:
    """Modules beside it and in tests/, which pytest imports by their bare names, and folders that git ignores."""
    folder = project()
    taken = {path.stem for path in [*folder.glob("*.py"), *folder.glob("tests/*.py")]}
    taken |= {path.name for path in folder.iterdir() if path.is_dir()}
    taken |= {line.strip("/") for line in (folder / ".gitignore").read_text().splitlines()}
    assert {"train", "conftest", "tests", "runs", "data"} <= taken
    questions = Questionnaire(snapshot)
    questions.assert_all_taken(taken - {recorded_answers(folder)["package_name"], "data"})
    assert questions.default_package_name("data") == "data_ddp"
    assert "/data/" not in (project(package_name="data") / ".gitignore").read_text()  # older projects may have it


def test_a_reason_fits_into_the_line_of_a_question(snapshot: Path, tmp_path: Path) -> None:
    """Less than 60 characters: Copier shows it below the question."""
    questions = Questionnaire(snapshot)
    taken = max(questions.environment.get_template("partials/validators.jinja").module.TAKEN_NAMES, key=len)  # type: ignore[attr-defined]
    reasons = {questions.problem("package_name", name) for name in ("A", "x" * 99_999, taken)}
    reasons |= {questions.problem("description", text) for text in ("", "a\nb", "x" * 99_999)}
    (tmp_path / ".copier-answers.yml").touch()
    (tmp_path / "linked").symlink_to(tmp_path)
    reasons |= {questions.problem("package_name", "new", tmp_path, package_name="x" * 40)}
    reasons |= {questions.problem("package_name", "linked", tmp_path, package_name="linked")}
    reasons |= questions.reasons_of_choices(launcher="kubernetes", backend="auto", amp="apex")
    reasons |= questions.reasons_of_choices(launcher="mpirun", backend="mpi", amp="torch")
    assert len(reasons) == 11
    assert [reason for reason in reasons if not 0 < len(reason) < 60] == []


@pytest.mark.parametrize(
    ("answers", "needed"),
    [
        ({"launcher": "slurm"}, "an allocation: srun requests one, or uses the one of salloc --ntasks=2."),
        ({"launcher": "mpirun", "backend": "nccl"}, "mpirun, of Open MPI or MPICH."),
        ({}, ""),
    ],
    ids=["slurm", "mpirun", "torchrun"],
)
def test_the_message_after_a_copy_says_what_its_last_command_needs(
    answers: dict[str, str], needed: str, snapshot: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copier.run_copy(str(snapshot), place, data=NAME | answers, defaults=True, unsafe=False)
    *_, message, _ = capfd.readouterr().err.split("\n\n")
    first = f"The last command needs {needed}\n" if needed else ""
    gpus = "two GPUs" if "backend" in answers else "two GPUs or none"
    assert message.startswith(f"{first}Two processes need {gpus}: with one, add --backend gloo.\nREADME.md says")


def test_the_template_asks_for_no_trust(snapshot: Path, place: Path) -> None:
    settings = yaml.safe_load((snapshot / "copier.yml").read_text())
    assert not settings.keys() & {"_jinja_extensions", "_tasks", "_migrations"}
    assert settings["_external_data"] == {"before": "{{ _copier_conf.answers_file }}"}  # in the project itself
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor does it warn of anything
        copy(snapshot, place)
    assert (place / "train.py").exists()
