"""The update gate: every released version can be updated to the template as it is, and loses nothing."""

import re
from pathlib import Path

from generator.render.workers import Workers
from generator.update.gate import PARTS, Gate
from tests.core.test_releases import run_command
from tests.support.versions import MadeUp


def test_no_update_of_a_released_version_loses_anything(workers: Workers, scratch: Path) -> None:
    parts = Gate().run(workers, scratch)
    wrong = [f"{part.name}: {words}" for part in parts for words in part.wrong]
    assert not wrong, "\n".join(wrong)
    assert [part.name for part in parts] == [*PARTS]
    assert all(part.cases for part in parts if part.name != "edits")


def test_the_gate_as_a_command(ready: MadeUp) -> None:
    ready.replace("template/README.md.jinja", "## Start\n", "## Start [/bold] {{ range(10 ** 5) | random }}\n")
    answers = ("task=digits", "launcher=spawn", "amp=none", "logging=csv")
    only = [word for answer in answers for word in ("--only", answer)]
    done = run_command(ready.folder, "update-check", "v1.0.0", *only, "--pairs", "1")
    assert done.returncode == 1, done.stderr
    assert "README.md has another content" in done.stdout
    rows = re.findall(r"^(\w+) .* (\d+) +(\d+) +[\d.]+ *$", done.stdout, flags=re.MULTILINE)
    assert [name for name, _, wrong in rows if wrong != "0"] == ["answers", "history"]
    assert dict((name, cases) for name, cases, _ in rows)["history"] == "7"
    wrong = re.findall("^history [^ ].*: .*", done.stdout, flags=re.MULTILINE)
    assert wrong
    assert all("spawn-" in each for each in wrong)


def test_a_version_whose_updates_lose_something_is_refused(ready: MadeUp) -> None:
    (ready.folder / "template" / ".gitignore.jinja").unlink()
    done = run_command(ready.folder, "release-check", "1.1.0")
    assert done.returncode == 1, done.stderr
    assert ".gitignore is not written any more" in done.stdout
    assert "error: 1.1.0 cannot be released" in done.stderr
    assert "git tag" not in done.stdout
