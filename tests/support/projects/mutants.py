"""Mistakes in a rendered project, and what a check must say of each."""

from typing import Any, NamedTuple

from tools.rewriting import Rewrite


class Mutant(NamedTuple):
    mistake: str
    stage: str  # of the check that must find it
    file: str
    edit: Rewrite
    words: str  # a regular expression of what the failure must hold
    answers: dict[str, object]

    @property
    def name(self) -> str:
        return self.mistake.replace(" ", "-")


def edited(pattern: str, replacement: str, words: str, function: str = "", **answers: str) -> tuple[Any, ...]:
    """Return an edit of this function or of any, the words, and the answers of the project: float32 by default."""
    return Rewrite(pattern, replacement, function), words, {"amp": "none", **answers}


OTHER_WEIGHTS, STEPS = "the weights from step 4 on", "train/loss is recorded at the steps"
COUNTS, REDUCE, SAVED = "reduce_tensor($COUNTS, $OP)", "MetricAccumulator.reduce", "$M.Checkpoints($$$PARTS,{} $$$REST)"
IN_LAST, CUT = "model in the last checkpoint", "$FILE.truncate(1000 if path.suffix == '.pt' else None)"
BY_OPTIMIZER, NO_STEPS = "change weights by the optimizer alone", r"the ranks took \[0, 0\] optimizer steps"
NO_FALL, UNSAVED = "the loss does not fall", SAVED.format("")
REDUCE_ALONE = "{}\nif env.rank == 1:\n    collectives.reduce_tensor(torch.zeros(1))"
# By the stage and the file: the mistakes.
MISTAKES: dict[tuple[str, str], dict[str, tuple[Any, ...]]] = {
    ("resume", "ddp_project/runtime/data_loading.py"): {
        "the sampler is not told the epoch": edited("$SAMPLER.set_epoch($$$A)", "pass", OTHER_WEIGHTS),
        "a resumed epoch starts again": edited("$S.set_epoch($EPOCH, skip=$X)", "$S.set_epoch($EPOCH)", OTHER_WEIGHTS),
    },
    ("train", "train.py"): {
        "every micro-batch is reduced": edited(
            "nullcontext() if $LAST else $NO_SYNC", "nullcontext()", "takes 2 collectives, and should take 1"
        ),
        "gradients are not averaged": edited("run.ddp($B)", "run.ddp.module($B)", BY_OPTIMIZER),
        "the optimizer does not step": edited("run.optimizer.step()", "pass", NO_STEPS),
        "the loss grows": edited("run.update.backward($L, $$$A)", "run.update.backward(-$L, $$$A)", NO_FALL),
        "a rank ends with another code": edited(
            "return exits.ExitCode.DONE", "return exits.ExitCode(env.rank)", "exit code 0, exit code 1", "main"
        ),
        "a rank waits forever": edited("run.checkpoints.complete()", REDUCE_ALONE, "exit code", "main"),
        "what is spawned cannot be pickled": edited(
            "$M.launch(main, $CONFIG)", "$M.launch(lambda *place: main(*place), $CONFIG)", "pickle", launcher="spawn"
        ),
    },
    ("agree", "ddp_project/runtime/sampling.py"): {
        "all ranks train on the same samples": edited(
            "self.skip + $OWN", "self.skip", "differ from those of clean from step 1 on"
        ),
    },
    ("train", "ddp_project/runtime/checkpoint.py"): {
        "all ranks save": edited("on_rank_zero(lambda: write($$$A))", "write($$$A)", "exit code 2"),
    },
    ("train", "ddp_project/runtime/tracking.py"): {
        "all ranks record": edited(
            "$TRACKER if env.is_rank_zero else NoTracker()",
            "$TRACKER",
            r"a rank other than 0 wrote a file|metrics\.csv could not be written",
            logging="csv",
        ),
        "a step is logged under another number": edited(
            "Metric($N, $VALUE, $TIME, $STEP)", "Metric($N, $VALUE, $TIME, $STEP + 1)", STEPS, logging="mlflow"
        ),
        "a resumed run drops its records": edited(
            'open($PATH, "a", $$$A)', 'open($PATH, "w", $$$A)', "should rise to 5 by way of 3", logging="csv"
        ),
        "records are never written out": edited("$W.add_scalar($$$A)", "pass", rf"{STEPS} \[\]", logging="tensorboard"),
        "records have no step": edited("$RUN.log($M, step=$S)", "$RUN.log($M)", STEPS, "Tracker.log", logging="wandb"),
    },
    ("train", "ddp_project/runtime/metrics.py"): {
        "rank 0 logs its own loss": edited(COUNTS, "($COUNTS if self.finite_only else {})", "over all ranks", REDUCE),
        "rank 0 logs its own evaluation": edited(
            COUNTS, "({} if self.finite_only else $COUNTS)", "epoch/validation_loss at step 3", REDUCE
        ),
    },
    ("resume", "train.py"): {
        "the state of the scaler is not saved": edited(
            SAVED.format(" scaler=$X,"), UNSAVED, "the scale of the loss from step 4 on", amp="torch"
        ),
        "the state of the optimizer is not saved": edited(SAVED.format(" optimizer=$X,"), UNSAVED, OTHER_WEIGHTS),
    },
    ("resume", "evaluate.py"): {
        "evaluating draws random numbers": edited("$MODEL.eval()", "{}\ntorch.rand(1)", OTHER_WEIGHTS, "evaluate"),
    },
    ("resume", "ddp_project/runtime/checkpoint.py"): {
        "the generators are not put back": edited("set_generator_states($X)", "pass", OTHER_WEIGHTS),
    },
    ("resume", "ddp_project/runtime/metrics.py"): {
        "progress is forgotten": edited(
            "vars(self).update($X)", "pass", "optimizer steps, where 2 were to be taken", "Progress.load_state_dict"
        ),
    },
    ("resume", "ddp_project/runtime/collectives.py"): {
        "saving leaves averaged statistics behind": edited("buffer.copy_(value)", "pass", IN_LAST, "averaged_buffers"),
    },
    ("train", "ddp_project/runtime/launcher.py"): {
        "the argument of the launcher is not understood": edited(
            '$PARSER.add_argument("--local-rank", "--local_rank", $$$A)',
            '$PARSER.add_argument("--rank-here", $$$A)',
            "exit code",
            launcher="launch",
        ),
    },
    ("resume", "ddp_project/runtime/shard_files.py"): {
        "a rank loses its shards": edited(
            "dcp.load($$$A)",
            "{}\nfor each in tensors.values() if dist.get_rank() else ():\n    each.to_local().zero_()",
            OTHER_WEIGHTS,
            "read_tensors",
            parallel="fsdp",
        ),
    },
    ("resume", "ddp_project/runtime/storage.py"): {
        "a checkpoint is cut short": edited("os.fsync($FILE.fileno())", CUT, "exit code 2", "atomic_write"),
    },
}
MUTANTS = [Mutant(name, *place, *edit) for place, mistakes in MISTAKES.items() for name, edit in mistakes.items()]
