"""Train the model of ddp_project/model.py on any number of processes.

One process:    python train.py
Two processes:  NPROC_PER_NODE=2 ./launch.sh
After a stop:   the same command with --resume

Start reading at main(). ddp_project/task.py has the loss, the metrics and the optimizer.
"""

from ddp_project.runtime import launcher

if __name__ == "__main__":
    CONFIG = launcher.read_options()  # before torch is imported, which takes seconds: --help answers at once

import sys
from contextlib import nullcontext

import torch

import evaluate
from ddp_project import task
from ddp_project.config import Config
from ddp_project.runtime import (
    checkpoint,
    data_loading,
    distributed,
    exits,
    metrics,
    optimizer_step,
    reporting,
    weights,
)


class Run:
    """Everything one rank trains with, built in dependency order."""

    def __init__(self, config: Config, env: launcher.DistEnv, device: torch.device) -> None:
        """Build all parts; restore the checkpoint if --resume asks for one. Every rank runs this."""
        self.training, self.evaluation, self.test = data_loading.load(config, env, device)
        config, saved = checkpoint.create_run_dir(config)  # refuses to mix two runs
        self.config, self.device = config, device
        reporting.set_up_log(config, env, device)
        model = weights.initial_model(config, env, saved)  # the same on all ranks
        self.model = distributed.place(model, config, device)  # not wrapped: its state_dict has plain keys
        self.optimizer = task.build_optimizer(self.model, config)
        self.scaler = optimizer_step.GradScaler(device.type, enabled=config.precision == "fp16")
        # DDP wraps what calls task.compute() on self.model: backward() averages the gradients over the ranks.
        loss_module = optimizer_step.LossModule(task.compute, self.model, config, device)
        self.ddp = distributed.wrap(loss_module, config)
        self.update = optimizer_step.Update(self.ddp, self.optimizer, config, device)

        self.progress = metrics.Progress(config, self.training.sampler)
        self.checkpoints = checkpoint.Checkpoints(
            config, self.progress, self.model, scaler=self.scaler, optimizer=self.optimizer, update=self.update
        )
        self.checkpoints.restore(saved)
        self.sums = metrics.MetricAccumulator(device, finite_only=True)  # of metrics since the last reduction
        self.reporter = reporting.Reporter(config, env, self.checkpoints, self.evaluation)  # log, bar, logger, profiler
        self.stop = exits.StopSignals(config.max_hours)


def main(config: Config, env: launcher.DistEnv, device: torch.device) -> exits.ExitCode:
    """Train to the end, or until --max-steps, --patience, --max-hours or a signal. Every rank runs this."""
    run = Run(config, env, device)
    progress = run.progress
    run.model.train()
    with run.reporter:
        if progress.is_unfinished():  # the run was stopped before the evaluation of its last step
            finish_step(run)
        for micro_batches in run.reporter.progress_bar(run.training):
            train_step(run, micro_batches)
            if progress.is_reduction_due():
                reduce_and_log(run)
            if run.stop.agreed and not progress.reached_max_steps():
                run.checkpoints.save(wait=True)
                return run.stop.leave(progress.step)
            finish_step(run)
        run.checkpoints.complete()
        if run.test and run.reporter.is_test_due(run.test):
            weights.load_weights(run.model, run.checkpoints.best)
            run.reporter.log_test(evaluate.evaluate(run.model, run.test, run.config, run.device))
    return exits.ExitCode.DONE


def train_step(run: Run, micro_batches: data_loading.MicroBatches) -> None:
    """Take one optimizer step on some micro-batches, together with all other ranks."""
    for i, batch in enumerate(micro_batches, start=1):
        # DDP averages gradients in the last micro-batch alone; no_sync() must also cover the forward pass.
        with nullcontext() if i == len(micro_batches) else run.ddp.no_sync():
            with optimizer_step.autocast(run.config, run.device):
                means = run.ddp(batch)  # calls task.compute()
            run.update.backward(run.scaler.scale(means["loss"].sum), means["loss"].count, len(micro_batches))
        run.sums.add(means)
    run.scaler.unscale_(run.optimizer)
    norm = run.update.normalize_gradients()  # over all ranks, exact for uneven counts
    if run.config.clip_norm:
        torch.nn.utils.clip_grads_with_norm_(run.update.weights, run.config.clip_norm, norm)
    lr = float(task.lr_at(run.progress.step, run.training.total_steps, run.config))
    run.update.set_lr(lr)
    if run.update.is_finite(norm):
        run.scaler.step(run.optimizer)
    run.scaler.update()
    run.update.zero_grad()
    run.progress.advance(micro_batches.samples, lr)


def reduce_and_log(run: Run) -> None:
    """Reduce sums of metrics, skipped steps and stop signals over the ranks, in one collective.

    A checkpoint keeps sums that are not logged yet, so a stop changes no record.
    """
    progress = run.progress
    own = run.stop.received, progress.is_timed_save_due(), run.update.skipped_steps
    totals, [stops, timed_save, *skipped_steps] = run.sums.reduce(*own)
    run.stop.agreed = stops > 0
    progress.count(totals, timed_save=timed_save > 0)
    run.update.report(progress.step, skipped_steps, run.checkpoints.advice)
    if progress.is_record_due() or progress.reached_max_steps():
        run.reporter.log_training(progress, run.update.numbers())  # your own: numbers() | {"name": value}


def finish_step(run: Run) -> None:
    """After a step: evaluate, start the next epoch and save, each if it is due."""
    if run.progress.is_evaluation_due():
        with run.update.evaluating():  # with the EMA of the weights, if --ema-decay asks for it
            found = evaluate.evaluate(run.model, run.evaluation, run.config, run.device)
        run.reporter.log_evaluation(run.progress, found)
    run.progress.start_next_epoch()
    if run.progress.is_save_due():
        run.checkpoints.save()


if __name__ == "__main__":
    sys.exit(distributed.launch(main, CONFIG))
