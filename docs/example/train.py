"""Train the model of ddp_project/model.py on any number of processes.

One process:    python train.py
Two processes:  NPROC_PER_NODE=2 ./launch.sh
After a stop:   the same command with --resume

Start reading at main(). What is trained is in ddp_project/task.py, the options are in options.py and config.py there.
"""

from ddp_project.runtime import launcher

if __name__ == "__main__":
    CONFIG = launcher.read_options()  # before torch is imported, which takes seconds: --help answers at once

import logging
import sys
from contextlib import nullcontext

import torch

from ddp_project import task
from ddp_project.config import Config
from ddp_project.model import build_model
from ddp_project.runtime import (
    checkpoint,
    collectives,
    exits,
    loading,
    meter,
    process_group,
    reporting,
    reproducibility,
    update,
    weights,
)


class Run:
    """Everything that one rank trains with, built in the order in which the parts need each other."""

    def __init__(self, config: Config, world: launcher.World, device: torch.device) -> None:
        """Get ready to train, or to go on if --resume asks for it. Every rank does it."""
        self.training, self.validation = loading.load(config, world, device)
        config, saved = checkpoint.claim_run_dir(config)  # refuses to mix two runs
        self.config, self.device = config, device
        reporting.set_up_log(config, world, device)

        with reproducibility.same_numbers(config.seed, world.rank):
            model = weights.init_from(reproducibility.build(build_model, config), config, saved)
        self.model = process_group.place(model, config, device)  # not wrapped: its state_dict has plain keys
        self.optimizer = task.build_optimizer(self.model, config)
        # task.compute() on the same model, wrapped: its backward pass averages the gradients over the ranks.
        objective = update.Objective(task.compute, self.model, config, device)
        self.ddp = process_group.wrap(objective, config)
        self.update = update.Update(self.ddp, self.optimizer, config, device)

        self.progress = meter.Progress()
        self.checkpoints = checkpoint.Checkpoints(
            config, self.progress, self.model, optimizer=self.optimizer, update=self.update
        )
        self.checkpoints.restore(saved)
        self.sums = meter.Meter(device, finite_only=True)  # of what was trained since the last report
        self.reporter = reporting.Reporter(config, world, self.checkpoints)  # log, progress bar, logger and profiler
        self.stop = exits.StopSignals(config.max_hours)


def main(config: Config, world: launcher.World, device: torch.device) -> exits.ExitCode:
    """Train and evaluate. Every rank runs this."""
    run = Run(config, world, device)
    progress = run.progress
    with run.reporter:
        while not progress.is_done(config):
            finished_epoch = train_epoch(run)
            if run.stop.agreed and not progress.is_out_of_steps(config):
                run.checkpoints.save(wait=True)
                return run.stop.leave(progress.step)
            evaluating = progress.is_evaluation_due(config)
            best = evaluating and evaluate(run)
            if finished_epoch:
                progress.complete_epoch()
            if evaluating or progress.is_save_due(config):
                run.checkpoints.save(best=best)
        run.checkpoints.complete()
    logging.info("done: best validation %s %.4g", task.BEST, progress.best)
    return exits.ExitCode.DONE


def train_epoch(run: Run) -> bool:
    """Train on what is left of the epoch. Returns False if --max-steps or a signal ended it early."""
    config, progress = run.config, run.progress
    run.model.train()
    for micro_batches in run.reporter.watch(run.training.go_on(progress), progress):
        lr = float(task.lr_at(progress.step, run.training.total_steps, config))
        train_step(run, micro_batches, lr)
        progress.advance(micro_batches.samples)
        due = run.training.is_finished(progress) or progress.step % config.log_every == 0
        saving = progress.is_save_due(config)
        leaving = run.training.is_finished(progress) or progress.is_out_of_steps(config)
        if due or saving or leaving:
            report(run, lr, due=due)
        if run.stop.agreed or leaving:
            break
        if saving:
            run.checkpoints.save()
    return run.training.is_finished(progress)


def train_step(run: Run, micro_batches: loading.MicroBatches, lr: float) -> None:
    """Take one optimizer step on some micro-batches, together with all other ranks."""
    for i, batch in enumerate(micro_batches, start=1):
        # Only the last backward pass averages over the ranks; no_sync() must hold the others' forward pass too.
        with nullcontext() if i == len(micro_batches) else run.ddp.no_sync():
            means = run.ddp(batch)  # calls task.compute()
            run.update.backward(means["loss"].sum, means["loss"].count, len(micro_batches))
        run.sums.add(means)
    norm = run.update.correct_gradients()  # exact for uneven counts
    if run.config.clip_norm:
        torch.nn.utils.clip_grads_with_norm_(run.update.weights, run.config.clip_norm, norm)
    for group in run.optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
    if run.update.accepts(norm):
        run.optimizer.step()
    run.update.zero_grad()


def report(run: Run, lr: float, *, due: bool) -> None:
    """Add up over the ranks what was trained since the last report, and record it if a record is due.

    Beside the exchange of gradients, this is the loop's only one. If no record is due, the next one has it too: so a
    run records the same, wherever it is saved, stopped and resumed.
    """
    progress = run.progress
    totals, [stops, *left_out] = run.sums.reduce(run.stop.received, run.update.left_out)
    run.stop.agreed = stops > 0
    progress.count(totals)
    run.update.report(progress.step, left_out, run.checkpoints.advice)
    if due or progress.is_out_of_steps(run.config):
        run.reporter.log_training(progress, lr)
    if due:
        progress.recent = {}


@torch.no_grad()
def evaluate(run: Run) -> bool:
    """Evaluate on all ranks, each sample once, and record the epoch. Returns whether the model is the best so far."""
    sums = meter.Meter(run.device)
    run.model.eval()
    with collectives.averaged_buffers(run.model), run.update.evaluating():
        for batch, counts in run.validation:
            sums.add(meter.checked(task.compute(run.model, batch)), counts=counts)
    metrics = reporting.metrics_of(sums.reduce()[0])
    run.reporter.log_evaluation(run.progress, metrics)
    return run.progress.is_best(metrics, task.BEST, higher=task.HIGHER_IS_BETTER)


if __name__ == "__main__":
    sys.exit(process_group.launch(main, CONFIG))
