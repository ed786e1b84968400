"""Measures `copier copy` and `copier update`: python -m benchmarks.copying

Both are run in turn for this template as it is released, for it as a tag of the whole repository, for an empty one, and
for one that has the files of a project as they are and no question: what that takes, Copier takes for any template that
writes them. Copier does one thing at a time, so its processor time is what its user waits for, and other work on the
machine hardly changes it. The results are in benchmarks/results/copying.json, from which `ddp-template docs` makes a
table in docs/speed.md.
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
from generator.render.git import SETTINGS, run
from generator.update.history import steps_of_release
from tools.docs.starting import SAME_FILES

from .clock import processor_seconds_of
from .failures import CommandError, failures_told
from .machines import machine

RESULTS = TEMPLATE / "benchmarks" / "results" / "copying.json"
ENV = {**os.environ, **SETTINGS}
COPIER = [sys.executable, "-m", "copier"]
ANSWERS = "{{ _copier_conf.answers_file }}.jinja"
VERSIONS = ("1.0.0", "2.0.0")

Times = dict[str, dict[str, list[float]]]


def main(
    rounds: Annotated[int, typer.Option(help="How often each is measured.")] = 15,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the results go.")] = RESULTS,
) -> None:
    """Measure copies and updates of these templates in turn."""
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
    whole, released, same = folder / "whole", folder / "released", folder / "same"
    run(folder, "clone", "--quiet", "--no-tags", str(TEMPLATE), str(whole))
    run(folder, "clone", "--quiet", "--no-tags", str(TEMPLATE), str(released))
    made = folder / "made"
    subprocess.run([*COPIER, "copy", "-q", "--defaults", "--vcs-ref", "HEAD", whole, made], env=ENV, check=True)
    plain_template(same, made)
    plain_template(folder / "empty")
    templates = {
        "an empty template": folder / "empty",
        SAME_FILES: same,
        "this template": released,
        "this template, if a tag had the whole repository": whole,
    }
    for template in templates.values():
        add_versions(template, as_released=template == released)
    return templates


def plain_template(folder: Path, files: Path | None = None) -> None:
    """Make a template without a question that writes these files, or a README alone."""
    inner = folder / "template"
    folder.mkdir()
    (folder / "copier.yml").write_text("_subdirectory: template\n")
    if files:
        shutil.move(files, inner)
        (inner / ".copier-answers.yml").unlink()
    else:
        inner.mkdir()
        (inner / "README.md").write_text("# Empty\n")
    (inner / ANSWERS).write_text("{{ _copier_answers|to_nice_yaml -}}\n")
    run(folder, "init", "--quiet")


def add_versions(template: Path, as_released: bool) -> None:
    """Commit and tag the versions, and pack the repository as a server would; a release tags the template alone."""
    readme = next((template / "template").glob("README.md*"))
    for version in VERSIONS:
        readme.write_text(readme.read_text() + f"\nThis is version {version}.\n")
        run(template, "add", "--all", "--force", "--", "copier.yml", "template")
        run(template, "commit", "--quiet", "--message", version)
        if as_released:
            *local, _ = steps_of_release(version, run(template, "rev-parse", "HEAD"))
            steps = "\n".join(local)
            subprocess.run(["bash", "-euc", steps], cwd=template, env=ENV, check=True, capture_output=True)
        else:
            run(template, "tag", f"v{version}")
    run(template, "gc", "--quiet", "--prune=now")


def copy_and_update(template: Path, project: Path) -> tuple[float, float]:
    """Make a project of version 1.0.0 and update it to 2.0.0. Returns what each took (seconds)."""
    shutil.rmtree(project, ignore_errors=True)
    copied = processor_seconds_of(
        [*COPIER, "copy", "-q", "--defaults", "--vcs-ref", f"v{VERSIONS[0]}", template, project], project.parent, ENV
    )
    run(project, "init", "--quiet")
    run(project, "add", "--all")
    run(project, "commit", "--quiet", "--message", "made")
    updated = processor_seconds_of([*COPIER, "update", "-q", "--defaults", project], project.parent, ENV)
    if f"This is version {VERSIONS[1]}." not in (project / "README.md").read_text():
        raise CommandError("the update has not arrived")
    return copied, updated


if __name__ == "__main__":
    typer.run(main)
