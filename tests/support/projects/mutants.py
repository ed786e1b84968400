"""Mistakes in a rendered project, and what a check must say of each."""

from dataclasses import dataclass, field

from tools.rewriting import Rewrite


@dataclass(frozen=True)
class Mutant:
    """One mistake in a rendered project, and what must be said of it."""

    mistake: str
    file: str
    edit: Rewrite
    stage: str
    words: str  # a regular expression of what the failure must hold
    answers: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.mistake.replace(" ", "-")


MUTANTS = [
    Mutant(
        "the sampler is not told the epoch",
        "ddp_project/runtime/loading.py",
        Rewrite("$SAMPLER.set_epoch($$$A)", "pass"),
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "a resumed epoch begins anew",
        "ddp_project/runtime/loading.py",
        Rewrite("$SAMPLER.set_epoch($EPOCH, skip=$X)", "$SAMPLER.set_epoch($EPOCH)"),
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "every micro-batch is reduced",
        "train.py",
        Rewrite("nullcontext() if $LAST else $NO_SYNC", "nullcontext()"),
        "train",
        "takes 2 collectives, and should take 1",
    ),
    Mutant(
        "gradients are not averaged",
        "train.py",
        Rewrite("run.ddp($BATCH)", "run.ddp.module($BATCH)"),
        "train",
        "ranks have different weights",
    ),
    Mutant(
        "all ranks train on the same samples",
        "ddp_project/runtime/sampling.py",
        Rewrite("self.skip + $OWN", "self.skip"),
        "agree",
        "differ from those of clean from step 1 on",
    ),
    Mutant(
        "all ranks save",
        "ddp_project/runtime/checkpoint.py",
        Rewrite("on_main(lambda: write($$$A))", "write($$$A)"),
        "train",
        "exit code 2",  # of one rank or of both: whose temporary file is gone depends on who is faster
    ),
    Mutant(
        "all ranks record",
        "ddp_project/runtime/tracking.py",
        Rewrite("$TRACKER if world.is_main else NoTracker()", "$TRACKER"),
        "train",
        # The latter where one rank takes away the temporary file of another.
        r"a rank other than 0 wrote a file|metrics\.csv could not be written",
        {"logging": "csv"},
    ),
    Mutant(
        "rank 0 logs its own loss",
        "ddp_project/runtime/meter.py",
        Rewrite("reduce_tensor($COUNTS, $OP)", "($COUNTS if self.finite_only else {})", "Meter.reduce"),
        "train",
        "over all ranks",
    ),
    Mutant(
        "rank 0 logs its own evaluation",
        "ddp_project/runtime/meter.py",
        Rewrite("reduce_tensor($COUNTS, $OP)", "({} if self.finite_only else $COUNTS)", "Meter.reduce"),
        "train",
        "epoch/validation_loss at step 3",
    ),
    Mutant(
        "a step is logged under another number",
        "ddp_project/runtime/tracking.py",
        Rewrite("Metric($NAME, $VALUE, $TIME, $STEP)", "Metric($NAME, $VALUE, $TIME, $STEP + 1)"),
        "train",
        "train/loss is recorded at the steps",
        {"logging": "mlflow"},
    ),
    Mutant(
        "a resumed run drops its records",
        "ddp_project/runtime/tracking.py",
        Rewrite('open($PATH, "a", $$$A)', 'open($PATH, "w", $$$A)'),
        "train",
        "should rise to 5 by way of 3",
        {"logging": "csv"},
    ),
    Mutant(
        "records are never written out",
        "ddp_project/runtime/tracking.py",
        Rewrite("$WRITER.add_scalar($$$A)", "pass"),
        "train",
        r"train/loss is recorded at the steps \[\]",
        {"logging": "tensorboard"},
    ),
    Mutant(
        "records have no step",
        "ddp_project/runtime/tracking.py",
        Rewrite("$RUN.log($METRICS, step=$STEP)", "$RUN.log($METRICS)"),
        "train",
        "train/loss is recorded at the steps",
        {"logging": "wandb"},
    ),
    Mutant(
        "the state of the scaler is not saved",
        "train.py",
        Rewrite("$M.Checkpoints($$$PARTS, scaler=$X, $$$REST)", "$M.Checkpoints($$$PARTS, $$$REST)"),
        "resume",
        "the scale of the loss from step 4 on",
        {"amp": "torch"},
    ),
    Mutant(
        "the state of the optimizer is not saved",
        "train.py",
        Rewrite("$M.Checkpoints($$$PARTS, optimizer=$X, $$$REST)", "$M.Checkpoints($$$PARTS, $$$REST)"),
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "the generators are not put back",
        "ddp_project/runtime/checkpoint.py",
        Rewrite("set_generator_states($X)", "pass"),
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "progress is forgotten",
        "ddp_project/runtime/meter.py",
        Rewrite("vars(self).update($X)", "pass", "Progress.load_state_dict"),
        "resume",
        "optimizer steps, where 2 were to be taken",
    ),
    Mutant(
        "saving leaves averaged statistics behind",
        "ddp_project/runtime/collectives.py",
        Rewrite("buffer.copy_(value)", "pass", "averaged_buffers"),
        "resume",
        "model in the last checkpoint",
    ),
    Mutant(
        "evaluating draws random numbers",
        "train.py",
        Rewrite("$MODEL.eval()", "{}\ntorch.rand(1)", "evaluate"),
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "the optimizer does not step",
        "train.py",
        Rewrite("run.optimizer.step()", "pass"),
        "train",
        r"the ranks took \[0, 0\] optimizer steps",
    ),
    Mutant(
        "the loss grows",
        "train.py",
        Rewrite("run.update.backward($TOTAL, $$$A)", "run.update.backward(-$TOTAL, $$$A)"),
        "train",
        "the loss does not fall",
    ),
    Mutant(
        "a rank ends with another code",
        "train.py",
        Rewrite("return exits.ExitCode.DONE", "return exits.ExitCode(world.rank)", "main"),
        "train",
        "exit code 0, exit code 1",
    ),
    Mutant(
        "a rank waits forever",
        "train.py",
        Rewrite(
            "run.checkpoints.complete()",
            "{}\nif world.rank == 1:\n    collectives.reduce_tensor(torch.zeros(1))",
            "main",
        ),
        "train",
        "exit code",
    ),
    Mutant(
        "what is spawned cannot be pickled",
        "train.py",
        Rewrite("$M.launch(main, $CONFIG)", "$M.launch(lambda *place: main(*place), $CONFIG)"),
        "train",
        "pickle",
        {"launcher": "spawn"},
    ),
    Mutant(
        "the argument of the launcher is not understood",
        "ddp_project/runtime/launcher.py",
        Rewrite(
            '$PARSER.add_argument("--local-rank", "--local_rank", $$$A)', '$PARSER.add_argument("--rank-here", $$$A)'
        ),
        "train",
        "exit code",
        {"launcher": "launch"},
    ),
    Mutant(
        "a checkpoint is cut short",
        "ddp_project/runtime/storage.py",
        Rewrite("os.fsync($FILE.fileno())", "$FILE.truncate(1000 if path.suffix == '.pt' else None)", "whole_file"),
        "resume",
        "exit code 2",
    ),
]
