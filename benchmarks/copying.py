"""Measures `copier copy` and `copier update`: python -m benchmarks.copying. Nothing else should run meanwhile.

Both are run in turn for this template, for an empty one, and for one of as many files without a question: what that
takes, Copier takes for any template of this size. The results are in benchmarks/results/copying.json, from which
`ddp-template docs` makes a table in docs/speed.md.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from generator.answers.questions import TEMPLATE
from generator.render.git import SETTINGS

from .clock import seconds_of
from .failures import CommandError, failures_told
from .machines import machine

RESULTS = TEMPLATE / "benchmarks" / "results" / "copying.json"
ENV = {**os.environ, **SETTINGS}
COPIER = [sys.executable, "-m", "copier"]
ANSWERS = "{{ _copier_conf.answers_file }}.jinja"
AUTHOR = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]

Times = dict[str, dict[str, list[float]]]


def main(
    rounds: Annotated[int, typer.Option(help="How often each is measured.")] = 15,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure copies and updates of three templates in turn."""
    with failures_told(), tempfile.TemporaryDirectory() as folder:
        templates = make_templates(Path(folder))
        seconds: Times = {name: {"copy": [], "update": []} for name in templates}
        for _ in range(rounds + 1):  # the first one warms up
            for name, template in templates.items():
                copied, updated = copy_and_update(template, Path(folder) / "project")
                seconds[name]["copy"].append(copied)
                seconds[name]["update"].append(updated)
    measured = {name: {what: times[1:] for what, times in both.items()} for name, both in seconds.items()}
    results = {
        "date": date.today().isoformat(),
        "machine": machine() | {"copier": metadata.version("copier")},
        "seconds": measured,
    }
    out.write_text(json.dumps(results, indent=1) + "\n")
    for name, both in measured.items():
        typer.echo(f"{name}: " + ", ".join(f"{what} {statistics.median(times):.2f} s" for what, times in both.items()))


def make_templates(folder: Path) -> dict[str, Path]:
    """Make a git repository of each template, with the versions 1.0.0 and 2.0.0, which differ in one line."""
    ours = folder / "ours"
    git(folder, "clone", "--quiet", "--no-tags", str(TEMPLATE), str(ours))
    git(ours, "gc", "--quiet")
    subprocess.run([*COPIER, "copy", "-q", "--defaults", ours, folder / "made"], env=ENV, check=True)
    sizes = [file.stat().st_size for file in (folder / "made").rglob("*") if file.is_file()]
    shutil.rmtree(folder / "made")
    templates = {
        "an empty template": plain_template(folder / "empty", []),
        "as many files, no questions": plain_template(folder / "plain", sizes),
        "this template": ours,
    }
    for template in templates.values():
        readme = next((template / "template").glob("README.md*"))
        for version in ("1.0.0", "2.0.0"):
            readme.write_text(readme.read_text() + f"\nThis is version {version}.\n")
            git(template, "add", "--all")
            git(template, *AUTHOR, "commit", "--quiet", "--message", version)
            git(template, "tag", version)
    return templates


def plain_template(folder: Path, sizes: list[int]) -> Path:
    """Make a template with a file of each of these sizes (bytes), and a README."""
    inner = folder / "template"
    inner.mkdir(parents=True)
    (folder / "copier.yml").write_text("_subdirectory: template\n")
    (inner / ANSWERS).write_text("{{ _copier_answers|to_nice_yaml -}}\n")
    (inner / "README.md").write_text("# Empty\n")
    for i, size in enumerate(sizes[2:]):
        (inner / f"file-{i}.txt").write_text("a line of text\n" * (size // 15))
    git(folder, "init", "--quiet")
    return folder


def copy_and_update(template: Path, project: Path) -> tuple[float, float]:
    """Make a project of version 1.0.0 and update it to 2.0.0. Returns what each took (seconds)."""
    folder = project.parent
    shutil.rmtree(project, ignore_errors=True)
    copied = seconds_of([*COPIER, "copy", "-q", "--defaults", "--vcs-ref", "1.0.0", template, project], folder, ENV)
    git(project, "init", "--quiet")
    git(project, "add", "--all")
    git(project, *AUTHOR, "commit", "--quiet", "--message", "made")
    updated = seconds_of([*COPIER, "update", "-q", "--defaults", project], folder, ENV)
    if "This is version 2.0.0." not in (project / "README.md").read_text():
        raise CommandError("the update has not arrived")
    return copied, updated


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder."""
    subprocess.run(["git", "-C", str(folder), *arguments], env=ENV, check=True)


if __name__ == "__main__":
    typer.run(main)
