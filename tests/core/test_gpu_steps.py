"""scripts/gpu.sh goes on after a failure, repeats nothing that has succeeded, and says how each step ended."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tools import gpu
from tools.gpu import Step


def nothing_missing(out: Path, device: str) -> str:
    return ""


def step(name: str, commands: str, missing: Callable[[Path, str], str] = nothing_missing) -> Step:
    return Step(name, f"what {name} is", f'echo {name} >> "$OUT/ran"\n{commands}', missing)


STEPS = (
    step("first", 'echo told; [ -z "$(ls "$WORK")" ]; [ -d "$PACKED" ]'),
    step("broken", "echo why >&2; exit 3; true"),
    step("absent", "true", lambda out, device: "no GPU"),
    step("last", "true"),
)


def test_a_failure_ends_no_other_step_and_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STEPS", STEPS)
    app, out = typer.Typer(), tmp_path / "out"
    app.command()(gpu.main)
    done = CliRunner().invoke(app, ["--out", str(out)])
    assert done.exit_code == 1, done.output
    assert (out / "ran").read_text().split() == ["first", "broken", "last"]
    rows = [[part.strip() for part in line.split("|")] for line in (out / "summary.md").read_text().splitlines()[2:]]
    ended = {"first": "ok", "broken": "failed: exit code 3", "absent": "skipped: no GPU", "last": "ok"}
    assert {name: told for _, name, told, *_ in rows} == ended
    assert done.stdout.endswith((out / "summary.md").read_text())
    assert [(out / f"{name}.log").read_text() for name in ("first", "broken")] == ["told\n", "why\n"]
