"""A project's own tests fail where its owner breaks the loop, or what a run survives, in one of the classic ways."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

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
TRAIN = "train.py"
# Parts of what is edited.
BY_LENGTH, BY_OPTION = (f"run.update.backward($$$LOSS, {by})" for by in ("len($N)", "run.config.accum_steps"))
BATCH, DROP = "EvaluationSampler($SAMPLES{}, $SIZE, env)", " - $SAMPLES % env.world_size"
ONCE, SAVED = "nullcontext() if $I == {} else $NO_SYNC", "$M.Checkpoints($$$PARTS,"
OWN_COUNTS, REDUCE = "({} if self.finite_only else $C)", "MetricAccumulator.reduce"
FILES = ("checkpoint", "data_loading", "metrics", "sampling", "storage")
CHECKPOINT, LOADING, METER, SAMPLING, STORAGE = (f"ddp_project/runtime/{name}.py" for name in FILES)
# By the test that must fail: mistakes, each with the file and the edit.
MISTAKES: dict[str, dict[str, tuple[str, ...]]] = {
    NUMBERS: {
        "every epoch has the same order": (LOADING, "$S.set_epoch($EPOCH, $$$A)", "$S.set_epoch(0, $$$A)"),
        "a short window is divided by --accum-steps": (TRAIN, BY_LENGTH, BY_OPTION),
        "gradients are never set to zero": (TRAIN, "$OPTIMIZER.zero_grad()", ""),
        "the first backward pass of a window reduces, not the last": (TRAIN, ONCE.format("$LAST"), ONCE.format("1")),
        "training goes past DistributedDataParallel": (TRAIN, "run.ddp($BATCH)", "run.ddp.module($BATCH)"),
        "clipping is forgotten": (TRAIN, "torch.nn.utils.clip_grads_with_norm_($WEIGHTS, $LARGEST, $NORM)", "pass"),
        "the learning rate stays at its first value": (
            TRAIN,
            "run.update.set_lr(lr)",
            "run.update.set_lr(run.config.lr)",
        ),
        "every rank trains on the same samples": (SAMPLING, "self.skip + $OWN", "self.skip"),
        "evaluation drops what does not fill a batch of every rank": (LOADING, BATCH.format(""), BATCH.format(DROP)),
        "rank 0 logs its own validation loss": (METER, "reduce_tensor($C, $OP)", OWN_COUNTS, REDUCE),
    },
    RESUME: {
        "the model is left in evaluation mode": ("evaluate.py", "$MODEL.train()", "", "evaluate"),
        "an epoch begins anew after a stop": (LOADING, "$S.set_epoch($E, skip=$X)", "$S.set_epoch($E, skip=0)"),
        "the optimizer is not saved": (TRAIN, f"{SAVED} optimizer=$X, $$$REST)", f"{SAVED} $$$REST)"),
        "random numbers begin anew after a stop": (CHECKPOINT, "set_generator_states($X)", ""),
        "the running statistics of a rank are not restored": (CHECKPOINT, "set_buffer($$$A)", "pass", "set_rank_state"),
    },
    KILL: {"files are written in their place": (STORAGE, "os.replace($$$A)", "shutil.copy($$$A)", "atomic_write")},
    STOP: {
        "a stop writes no checkpoint": (TRAIN, "run.checkpoints.save(wait=True)", "", "main"),
        "each rank looks at its own signals alone": (TRAIN, "run.$S.agreed = $X", "run.$S.agreed = run.$S.received"),
    },
    DAMAGE: {"a damaged checkpoint is not noticed": (CHECKPOINT, "problem = $X", "problem = None", "first_whole")},
}
CASES = [(test, name) for test, mistakes in MISTAKES.items() for name in mistakes]


@pytest.fixture(scope="module")
def verdicts(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mistakes")

    def verdict(number: int) -> str:
        test, name = CASES[number]
        place, (file, *edit) = shutil.copytree(project(), folder / str(number)), MISTAKES[test][name]
        Rewrite(*edit).apply(place / file)
        command = [sys.executable, "-m", "pytest", "-q", "-k", test, f"tests/test_{TESTS[test]}.py"]
        return output_of(command, place, code=None)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip((name for _, name in CASES), pool.map(verdict, range(len(CASES))), strict=True))


@pytest.mark.parametrize(("test", "name"), CASES)
def test_a_mistake_is_found(test: str, name: str, verdicts: dict[str, str], measured: Measured) -> None:
    failed = re.findall(r"^FAILED tests/test_\w+\.py::(\w+)", verdicts[name], re.MULTILINE)
    measured("mistakes", name, len(failed))
    assert test in failed, verdicts[name]
