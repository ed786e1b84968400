"""The command `ddp-template new`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE
from generator.cli.options import errors_in_one_line
from generator.render.git import GitError, run
from generator.render.project import ANSWERS_FILE, RenderError, render


def new(
    destination: Annotated[Path, typer.Argument(help="Folder of the project; it must be new or empty.")],
    answer: Annotated[
        list[str], typer.Option("--answer", "-a", metavar="KEY=VALUE", help="An answer; may be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Write a project from the template as it is in this clone, and say what to do next."""
    with errors_in_one_line():
        render(destination, parse_answers(answer), defaults={}, quiet=False)
        if warning := record_origin(destination):
            typer.echo(f"warning: {warning}", err=True)


def parse_answers(pairs: list[str]) -> dict[str, str]:
    """Split KEY=VALUE pairs. Raises RenderError if one has no "=" or a key comes twice."""
    answers: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise RenderError(f"--answer {pair} is no KEY=VALUE, such as launcher=slurm")
        if key in answers:
            raise RenderError(f"--answer {key} is given twice")
        answers[key] = value
    return answers


def record_origin(project: Path, template: Path = TEMPLATE) -> str:
    """Record the commit that the uncommitted changes of a template are changes of, where there are any.

    Copier records a commit of its own, which nobody has when the project is to be updated. Returns what the owner of
    the project should know; "" if it was made from a commit.
    """
    try:
        changed = run(template, "status", "--porcelain", "--", ".")
        commit = run(template, "describe", "--tags", "--always")
    except GitError:
        return f"{template} has no commit: copier update will not know what this project was made from"
    if not changed:
        return ""
    answers = project / ANSWERS_FILE
    answers.write_text(re.sub(r"^_commit: .*", f"_commit: {commit}", answers.read_text(), flags=re.MULTILINE))
    return (
        f"this project was made from changes that are not committed. It is recorded as made from {commit}: "
        "copier update will take these changes for yours"
    )
