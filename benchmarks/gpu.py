"""Measures the generated project on one GPU: its speed beside a plain loop, its memory, and the pause of a save.

Project and plain loop train in the same process, and take turns after each block of steps. Then a trace of each tells
how often a step makes the CPU wait for the GPU, and how many kernels it starts. scripts/gpu.sh measures all settings.
"""

import gc
import gzip
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import profile, schedule
from torch.utils import collect_env
from torch.utils.flop_counter import FlopCounterMode

from . import runner
from .contenders import bare_gpu
from .contenders.workloads import EPOCHS, LOG_EVERY, NAME, SEED, STEPS, chosen_workload
from .runner import CommandError, Record, imported, in_turn, new_project, seconds_of
from .trials import render_project

CALLS = ("cuda_runtime", "cuda_driver")  # categories of what the CPU asks of the GPU; ROCm's have the same names
# What waits for the GPU: a copy that is not asynchronous, and memory that is taken or given back.
WAITING = re.compile(
    r"Synchronize$|^(cuda|hip)(Memcpy|Malloc|MallocHost|HostAlloc|HostMalloc|Free|FreeHost)$|^cuMem(Create|Map|Unmap)$"
)
LAUNCHING = re.compile(r"LaunchKernel|ModuleLaunch|LaunchCooperative|GraphLaunch")

WORKLOADS = {"ResNet-50": "resnet_50", "small CNN": "small_cnn", "MLP": "tiny_mlp"}
TINY = {"ResNet-50": "small_cnn"}  # in place of it, to try this benchmark on a CPU
GPT = {"vocabulary": 50304, "context": 1024, "layers": 12, "heads": 12, "width": 768, "global_batch_size": 8}
TINY_GPT = {"vocabulary": 512, "context": 64, "layers": 2, "heads": 4, "width": 64, "global_batch_size": 4}
# The network, and options of the project: the plain loop does the same.
SETTINGS: dict[str, tuple[str, Record]] = {
    "ResNet-50, bfloat16, channels last": ("ResNet-50", {"precision": "bf16", "channels_last": True}),
    "ResNet-50, TF32": ("ResNet-50", {"precision": "tf32"}),
    "GPT, bfloat16": ("GPT", {"precision": "bf16"}),
    "GPT, bfloat16, compiled": ("GPT", {"precision": "bf16", "compile": True}),
    "MLP, bfloat16": ("MLP", {"precision": "bf16"}),
    "small CNN, bfloat16": ("small CNN", {"precision": "bf16"}),
    "memory": ("ResNet-50", {"precision": "bf16", "channels_last": True}),
    "saves": ("GPT", {"precision": "bf16"}),
}
MICRO_BATCH = {"cuda": 16, "cpu": 4}  # of the memory: loader workers share few MiB in a container
OF_MEMORY: dict[str, Record] = {
    "--ema-decay 0.999": {"ema_decay": 0.999},
    "--accum-steps 2": {"accum_steps": 2},
    "--workers 2": {"workers": 2},
}
WARM_UP = 2 * LOG_EVERY  # steps: DistributedDataParallel times the first ten, and cuDNN tries its algorithms
LEAST = 3  # blocks of each
SECONDS_OF_BLOCK = 0.5
SAVES = 3
Loop = Iterator[None]  # trains one step


@dataclass
class Benchmark(runner.Benchmark):
    """Samples per second beside a plain loop; memory with options; how long a save stops the training."""

    setting: str = next(iter(SETTINGS))
    """Measure this one: a network and how to compute, "memory", or "saves"."""
    rounds: int = 40
    """How many blocks each trains at most."""
    seconds: float = 12
    """Compare blocks for about so long, once both are warm (0: only train the first step, which compiles)."""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu tries the benchmark itself, with small networks."""

    key: ClassVar = ("setting", "contender")

    def machine(self) -> Record:
        """Return the machine and its GPUs."""
        return machine(self.device)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Yield what is known after each round, variant or save."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise CommandError("torch can use no GPU here")
        if self.setting not in SETTINGS:
            raise CommandError(f"there is no setting {self.setting}: choose of {'; '.join(SETTINGS)}")
        network, options = SETTINGS[self.setting]
        project = Project(folder, network, self.device, options)
        how = {"memory": self.measure_memory, "saves": self.measure_saves}.get(self.setting, self.compare)
        for records in how(project):
            yield [{"setting": self.setting, **record} for record in records]
        gc.collect()  # a model that outlived the group could hang in its destructor
        dist.destroy_process_group()

    def compare(self, project: "Project") -> Iterator[list[Record]]:
        """Let the project and a plain loop take turns, then trace both."""
        plain, flops = project.plain_loop()
        run = project.run()
        loops = {"plain": plain, "generated": project.loop(run)}
        for name, loop in loops.items():
            first = seconds_of(partial(train, loop, 1, project.device))
            print(f"{name}: the first step took {first:.1f} s", flush=True)
        if not self.seconds:
            return
        share = flops / project.peak / project.config.global_batch_size if project.peak else 0
        steps = max(warmed(loop, project.device) for loop in loops.values())
        runs = {name: partial(rate, loop, steps, project) for name, loop in loops.items()}
        until, taken = time.monotonic() + self.seconds, WARM_UP + LOG_EVERY
        for number, found in enumerate(in_turn(runs, self.rounds, tell=False), start=1):
            records = [{"contender": name, **found[name], **mfu(found[name], share)} for name in loops]
            yield records
            taken += steps
            if number >= LEAST and time.monotonic() > until:
                break
        of_records = last_record(run.config.run_dir).get("device/mfu")
        records[-1] |= {"mfu_of_records": round(of_records, 4)} if of_records else {}
        yield [record | traced(loop, taken, project) for record, loop in zip(records, loops.values(), strict=True)]

    def measure_memory(self, project: "Project") -> Iterator[list[Record]]:
        """Train with options that might take memory, one after another."""
        size = MICRO_BATCH[self.device]

        def generated(options: Record) -> Loop:
            options = {"accum_steps": 1, **options}
            return project.loop(project.run(**options, global_batch_size=size * options["accum_steps"]))

        variants: dict[str, Callable[[], Loop]] = {
            "plain": lambda: project.plain_loop(global_batch_size=size)[0],
            "generated": lambda: generated({}),
            **{name: partial(generated, options) for name, options in OF_MEMORY.items()},
        }
        for name, build in variants.items():
            yield [{"contender": name, "peak_memory": peak_memory(build, project.device)}]

    def measure_saves(self, project: "Project") -> Iterator[list[Record]]:
        """Save now and then, and take the time until the training goes on, and until the disk has it."""
        for option in ("--no-async-saves", "--async-saves"):
            run = project.run(async_saves=option == "--async-saves", keep=1)
            loop, pause, written = project.loop(run), list[float](), list[float]()
            for _ in range(SAVES):
                train(loop, 5, project.device)
                began = time.perf_counter()
                run.checkpoints.save()
                pause.append(round(time.perf_counter() - began, 3))
                run.checkpoints.finish()
                written.append(round(time.perf_counter() - began, 3))
                size = (run.checkpoints.folder / "last.pt").stat().st_size
                yield [{"contender": option, "pause": pause, "written": written, "bytes": size}]


class Project:
    """The generated project in this process, which is its only rank, and a plain loop over its network and its data."""

    def __init__(self, folder: Path, network: str, device: str, options: Record) -> None:
        self.folder = folder
        options = options | rendered(folder / "project", network, on_cpu=device == "cpu")
        sys.path.insert(0, str(folder / "project"))
        self.train, distributed = imported("train"), imported("ddp_project.runtime.distributed")
        # Neither evaluations nor checkpoints, unless they are asked for.
        config = self.train.Config(**options, epochs=10**6, eval_every=10**6, lr=1e-4, device=device)
        self.env = distributed.read_dist_env()
        self.config, self.device = distributed.join_group(config, self.env)
        self.peak = imported("ddp_project.runtime.throughput").peak_of(self.config, self.device)  # FLOP/s, if known

    def run(self, **options: Any) -> Any:
        """Return all that the project trains with, in a run directory of its own."""
        run_dir = Path(tempfile.mkdtemp(dir=self.folder), "run")
        return self.train.Run(replace(self.config, **options, run_dir=run_dir), self.env, self.device)

    def loop(self, run: Any) -> Loop:
        """Take the steps that main() of its train.py takes."""
        for micro_batches in run.reporter.progress_bar(run.training):
            self.train.train_step(run, micro_batches)
            if run.progress.is_reduction_due():
                self.train.reduce_and_log(run)
            self.train.finish_step(run)
            yield

    def plain_loop(self, **options: Any) -> tuple[Loop, float]:
        """Return a plain loop, after its first step, and the FLOPs of a step."""
        config = replace(self.config, **options)
        torch.manual_seed(SEED)
        model = imported("ddp_project.model").build_model(config).to(self.device)
        if config.channels_last:
            model = torch.nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
        optimizer = imported("ddp_project.task").build_optimizer(model, config)
        dataset = imported("ddp_project.data").load_data(config)[0]
        loop = bare_gpu.steps(model, optimizer, dataset, config, self.device)
        with FlopCounterMode(display=False) as counter:  # of which torch would compile nothing
            next(loop)
        if config.compile:
            model.compile()
        return loop, float(counter.get_total_flops())


def machine(device: str) -> Record:
    """Return the machine, its GPUs, and the versions of what drives them."""
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    builds = {"ROCm": torch.version.hip, "CUDA": torch.version.cuda, "CPUs": ""}
    build = next(f"{name} {version}".strip() for name, version in builds.items() if version is not None)
    found = runner.machine() | {"build": build, "gpus": gpus}
    if not gpus:
        return found
    return found | {
        "gpu": torch.cuda.get_device_name(),
        "memory_of_gpu": torch.cuda.get_device_properties(0).total_memory,
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "driver": collect_env.get_nvidia_driver_version(collect_env.run) or "unknown",
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none",
    }


def rendered(place: Path, network: str, *, on_cpu: bool) -> Record:
    """Render the project that trains a network, and return its options for the sizes of network and batch."""
    if network == "GPT":
        options = TINY_GPT if on_cpu else GPT
        new_project(place, task="language")
        tokens = np.random.default_rng(SEED).integers(options["vocabulary"], size=options["context"] << 12)
        tokens.astype(np.uint16).tofile(place / "tokens.u16")
        return options | {"data": (place / "tokens.u16",)}
    workload = WORKLOADS[network]
    os.environ.update({NAME: TINY.get(network, workload) if on_cpu else workload, STEPS: "1000", EPOCHS: "1"})
    render_project(place)
    return {"global_batch_size": chosen_workload().batch}


def train(loop: Loop, steps: int, device: torch.device) -> None:
    """Train steps, and wait until the GPU has done them."""
    deque(islice(loop, steps), maxlen=0)
    if device.type != "cpu":
        torch.accelerator.synchronize()


def warmed(loop: Loop, device: torch.device) -> int:
    """Train until a loop is as fast as it will be. Returns the steps of a block, which ends with a report."""
    train(loop, WARM_UP - 1, device)
    seconds = seconds_of(partial(train, loop, LOG_EVERY, device))
    return LOG_EVERY * max(1, round(SECONDS_OF_BLOCK / seconds))


def rate(loop: Loop, steps: int, project: Project) -> Record:
    """Train a block. Returns its samples per second."""
    seconds = seconds_of(partial(train, loop, steps, project.device))
    return {"samples_per_second": round(steps * project.config.global_batch_size / seconds, 1)}


def mfu(found: Record, share: float) -> Record:
    """Return how much of the GPU's peak the network uses; a sample a second takes this share of it, 0 if unknown."""
    return {"mfu": round(statistics.median(found["samples_per_second"]) * share, 4)} if share else {}


def last_record(run_dir: Path) -> Record:
    """Return the newest record of a run."""
    return dict(json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1]))


def peak_memory(build: Callable[[], Loop], device: torch.device) -> int | None:
    """Return the most bytes of the GPU that a loop has at once in a step, once it is warm; None on a CPU."""
    gc.collect()
    on_gpu = device.type != "cpu"
    before = torch.accelerator.memory_allocated() if on_gpu else 0
    loop = build()
    train(loop, WARM_UP, device)
    if on_gpu:
        torch.accelerator.reset_peak_memory_stats()
    train(loop, LOG_EVERY, device)
    return torch.accelerator.max_memory_allocated() - before if on_gpu else None


def traced(loop: Loop, taken: int, project: Project) -> Record:
    """Trace steps of a loop right after a report, and return what their CPU asks of the GPU, if it can be seen."""
    if taken % 100 == 0:  # DistributedDataParallel times each hundredth step, and waits in the next one
        train(loop, LOG_EVERY, project.device)
    trace = project.folder / "trace.json.gz"
    plan = schedule(wait=0, warmup=1, active=6, repeat=1)
    with profile(schedule=plan, on_trace_ready=lambda done: done.export_chrome_trace(str(trace))) as profiler:
        for _ in range(7):
            next(loop)
            profiler.step()
    launches = calls_of_a_step(trace, LAUNCHING)
    if project.device.type != "cpu" and not launches:  # the driver may forbid it
        return {}
    return {"waits_of_a_step": calls_of_a_step(trace, WAITING), "launches_of_a_step": launches}


def read_trace(trace: Path) -> list[Record]:
    """The events of a trace that last."""
    with gzip.open(trace, "rt") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def calls_of_a_step(trace: Path, names: re.Pattern[str]) -> float:
    """How often the CPU calls functions of these names in a step of a trace; the last one ends with the profile."""
    events = read_trace(trace)
    # The GPU's side of a trace repeats the names of the steps, at other times.
    marks = [event for event in events if event.get("cat") == "user_annotation"]
    *steps, _ = sorted(
        (mark["ts"], mark["ts"] + mark["dur"]) for mark in marks if mark["name"].startswith("ProfilerStep#")
    )
    calls = [event["ts"] for event in events if event.get("cat") in CALLS and names.search(event["name"])]
    within = sum(begin <= call < end for call in calls for begin, end in steps)
    return float(within / len(steps))
