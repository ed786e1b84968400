"""A nemesis that finds nothing proves nothing: it finds the mistakes that an owner may make, and how to repeat them."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from generator.cli.main import app
from tests.conftest import Render
from tests.support.chaos import forked, streaming
from tests.support.processes import scaled
from tools.rewriting import Rewrite

AT_MOST = 120  # faults until a mistake is found: whether one hits a save, say, is a matter of time
FORGOTTEN = Rewrite("self.sampler.set_epoch($EPOCH, skip=$SKIP)", "self.sampler.set_epoch($EPOCH, skip=0)")
NAME = 'path = self.folder / f"step-{%s:08d}.pt"'
FOUR_SAVES_OF_ONE_NAME = Rewrite(NAME % "$STEP", NAME % "max(5, $STEP // 20 * 20)")
STAYING = Rewrite("end_of_rows(start_step, path)", "end_of_rows(10**9, path)")
DEAF = Rewrite("signal.signal(number, self._remember)", "pass")
PLAIN_RAISE = Rewrite("raise UserError($TEXT) from error", "raise", "atomic_write")
WHOLE_BLOCK = Rewrite("number, shard, sample, given = self.place", "number, shard, sample, given = *self.place[:3], 0")
MISTAKES = {  # by name: the file in runtime/, the edit, and what the nemesis says of it, as a pattern
    "what was recorded after the checkpoint stays": ("tracking.py", STAYING, "is recorded more than once at step"),
    "a signal ends the program": ("exits.py", DEAF, "no line that has the cause"),
    "a checkpoint is written where the last one is": ("checkpoint.py", FOUR_SAVES_OF_ONE_NAME, "steps are lost"),
    "a full disk is no error of the user": ("storage.py", PLAIN_RAISE, "exit code 1"),
    "a shuffled block of a stream begins anew": ("streams.py", WHOLE_BLOCK, "model is another than without faults"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, own_project: Render, tmp_path: Path) -> None:
    place, (file, edit, said) = own_project(logging="csv"), MISTAKES[name]
    edit.apply(place / "ddp_project" / "runtime" / file)
    kinds = possible_faults(Need.DISK)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=lambda: scaled(2))
    nemesis.options = streaming(place) if file == "streams.py" else ()
    wrong = next(verdict.wrong for verdict in nemesis.run_until(AT_MOST, seed=0) if verdict.wrong)
    assert re.search(said, "\n".join(wrong))


def test_an_epoch_that_begins_anew_is_found_and_the_command_shows_how_to_repeat_it(own_project: Render) -> None:
    place = own_project(logging="csv")
    FORGOTTEN.apply(place / "ddp_project" / "runtime" / "data_loading.py")
    failed = CliRunner().invoke(app, ["chaos", str(place), "--faults", str(AT_MOST)])
    assert failed.exit_code == 1, failed.output
    command = shlex.split(failed.stdout)
    assert command[:3] == ["ddp-template", "chaos", str(place)]
    again = CliRunner().invoke(app, command[1:])
    assert again.exit_code == 1, again.output
    assert "model is another than without faults" in again.output
