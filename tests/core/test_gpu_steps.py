"""scripts/gpu.sh goes on after a failure, repeats nothing that has succeeded, and says how each step ended."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from generator.answers.questions import TEMPLATE
from tools import gpu
from tools.gpu import Step

Invoke = Callable[..., Result]


def nothing_missing(out: Path, device: str) -> str:
    return ""


def step(name: str, commands: str, missing: Callable[[Path, str], str] = nothing_missing) -> Step:
    return Step(name, f"what {name} is", f'echo {name} >> "$OUT/ran"\n{commands}', missing)


# Steps that show nothing of what docs/exact.md promises: facts, rates, and what others need.
NO_PROMISE = re.compile("facts|speed-.*|docs|build-apex")

STEPS = (
    step("first", 'echo told; [ -z "$(ls "$WORK")" ]; [ -d "$PACKED" ]'),
    step("broken", "echo why >&2; exit 3; true"),
    step("absent", "true", lambda out, device: "no GPU"),
    step("last", "true"),
)


def test_each_promise_on_gpus_names_what_has_shown_it_and_the_step_that_will() -> None:
    section = (TEMPLATE / "docs" / "exact.md").read_text().split("\n## On GPUs\n")[1]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    named = set()
    for _, shown, test, steps in rows[1:]:
        assert re.match(r"(one rank|one process|two ranks|run on|simulated|read|not yet)\b", shown), shown
        assert (TEMPLATE / test.strip("`")).is_file()
        named |= {*steps.split(", ")}
    assert named == {each.name for each in gpu.STEPS if not NO_PROMISE.fullmatch(each.name)}


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs the command with these steps, and results in tmp_path/out."""
    monkeypatch.setattr(gpu, "STEPS", STEPS)
    app = typer.Typer()
    app.command()(gpu.main)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--out", str(tmp_path / "out"), *arguments])

    return run


def ran(tmp_path: Path) -> list[str]:
    file = tmp_path / "out" / "ran"
    found = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def summary(tmp_path: Path) -> dict[str, str]:
    lines = (tmp_path / "out" / "summary.md").read_text().splitlines()[2:]
    return {name: told for _, name, told, *_ in (map(str.strip, line.split("|")) for line in lines)}


def test_a_failure_ends_no_other_step_and_is_the_exit_code(invoke: Invoke, tmp_path: Path) -> None:
    done = invoke()
    assert done.exit_code == 1, done.output
    assert ran(tmp_path) == ["first", "broken", "last"]
    ended = {"first": "ok", "broken": "failed: exit code 3", "absent": "skipped: no GPU", "last": "ok"}
    assert summary(tmp_path) == ended
    assert done.stdout.endswith((tmp_path / "out" / "summary.md").read_text())
    assert (tmp_path / "out" / "first.log").read_text() == "told\n"
    assert (tmp_path / "out" / "broken.log").read_text() == "why\n"
