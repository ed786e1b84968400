"""A project's own tests fail where its owner breaks the loop, or what a run survives, in one of the classic ways."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.conftest import Measured, Render
from tests.pace import seconds

NUMBERS = "test_any_number_of_processes_equals_a_plain_loop"
RESUME = "test_a_run_that_is_stopped_and_resumed_ends_the_same"
KILL = "test_a_run_that_is_killed_while_it_saves_goes_on"
STOP = "test_a_signal_to_one_rank_stops_all_after_the_same_step"
DAMAGE = "test_a_damaged_checkpoint_gives_way_to_the_one_before"
TESTS = {NUMBERS: "exact", RESUME: "exact", KILL: "faults", STOP: "faults", DAMAGE: "faults"}


@dataclass(frozen=True)
class Mistake:
    """An edit, and the test that must fail by it."""

    name: str
    file: str
    before: str
    after: str
    test: str


MISTAKES = [
    Mistake(
        "every epoch has the same order",
        "train.py",
        "sampler.set_epoch(progress.epoch, skip=",
        "sampler.set_epoch(0, skip=",
        NUMBERS,
    ),
    Mistake(
        "a short window is divided by --accum-steps",
        "train.py",
        "(loss / len(window)).backward()",
        "(loss / run.config.accum_steps).backward()",
        NUMBERS,
    ),
    Mistake(
        "gradients are never set to zero",
        "train.py",
        "    run.optimizer.zero_grad()\n",
        "",
        NUMBERS,
    ),
    Mistake(
        "the first backward pass of a window reduces, not the last",
        "train.py",
        "nullcontext() if i == len(window)",
        "nullcontext() if i == 1",
        NUMBERS,
    ),
    Mistake(
        "training goes past DistributedDataParallel",
        "train.py",
        "logits = run.ddp(images)",
        "logits = run.model(images)",
        NUMBERS,
    ),
    Mistake(
        "clipping is forgotten",
        "train.py",
        "gradient_norm(run.optimizer, run.config.clip_norm)",
        "gradient_norm(run.optimizer, 0)",
        NUMBERS,
    ),
    Mistake(
        "the learning rate stays at its first value",
        "train.py",
        'group["lr"] = lr\n',
        'group["lr"] = run.config.lr\n',
        NUMBERS,
    ),
    Mistake(
        "every rank trains on the same samples",
        "ddp_project/loaders.py",
        "first = self.skip + self.world.rank * size",
        "first = self.skip",
        NUMBERS,
    ),
    Mistake(
        "evaluation drops what does not fill a batch of every rank",
        "ddp_project/loaders.py",
        "range(world.rank, samples, world.world_size)",
        "range(world.rank, samples - samples % world.world_size, world.world_size)",
        NUMBERS,
    ),
    Mistake(
        "rank 0 logs its own validation loss",
        "train.py",
        'loss_sum, correct, samples = reduce_tensor(totals.take(run.device), "sum").tolist()',
        "loss_sum, correct, samples = totals.take(run.device).tolist()",
        NUMBERS,
    ),
    Mistake(
        "the model is left in evaluation mode",
        "train.py",
        "    run.model.train()\n",
        "",
        RESUME,
    ),
    Mistake(
        "an epoch begins anew after a stop",
        "train.py",
        "skip=progress.samples_in_epoch",
        "skip=0",
        RESUME,
    ),
    Mistake(
        "the optimizer is not saved",
        "train.py",
        "Checkpoints(config, model, optimizer=optimizer)",
        "Checkpoints(config, model)",
        RESUME,
    ),
    Mistake(
        "random numbers begin anew after a stop",
        "ddp_project/checkpoint.py",
        '    set_generator_states(state["generators"])\n',
        "",
        RESUME,
    ),
    Mistake(
        "the running statistics of a rank are not restored",
        "ddp_project/checkpoint.py",
        '        buffer.copy_(state["buffers"][name])\n',
        "        pass\n",
        RESUME,
    ),
    Mistake(
        "files are written in their place",
        "ddp_project/files.py",
        "        os.replace(temporary, path)\n",
        "        shutil.copy(temporary, path)\n",
        KILL,
    ),
    Mistake(
        "a stop writes no checkpoint",
        "train.py",
        "            if run.stop.agreed:\n                run.checkpoints.save(progress)\n",
        "            if run.stop.agreed:\n",
        STOP,
    ),
    Mistake(
        "each rank looks at its own signals alone",
        "train.py",
        "run.stop.agreed = stops > 0",
        "run.stop.agreed = run.stop.received",
        STOP,
    ),
    Mistake(
        "a damaged checkpoint is not noticed",
        "ddp_project/checkpoint.py",
        "problem = Manifest(path.parent).problem(path)",
        "problem = None",
        DAMAGE,
    ),
]


@pytest.fixture(scope="module")
def verdicts(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the project's own tests say of each mistake, by its name."""
    folder = tmp_path_factory.mktemp("mistakes")

    def verdict(number: int, mistake: Mistake) -> str:
        place = shutil.copytree(project(), folder / str(number))
        text = (place / mistake.file).read_text()
        assert text.count(mistake.before) == 1, mistake.name
        (place / mistake.file).write_text(text.replace(mistake.before, mistake.after))
        tests = f"tests/test_{TESTS[mistake.test]}.py"
        command = [sys.executable, "-m", "pytest", "-q", "-k", mistake.test, tests]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=seconds(200))
        return done.stdout

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(verdict, range(len(MISTAKES)), MISTAKES)
        return dict(zip((mistake.name for mistake in MISTAKES), found, strict=True))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(mistake: Mistake, verdicts: dict[str, str], measured: Measured) -> None:
    said = verdicts[mistake.name]
    failed = re.findall(r"^FAILED tests/test_\w+\.py::(\w+)", said, re.MULTILINE)
    measured("mistakes", mistake.name, len(failed))
    assert mistake.test in failed, said
