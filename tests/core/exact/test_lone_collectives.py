"""No rank waits for another one that does something else: decisions are shared, and nobody reduces alone."""

import math
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Measured, Render
from tests.support.forked_runs import Program, ends_of, run_all
from tests.support.processes import scaled
from tools.rewriting import Rewrite

OPTIONS = {"global_batch_size": 24, "max_steps": 6, "save_every": 2, "epochs": 3}
TIMEOUT = 3  # seconds that a collective waits, on a machine that is not slow
LONE = "if torch.distributed.get_rank() == 0:\n    torch.distributed.all_reduce(torch.zeros(1))"
THEN = f"{{}}\n{LONE}"
# Where rank 0 is made to reduce alone.
PLACES = {
    "evaluation": ("evaluate.py", Rewrite("$MODEL.eval()", THEN, "evaluate")),
    "saving": ("ddp_project/runtime/checkpoint.py", Rewrite("self.folder.mkdir($$$A)", THEN, "Checkpoints._write")),
    "leaving": ("train.py", Rewrite("return exits.ExitCode.DONE", f"{LONE}\n{{}}", "main")),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_lone_collective_would_end_the_run(place: str, small: Render, tmp_path: Path, measured: Measured) -> None:
    """So the runs of all other tests, which end well, hold none."""
    project = shutil.copytree(small(), tmp_path / "project")
    name, edit = PLACES[place]
    edit.apply(project / name)
    run_all([[Program(small(), tmp_path / "sound", OPTIONS, deadline=20)]])
    timeout = math.ceil(scaled(TIMEOUT))
    spoiled = Program(project, tmp_path / "spoiled", OPTIONS | {"timeout": timeout}, deadline=20)
    [[ended]] = ends_of([[spoiled]])
    assert None not in ended.codes, "a rank was left waiting"
    assert ended.codes != [0, 0]
    # What rank 0 alone saves is written while its main thread tells the others that it is still at work.
    assert re.search("in (all_reduce|broadcast)|must call the same collectives", ended.output[0]), "it must fail"
    measured("alone", f"{place}, with --timeout {timeout}: the run has ended after (seconds)", round(ended.seconds, 1))
