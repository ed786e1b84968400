"""The command `ddp-template render`: the projects of many combinations, each in a folder of its own."""

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
from generator.cli.options import Cover, Shard, Wanted, choose, errors_in_one_line, take_term_as_ctrl_c, watched
from generator.render.cache import Cache
from generator.render.project import RenderError, name_source
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers


def render(
    destination: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="Folder of the projects; it must be new or empty.", show_default=False),
    ],
    wanted: Wanted = None,
    cover: Cover = None,
    shard: Shard = None,
) -> None:
    """Write the project of every legal combination, or of those that are chosen, to DEST/NAME."""
    take_term_as_ctrl_c()
    with errors_in_one_line():
        refuse_what_cannot_be_replaced(destination)
        with Workers() as workers:
            chosen = choose(TEMPLATE, workers, wanted, cover, shard, cache=Cache())
        write_projects(destination, chosen)
    typer.echo(f"projects in {destination}: {len(chosen)}")


def refuse_what_cannot_be_replaced(destination: Path) -> None:
    """Raise RenderError unless the destination does not exist, or is an empty folder."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise RenderError(f"{destination} holds something already: choose a new or empty folder")
    if destination.resolve() == Path.cwd():
        raise RenderError(f"{destination} is the current folder, which cannot be replaced: choose a new one")


def write_projects(destination: Path, combinations: Sequence[Combination], template: Path = TEMPLATE) -> None:
    """Write the projects of combinations, with progress on stderr: all of them or, after any error, nothing.

    Raises RenderError, which names the combination, if one cannot be rendered, and OSError if nothing can be
    written.
    """
    with whole_or_not_at_all(destination) as folder, tempfile.TemporaryDirectory() as elsewhere:
        snapshot = take_snapshot(Path(elsewhere) / "template", template)
        with Workers() as workers:
            made = {
                workers.render(snapshot, combination, folder / combination.name): combination
                for combination in combinations
            }
            for future in watched("Rendering")(as_completed(made), len(made)):
                name = made[future].name
                try:
                    future.result()
                except (RenderError, BrokenProcessPool, jinja2.TemplateError) as error:
                    raise RenderError(f"{name}: {error}") from error
                name_source(folder / name, str(template))


@contextmanager
def whole_or_not_at_all(destination: Path) -> Iterator[Path]:
    """Yield a new folder beside the destination that becomes the destination, unless an error leaves no trace of it."""
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
        for parent in missing:
            if parent.exists():
                parent.rmdir()
        raise
