"""A project's own tests fail where its owner breaks the loop, or what a run survives, in one of the classic ways."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.conftest import Measured, Render
from tests.support.processes import output_of
from tools.rewriting import Rewrite

NUMBERS = "test_any_number_of_processes_equals_a_plain_loop"
RESUME = "test_a_run_that_is_stopped_and_resumed_ends_the_same"
KILL = "test_a_run_that_is_killed_while_it_saves_goes_on"
STOP = "test_a_signal_to_one_rank_stops_all_after_the_same_step"
DAMAGE = "test_a_damaged_checkpoint_gives_way_to_the_one_before"
TESTS = {NUMBERS: "exact", RESUME: "exact", KILL: "faults", STOP: "faults", DAMAGE: "faults"}


@dataclass(frozen=True)
class Mistake:
    """An edit of a file, and the test that must fail by it."""

    name: str
    file: str
    edit: Rewrite
    test: str


MISTAKES = [
    Mistake(
        "every epoch has the same order",
        "ddp_project/runtime/loading.py",
        Rewrite("$SAMPLER.set_epoch($EPOCH, $$$A)", "$SAMPLER.set_epoch(0, $$$A)"),
        NUMBERS,
    ),
    Mistake(
        "a short window is divided by --accum-steps",
        "train.py",
        Rewrite("run.update.backward($$$LOSS, len($N))", "run.update.backward($$$LOSS, run.config.accum_steps)"),
        NUMBERS,
    ),
    Mistake(
        "gradients are never set to zero",
        "train.py",
        Rewrite("$OPTIMIZER.zero_grad()", ""),
        NUMBERS,
    ),
    Mistake(
        "the first backward pass of a window reduces, not the last",
        "train.py",
        Rewrite("nullcontext() if $I == $LAST else $NO_SYNC", "nullcontext() if $I == 1 else $NO_SYNC"),
        NUMBERS,
    ),
    Mistake(
        "training goes past DistributedDataParallel",
        "train.py",
        Rewrite("run.ddp($BATCH)", "run.ddp.module($BATCH)"),
        NUMBERS,
    ),
    Mistake(
        "clipping is forgotten",
        "train.py",
        Rewrite("torch.nn.utils.clip_grads_with_norm_($WEIGHTS, $LARGEST, $NORM)", "pass"),
        NUMBERS,
    ),
    Mistake(
        "the learning rate stays at its first value",
        "train.py",
        Rewrite('$GROUP["lr"] = $LR', '$GROUP["lr"] = run.config.lr'),
        NUMBERS,
    ),
    Mistake(
        "every rank trains on the same samples",
        "ddp_project/runtime/sampling.py",
        Rewrite("self.skip + $OWN", "self.skip"),
        NUMBERS,
    ),
    Mistake(
        "evaluation drops what does not fill a batch of every rank",
        "ddp_project/runtime/sampling.py",
        Rewrite("Batches($SAMPLES, $SIZE, world)", "Batches($SAMPLES - $SAMPLES % world.world_size, $SIZE, world)"),
        NUMBERS,
    ),
    Mistake(
        "rank 0 logs its own validation loss",
        "ddp_project/runtime/meter.py",
        Rewrite("reduce_tensor($COUNTS, $OP)", "({} if self.finite_only else $COUNTS)", "Meter.reduce"),
        NUMBERS,
    ),
    Mistake(
        "the model is left in evaluation mode",
        "train.py",
        Rewrite("$MODEL.train()", ""),
        RESUME,
    ),
    Mistake(
        "an epoch begins anew after a stop",
        "ddp_project/runtime/loading.py",
        Rewrite("$SAMPLER.set_epoch($EPOCH, skip=$X)", "$SAMPLER.set_epoch($EPOCH, skip=0)"),
        RESUME,
    ),
    Mistake(
        "the optimizer is not saved",
        "train.py",
        Rewrite("$M.Checkpoints($$$PARTS, optimizer=$X, $$$REST)", "$M.Checkpoints($$$PARTS, $$$REST)"),
        RESUME,
    ),
    Mistake(
        "random numbers begin anew after a stop",
        "ddp_project/runtime/checkpoint.py",
        Rewrite("set_generator_states($X)", ""),
        RESUME,
    ),
    Mistake(
        "the running statistics of a rank are not restored",
        "ddp_project/runtime/checkpoint.py",
        Rewrite("set_buffer($$$A)", "pass", "set_rank_state"),
        RESUME,
    ),
    Mistake(
        "files are written in their place",
        "ddp_project/runtime/storage.py",
        Rewrite("os.replace($$$A)", "shutil.copy($$$A)", "whole_file"),
        KILL,
    ),
    Mistake(
        "a stop writes no checkpoint",
        "train.py",
        Rewrite("run.checkpoints.save(wait=True)", "", "main"),
        STOP,
    ),
    Mistake(
        "each rank looks at its own signals alone",
        "train.py",
        Rewrite("run.stop.agreed = $X", "run.stop.agreed = run.stop.received"),
        STOP,
    ),
    Mistake(
        "a damaged checkpoint is not noticed",
        "ddp_project/runtime/checkpoint.py",
        Rewrite("problem = $X", "problem = None", "first_whole"),
        DAMAGE,
    ),
]


@pytest.fixture(scope="module")
def verdicts(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the project's own tests say of each mistake, by its name."""
    folder = tmp_path_factory.mktemp("mistakes")

    def verdict(number: int, mistake: Mistake) -> str:
        place = shutil.copytree(project(), folder / str(number))
        mistake.edit.apply(place / mistake.file)
        tests = f"tests/test_{TESTS[mistake.test]}.py"
        command = [sys.executable, "-m", "pytest", "-q", "-k", mistake.test, tests]
        return output_of(command, place, code=None)

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(verdict, range(len(MISTAKES)), MISTAKES)
        return dict(zip((mistake.name for mistake in MISTAKES), found, strict=True))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(mistake: Mistake, verdicts: dict[str, str], measured: Measured) -> None:
    said = verdicts[mistake.name]
    failed = re.findall(r"^FAILED tests/test_\w+\.py::(\w+)", said, re.MULTILINE)
    measured("mistakes", mistake.name, len(failed))
    assert mistake.test in failed, said
