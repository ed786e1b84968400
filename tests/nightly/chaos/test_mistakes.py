"""A nemesis that finds nothing proves nothing: it finds the mistakes that an owner may make, and how to repeat them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from generator.cli.main import app
from tests.conftest import Render
from tests.support.chaos import forked
from tools.rewriting import Rewrite

from .conftest import slowness

AT_MOST = 60  # faults until a mistake is found


@dataclass(frozen=True)
class Mistake:
    """An edit that breaks a project, and what the nemesis must say of it."""

    file: str  # below the package
    edit: Rewrite
    said: str  # as a pattern


MISTAKES = {
    "an epoch begins anew after a resume": Mistake(
        "runtime/loading.py",
        Rewrite("self.sampler.set_epoch($EPOCH, skip=$SKIP)", "self.sampler.set_epoch($EPOCH, skip=0)"),
        "model is another than without faults",
    ),
    "what was recorded after the checkpoint stays": Mistake(
        "runtime/tracking.py",
        Rewrite("end_of_rows(start_step, path)", "end_of_rows(10**9, path)"),
        "is recorded more than once at step",
    ),
    "a signal ends the program": Mistake(
        "runtime/exits.py", Rewrite("signal.signal(number, self._remember)", "pass"), "no line that has the cause"
    ),
    "a checkpoint is written where the last one is": Mistake(
        "runtime/checkpoint.py",
        Rewrite(
            'path = self.folder / f"step-{$STEP:08d}.pt"',
            'path = self.folder / f"step-{max(5, $STEP // 20 * 20):08d}.pt"',  # four saves have one name
        ),
        "steps are lost",
    ),
    "a full disk is no error of the user": Mistake(
        "runtime/storage.py", Rewrite("raise UserError($TEXT) from error", "raise", "whole_file"), "exit code 1"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, own_project: Render, tmp_path: Path) -> None:
    place, mistake = own_project(logging="csv"), MISTAKES[name]
    mistake.edit.apply(place / "ddp_project" / mistake.file)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=slowness)
    verdicts = nemesis.run_until(AT_MOST, seed=0)
    wrong = next(verdict.wrong for verdict in verdicts if verdict.wrong)
    assert re.search(mistake.said, "\n".join(wrong))


def test_the_command_shows_how_to_repeat_what_fails(own_project: Render) -> None:
    place = own_project(logging="csv")
    mistake = MISTAKES["an epoch begins anew after a resume"]
    mistake.edit.apply(place / "ddp_project" / mistake.file)
    failed = CliRunner().invoke(app, ["chaos", str(place), "--faults", str(AT_MOST)])
    assert failed.exit_code == 1, failed.output
    command = shlex.split(failed.stdout)
    assert command[:3] == ["ddp-template", "chaos", str(place)]
    again = CliRunner().invoke(app, command[1:])
    assert again.exit_code == 1, again.output
    assert mistake.said in again.output
