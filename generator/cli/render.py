"""The commands `ddp-template new`, which writes a project, and `ddp-template render`, which writes many."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import jinja2
import typer

from generator.answers.combinations import Combination
from generator.answers.questions import TEMPLATE
from generator.cli.options import Cover, Rotate, Shard, Wanted, choose, errors_in_one_line, term_as_ctrl_c, watched
from generator.diff.versions import read_pairs
from generator.render.git import GitError, run
from generator.render.project import ANSWERS_FILE, RenderError, name_source, refuse_filled
from generator.render.project import render as render_project
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers


def new(
    destination: Annotated[Path, typer.Argument(help="Folder of the project; it must be new or empty.")],
    answer: Annotated[
        list[str], typer.Option("--answer", "-a", metavar="KEY=VALUE", help="An answer; may be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Write a project from the template as it is in this clone, and say what to do next."""
    with errors_in_one_line():
        render_project(destination, read_pairs(answer, option="--answer "), defaults={}, quiet=False)
        if warning := record_origin(destination):
            typer.echo(f"warning: {warning}", err=True)


def record_origin(project: Path, template: Path = TEMPLATE) -> str:
    """Record the commit that the changes of a template are changes of, and return what the owner should know of it."""
    try:
        changed = run(template, "status", "--porcelain", "--", ".")
        commit = run(template, "describe", "--tags", "--always")
    except GitError:
        return f"{template} has no commit: copier update will not know what this project was made from"
    if not changed:
        return ""
    answers = project / ANSWERS_FILE
    answers.write_text(re.sub(r"^_commit: .*", f"_commit: {commit}", answers.read_text(), flags=re.MULTILINE))
    made = f"this project was made from changes that are not committed. It is recorded as made from {commit}"
    return f"{made}: copier update will take these changes for yours"


def render(
    destination: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="Folder of the projects; it must be new or empty.", show_default=False),
    ],
    wanted: Wanted = None,
    rotate: Rotate = None,
    cover: Cover = None,
    shard: Shard = None,
) -> None:
    """Write the project of every legal combination, or of those that are chosen, to DEST/NAME."""
    term_as_ctrl_c()
    with errors_in_one_line():
        refuse_filled(destination)
        if destination.resolve() == Path.cwd():
            raise RenderError(f"{destination} is the current folder, which cannot be replaced: choose a new one")
        with Workers() as workers:
            chosen = choose(workers, wanted, rotate, cover, shard)
        write_projects(destination, chosen)
    typer.echo(f"projects in {destination}: {len(chosen)}")


def write_projects(destination: Path, combinations: Sequence[Combination], template: Path = TEMPLATE) -> None:
    """Write the projects of combinations, with progress on stderr: all of them or, after any error, nothing."""
    with whole_or_not_at_all(destination) as folder, tempfile.TemporaryDirectory() as elsewhere, Workers() as workers:
        snapshot = take_snapshot(Path(elsewhere) / "template", template)
        made = {workers.render(snapshot, each, folder / each.name): each.name for each in combinations}
        for future in watched("Rendering")(as_completed(made), len(made)):
            try:
                future.result()
            except (RenderError, BrokenProcessPool, jinja2.TemplateError) as error:
                raise RenderError(f"{made[future]}: {error}") from error
            name_source(folder / made[future], str(template))


@contextmanager
def whole_or_not_at_all(destination: Path) -> Iterator[Path]:
    """Yield a new folder that becomes the destination. After an error, delete the folder and leave no trace."""
    destination = destination.resolve()
    missing = [parent for parent in destination.parents if not parent.exists()]
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".ddp-template-", dir=destination.parent) as temporary:
            folder = Path(temporary) / "projects"
            folder.mkdir()
            yield folder
            folder.rename(destination)
    except BaseException:
        for parent in filter(Path.exists, missing):
            parent.rmdir()
        raise
