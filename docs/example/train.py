"""Train a convolutional network on handwritten digits, on any number of processes.

One process:    python train.py
Two processes:  torchrun --standalone --nproc-per-node=2 train.py
After a stop:   the same command with --resume

Start reading at main(). The options are in ddp_project/config.py; --help lists them.
"""

import gc

from ddp_project.launcher import World, read_options

if __name__ == "__main__":  # before torch is imported, which takes seconds: --help and refusals come at once
    CONFIG = read_options()
    gc.disable()  # until run_rank(): what is imported now stays

import logging
import math
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader

from ddp_project.agreement import check_agreement
from ddp_project.checkpoint import Checkpoints, Progress, claim_run_dir
from ddp_project.collectives import averaged_buffers, on_every_rank, on_main, reduce_tensor
from ddp_project.config import Config
from ddp_project.data import load_data
from ddp_project.distributed import launch, wrap
from ddp_project.exits import ExitCode, StopSignals
from ddp_project.finite import FiniteSteps, gradient_norm
from ddp_project.loaders import (
    ResumableDistributedSampler,
    Windows,
    evaluation_batches,
    make_loader,
    micro_batch_size,
)
from ddp_project.metrics import Totals, batch_totals
from ddp_project.model import build_model
from ddp_project.precision import use_tf32
from ddp_project.profiling import NoProfiler, make_profiler
from ddp_project.reproducibility import seed_generators, use_deterministic_algorithms
from ddp_project.tracking import NoTracker, make_tracker, progress_bar, set_up_log
from ddp_project.whereabouts import HERE


@dataclass
class Run:
    """All that one rank trains with."""

    config: Config
    device: torch.device
    model: nn.Module  # unwrapped: its state_dict has plain keys, and evaluating it waits for no other rank
    ddp: DistributedDataParallel  # around the same model: its backward pass averages the gradients
    optimizer: Optimizer
    sampler: ResumableDistributedSampler
    training: Windows
    validation: DataLoader[Any]
    layout: torch.memory_format  # of images and of the weights of convolutions
    checkpoints: Checkpoints
    progress: Progress
    finite: FiniteSteps
    tracker: NoTracker
    profiler: NoProfiler
    stop: StopSignals


def main(config: Config, world: World, device: torch.device) -> ExitCode:
    """Train and evaluate. Every rank runs this."""
    run = set_up(config, world, device)
    progress = run.progress
    with closing(run.tracker), closing(run.profiler):
        while progress.epoch < config.epochs and not progress.out_of_steps(config):
            complete = train_epoch(run)
            if run.stop.agreed:
                run.checkpoints.save(progress)
                run.stop.leave()
                logging.info("stopped after step %d; --resume goes on from here", progress.step)
                return ExitCode.STOPPED
            last = progress.out_of_steps(config) or progress.epoch + 1 == config.epochs
            evaluating = last or (progress.epoch + 1) % config.eval_every == 0
            best = evaluating and evaluate(run)
            if complete:
                progress.complete_epoch()
            if evaluating:
                run.checkpoints.save(progress, best=best)
    run.checkpoints.complete()
    logging.info("done: best validation accuracy %.2f %%", 100 * progress.best_accuracy)
    return ExitCode.DONE


def set_up(config: Config, world: World, device: torch.device) -> Run:
    """Make all parts, each where the next one needs it, and resume where --resume says so.

    The optimizer is fused, one call for all weights: small steps take 10 % less time.
    """
    training_set, validation_set = load_data()
    check_agreement(config, training=training_set, validation=validation_set)
    micro_batch = micro_batch_size(config, world, len(training_set))
    sampler = ResumableDistributedSampler(len(training_set), micro_batch, world, config.seed)
    batches = evaluation_batches(len(validation_set), micro_batch, world)
    resume_from = on_main(lambda: claim_run_dir(config))
    set_up_log(config.run_dir, world)
    logging.info("world size %d, rank 0 on %s, run directory %s", world.world_size, device, config.run_dir)

    use_deterministic_algorithms(config.deterministic)
    use_tf32(config.tf32)
    seed_generators(config.seed)  # the same weights on every rank
    model = build_model()
    layout = torch.channels_last if config.channels_last else torch.preserve_format
    if config.channels_last:
        model = nn.utils.convert_conv2d_weight_memory_format(model, layout)
    model = model.to(device)
    optimizer: Optimizer = AdamW(model.parameters(), weight_decay=config.weight_decay, fused=True)
    ddp = wrap(model, device)
    if config.compile:
        ddp.compile()
    seed_generators(config.seed + world.rank)  # other dropout on every rank

    checkpoints = Checkpoints(config, model, optimizer=optimizer)
    progress = checkpoints.restore(resume_from) if resume_from else Progress()
    return Run(
        config=config,
        device=device,
        model=model,
        ddp=ddp,
        optimizer=optimizer,
        sampler=sampler,
        training=Windows(make_loader(training_set, sampler, config, device), config.accum_steps),
        validation=make_loader(validation_set, batches, config, device),
        layout=layout,
        checkpoints=checkpoints,
        progress=progress,
        finite=FiniteSteps(model, optimizer, device, progress.left_out),
        tracker=on_every_rank(lambda: make_tracker(config, world)),
        profiler=make_profiler(config, world),
        stop=StopSignals(),
    )


def lr_at(step: int, total_steps: int, config: Config) -> float:
    """Learning rate of a step, counted from 0: a linear warm-up, then a cosine down to zero.

    A function of the step alone: there is no scheduler to save, to resume, or to step once too often.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    share = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    return config.lr * (1 + math.cos(math.pi * min(1.0, share))) / 2


def train_epoch(run: Run) -> bool:
    """Train on what is left of the epoch. Gives False where --max-steps or a signal ended it early."""
    config, progress, sampler = run.config, run.progress, run.sampler
    total_steps = config.epochs * math.ceil(sampler.samples // sampler.micro_batch_size / config.accum_steps)
    sampler.set_epoch(progress.epoch, skip=progress.samples_in_epoch)
    steps_left = math.ceil(len(sampler) / config.accum_steps)
    totals, started = Totals(finite_only=True), time.perf_counter()
    run.model.train()
    with progress_bar(steps_left, progress.epoch) as bar:
        for i, window in enumerate(run.training, start=1):
            lr = lr_at(progress.step, total_steps, config)
            totals += train_step(run, window, lr)
            progress.advance(len(window) * sampler.micro_batch_size)
            bar.update()
            run.profiler.step()
            due = i == steps_left or progress.step % config.log_every == 0
            saving = config.save_every > 0 and progress.step % config.save_every == 0
            leaving = i == steps_left or progress.out_of_steps(config)
            if due or saving or leaving:
                started = report(run, totals, lr, started, due=due)
            if run.stop.agreed or leaving:
                return i == steps_left
            if saving:
                run.checkpoints.save(progress)
                started = time.perf_counter()
    return True


def train_step(run: Run, window: list[Any], lr: float) -> Totals:
    """Take one optimizer step, on the micro-batches of a window, together with all other ranks.

    Gives the totals of this rank, without losses that are not finite.
    """
    totals = Totals(finite_only=True)
    for i, (images, labels) in enumerate(window, start=1):
        images = images.to(run.device, memory_format=run.layout, non_blocking=True)
        labels = labels.to(run.device, non_blocking=True)
        # Only the last backward pass averages over the ranks; no_sync() must hold the others' forward pass too.
        with nullcontext() if i == len(window) else run.ddp.no_sync():
            logits = run.ddp(images)
            loss = F.cross_entropy(logits, labels)
            (loss / len(window)).backward()
        totals += batch_totals(loss, logits, labels)
    norm = gradient_norm(run.optimizer, run.config.clip_norm)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if run.finite.judge(norm, run.optimizer):
        run.optimizer.step()
    run.optimizer.zero_grad()
    return totals


def report(run: Run, totals: Totals, lr: float, started: float, *, due: bool) -> float:
    """Reduce what was counted since the last report, and record the metrics. Gives the time.

    One all-reduce, and the only point of the loop where the program waits for the device: in every step, it would take
    13 % of a small one. The ranks also agree here on whether a signal asked one of them to stop. Where no record is
    due, what is counted goes into the next one too: so a run records the same, wherever it is saved, stopped and
    resumed.
    """
    progress = run.progress
    HERE.phase = "reducing"
    sums = totals.take(run.device)
    stop = sums.new_tensor([float(run.stop.received)])
    counts = torch.cat((sums, stop, run.finite.left_out))
    loss_sum, correct, samples, stops, *left_out = reduce_tensor(counts, "sum").tolist()
    run.stop.agreed = stops > 0
    progress.count(loss_sum, correct, samples)
    run.finite.report(progress, left_out, run.config.max_bad_steps, run.checkpoints.advice)
    now = time.perf_counter()
    if due or progress.out_of_steps(run.config):
        counted = progress.recent_samples or math.nan
        metrics = {
            "train/loss": progress.recent_loss_sum / counted,
            "train/accuracy": progress.recent_correct / counted,
            "lr": lr,
            "samples_per_second": samples / (now - started),
        }
        run.tracker.log(progress.step, metrics)
    if due:
        progress.forget_recent()
    return now


@torch.inference_mode()
def evaluate(run: Run) -> bool:
    """Evaluate on all ranks, each sample once, and log the epoch. Gives whether the model is the best so far."""
    progress = run.progress
    HERE.phase = "evaluating"
    totals = Totals()
    run.model.eval()
    with averaged_buffers(run.model):
        for images, labels in run.validation:
            images = images.to(run.device, memory_format=run.layout, non_blocking=True)
            labels = labels.to(run.device, non_blocking=True)
            logits = run.model(images)
            totals += batch_totals(F.cross_entropy(logits, labels), logits, labels)
    loss_sum, correct, samples = reduce_tensor(totals.take(run.device), "sum").tolist()
    metrics = {
        "epoch": progress.epoch + 1,
        "epoch/train_loss": progress.loss_sum / (progress.counted or math.nan),
        "epoch/train_accuracy": progress.correct / (progress.counted or math.nan),
        "epoch/validation_loss": loss_sum / samples,
        "epoch/validation_accuracy": correct / samples,
    }
    run.tracker.log(progress.step, metrics)
    best_before = progress.best_accuracy
    progress.best_accuracy = max(best_before, correct / samples)
    return progress.best_accuracy > best_before


if __name__ == "__main__":
    sys.exit(launch(main, CONFIG))
