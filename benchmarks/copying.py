"""Measures `copier copy` and `copier update`.

Both run in turn for this template as it is released, for this template as a tag of the whole repository, for an empty
one, and for one without a question that has the files of a project as they are: Copier takes that for any template that
writes them. Copier does one thing at a time, so its processor time is what its user waits for, and other work on the
machine hardly changes it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from generator.answers.questions import TEMPLATE
from generator.render.git import SETTINGS, run
from generator.update.history import steps_of_release
from tools.docs.starting import SAME_FILES

from . import runner
from .runner import CommandError, Record, in_turn

ENV = {**os.environ, **SETTINGS}
COPIER = [sys.executable, "-m", "copier"]
ANSWERS = "{{ _copier_conf.answers_file }}.jinja"
VERSIONS = ("1.0.0", "2.0.0")


@dataclass
class Benchmark(runner.Benchmark):
    """The processor time of copies and updates of these templates."""

    rounds: int = 15

    def machine(self) -> Record:
        """Return the machine, and the version of Copier."""
        return runner.machine() | {"copier": metadata.version("copier")}

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield the records of all templates."""
        templates = make_templates(folder)
        runs = {name: partial(copy_and_update, place, folder / "project") for name, place in templates.items()}
        *_, found = in_turn(runs, self.rounds, warm_up=1)
        yield [{"template": name, **numbers} for name, numbers in found.items()]


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


def copy_and_update(template: Path, project: Path) -> Record:
    """Make a project of version 1.0.0 and update it to 2.0.0. Returns the seconds of each."""
    shutil.rmtree(project, ignore_errors=True)
    copied = processor_seconds_of("copy", "-q", "--defaults", "--vcs-ref", f"v{VERSIONS[0]}", template, project)
    for words in ("init --quiet", "add --all", "commit --quiet --message made"):
        run(project, *words.split())
    updated = processor_seconds_of("update", "-q", "--defaults", project)
    if f"This is version {VERSIONS[1]}." not in (project / "README.md").read_text():
        raise CommandError("the update has not arrived")
    return {"copy": round(copied, 2), "update": round(updated, 2)}


def processor_seconds_of(*words: str | Path) -> float:
    """Run Copier, and return the processor time of it and of all that it starts and waits for."""
    before = os.times()
    runner.run([*COPIER, *words], Path.cwd(), ENV)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
