"""A selection for `ddp-template check` that makes no sense is refused in one line."""

import pytest

from tests.support.cli import ddp_template


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["launcher=srun"], "launcher=srun is no choice: launcher may be torchrun, "),
        (["scheduler=slurm"], "scheduler is no question with choices: those are task, "),
        (["torchrun"], "torchrun is neither KEY=VALUE nor the name of a combination"),
        (["launcher=spawn", "backend=mpi"], "no legal combination has launcher=spawn backend=mpi"),
        (["--shard", "5/4"], "--shard 5/4 does not exist"),
        (["--cover", "9"], "--cover 9 is impossible: choose 1 to 6"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = ddp_template("check", *arguments, code=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line
