"""The parts of this repository's documentation that are made from the template, so that they cannot drift from it."""

import tempfile
from pathlib import Path

from .questions import TEMPLATE, Question, read_questions
from .rendering import render
from .snapshot import take_snapshot

BEGIN, END = "<!-- questions: begin -->\n", "<!-- questions: end -->\n"


def question_table(questions: list[Question]) -> str:
    """Give the questions as a Markdown table; the first choice is the default."""
    rows = [f"| `{question.key}` | {question.help} | {answers(question)} |\n" for question in questions]
    return "| question | what it decides | answers (the default first) |\n|---|---|---|\n" + "".join(rows)


def answers(question: Question) -> str:
    """Give what a question takes: its choices, with the default first, or free text."""
    ordered = sorted(question.choices, key=lambda choice: choice.value != question.default)
    names = [str(choice.value).lower() for choice in ordered]
    if not names:
        return "text"
    return ", ".join(
        f"`{name}`" + (" (†)" if choice.conditional else "") for name, choice in zip(names, ordered, strict=True)
    )


def documented_files(template: Path = TEMPLATE) -> dict[Path, str]:
    """Give each made file of the documentation, by its path in the repository, with the content that it should have."""
    readme = (template / "README.md").read_text()
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    table = question_table(read_questions(template))
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot", template))
        example = (project / "train.py").read_text()
    return {
        Path("README.md"): before + BEGIN + table + END + after,
        Path("docs/example/train.py"): example,
    }


def write_documentation(template: Path = TEMPLATE) -> list[Path]:
    """Bring the made files up to date, and give those that were not."""
    stale = []
    for path, content in documented_files(template).items():
        target = template / path
        if not target.exists() or target.read_text() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
            stale.append(path)
    return stale
