"""The update gate: every released version can be updated to the template as it is, and loses nothing."""

import json
from pathlib import Path

from generator.render.workers import Workers
from generator.update.gate import PARTS, Gate
from tests.core.updates.test_releases import run_command
from tests.support.versions import MadeUp


def test_no_update_of_a_released_version_loses_anything(workers: Workers, scratch: Path) -> None:
    parts = Gate().run(workers, scratch)
    assert [wrong for part in parts for wrong in part.wrong] == []
    assert [part.name for part in parts] == [*PARTS]
    assert all(part.cases for part in parts if part.name != "edits")


def test_the_gate_as_a_command(ready: MadeUp, tmp_path: Path) -> None:
    ready.replace("template/README.md.jinja", "## Start\n", "## Start [/bold] {{ range(10 ** 5) | random }}\n")
    answers = ("task=digits", "launcher=spawn", "amp=none", "logging=csv")
    only = [word for answer in answers for word in ("--only", answer)]
    report = tmp_path / "report.json"
    done = run_command(ready.folder, "update-check", "v1.0.0", *only, "--pairs", "1", "--json", str(report))
    assert done.returncode == 1, done.stderr
    assert "README.md has another content" in done.stdout
    parts = {part["name"]: part for part in json.loads(report.read_text())}
    assert [name for name, part in parts.items() if part["wrong"]] == ["answers", "history"]
    assert parts["history"]["cases"] == 7
    assert all("spawn-" in wrong for wrong in parts["history"]["wrong"])


def test_a_version_whose_updates_lose_something_is_refused(ready: MadeUp) -> None:
    (ready.folder / "template" / ".gitignore").unlink()
    done = run_command(ready.folder, "release-check", "1.1.0")
    assert done.returncode == 1, done.stderr
    assert ".gitignore is not written any more" in done.stdout
    assert "error: 1.1.0 cannot be released" in done.stderr
    assert "git tag" not in done.stdout
