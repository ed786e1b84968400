"""Measures what a stream, predictions and a remote copy cost, each compared with a plain loop.

Each measurement is one process on its own, with one thread: what a rank does, without a network.
"""

import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from . import runner
from .runner import Record, imported, in_turn, new_project

SHARDS, SAMPLES = 8, 4000  # samples of each shard
BATCH, WARM_UP = 64, 50  # batches
SHUFFLED = 10_000  # samples in memory
COPIED = 100_000_000  # bytes of a checkpoint
READERS = ("tensors", "WebDataset", "Parquet", "Hugging Face")
WAYS = ("a plain loop", "in order", "shuffled")


@dataclass
class Benchmark(runner.Benchmark):
    """Rates and peak memory: samples per second of streams and predictions, bytes per second of copies."""

    rounds: int = 3
    """How often each is measured."""

    key: ClassVar = ("what",)

    def measure(self, folder: Path) -> Iterator[list[Record]]:
        """Measure each reader in each way, predictions and copies."""
        project = new_project(folder / "project")
        write_shards(folder)
        for reader in READERS:
            runs = {way: partial(alone, read_all, project, folder, reader, way) for way in WAYS}
            *_, found = in_turn(runs, self.rounds)
            yield [{"what": reader, "way": way, **numbers} for way, numbers in found.items()]
        for what, work, own in (("predictions", predict_all, "predict.py"), ("a copy", copy, "a remote --run-dir")):
            runs = {way: partial(alone, work, project, folder, way) for way in ("a plain loop", own)}
            *_, found = in_turn(runs, self.rounds)
            yield [{"what": what, "way": way, **numbers} for way, numbers in found.items()]


def alone(work: Callable[..., Record], *arguments: Any) -> Record:
    """Do some work in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def write_shards(folder: Path) -> None:
    """Write the same samples, 28 x 28 pixels and a label, as tar files and as Parquet."""
    import pyarrow
    from pyarrow import parquet

    numbers = np.random.default_rng(0)
    for shard in range(SHARDS):
        images = numbers.integers(0, 256, (SAMPLES, 784), dtype=np.uint8)
        labels = (np.arange(SAMPLES) % 10).tolist()
        table = pyarrow.table({"pixels": [image.tobytes() for image in images], "label": labels})
        parquet.write_table(table, folder / f"{shard}.parquet")
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i, (image, label) in enumerate(zip(images, labels, strict=True)):
                for ending, content in (("bin", image.tobytes()), ("cls", str(label).encode())):
                    about = tarfile.TarInfo(f"{i:06d}.{ending}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def source(reader: str, folder: Path) -> tuple[list[Any], Callable[[Any], Iterable[Any]], Callable[[Any], Any] | None]:
    """Return the shards, what reads one, and what decodes a sample."""
    if reader == "tensors":
        whole = torch.rand(SAMPLES, 784)
        return [*range(SHARDS)], lambda shard: ((image, shard) for image in whole), None
    if reader == "WebDataset":
        import webdataset

        how: dict[str, Any] = {"nodesplitter": None, "workersplitter": None, "shardshuffle": False}
        files = [str(folder / f"{shard}.tar") for shard in range(SHARDS)]
        return files, lambda file: webdataset.WebDataset(file, **how), lambda each: decoded(each["bin"], each["cls"])
    if reader == "Parquet":
        from pyarrow.parquet import ParquetFile

        files = [str(folder / f"{shard}.parquet") for shard in range(SHARDS)]

        def rows(file: str) -> Iterator[Any]:
            for group in ParquetFile(file).iter_batches():
                yield from group.to_pylist()

        return files, rows, lambda row: decoded(row["pixels"], row["label"])
    from datasets import load_dataset

    files = [str(folder / f"{shard}.parquet") for shard in range(SHARDS)]
    load = partial(load_dataset, "parquet", split="train", streaming=True)
    return files, lambda file: load(data_files=file), lambda row: decoded(row["pixels"], row["label"])


def decoded(pixels: bytes, label: Any) -> tuple[torch.Tensor, int]:
    """Return a sample."""
    return torch.from_numpy(np.frombuffer(pixels, np.uint8).astype(np.float32)), int(label)


def read_all(project: Path, folder: Path, reader: str, way: str) -> Record:
    """Read an epoch, in batches."""
    enter(project, folder)
    shards, read, decode = source(reader, folder)
    if way == "a plain loop":
        samples = (decode(each) if decode else each for shard in shards for each in read(shard))
        batches: Iterable[Any] = map(torch.utils.data.default_collate, iter(lambda: [*islice(samples, BATCH)], []))
    else:
        streams, runtime = imported("ddp_project.runtime.streams"), imported("ddp_project.runtime")
        stream = runtime.Stream(shards, read, decode, shuffle=SHUFFLED if way == "shuffled" else 0)
        config = imported("ddp_project.config").Config(global_batch_size=BATCH, workers=0)
        env = imported("ddp_project.runtime.launcher").DistEnv(0, 0, 1, 1)
        batches = streams.EvaluationStream(stream, config, env, torch.device("cpu"), None)
    return rate_of(batches)


def rate_of(batches: Iterable[Any]) -> Record:
    """Return the samples per second after the first batches, and by how much the peak of the memory grew."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before, waiting = memory("VmRSS"), iter(batches)
    first = len([*islice(waiting, WARM_UP)])
    started = time.perf_counter()
    rest = sum(1 for _ in waiting)
    seconds = time.perf_counter() - started
    assert first == WARM_UP
    return {"rate": round(rest * BATCH / seconds), "memory": memory("VmHWM") - before}


def memory(what: str) -> int:
    """Return a number of /proc/self/status in bytes."""
    [found] = re.findall(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) * 1024


def enter(project: Path, folder: Path) -> None:
    """Be a rank alone, of this project."""
    sys.path.insert(0, str(project))
    os.chdir(folder)
    torch.set_num_threads(1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def predict_all(project: Path, folder: Path, way: str) -> Record:
    """Predict from images in memory, with an export of new weights."""
    enter(project, folder)
    model = imported("ddp_project.model").build_model(None).eval()
    images = torch.rand(SHARDS * SAMPLES, 1, 8, 8)
    task = imported("ddp_project.task")
    Path("/proc/self/clear_refs").write_text("5")
    before, started = memory("VmRSS"), time.perf_counter()
    with torch.inference_mode():
        if way == "a plain loop":
            with open(folder / "plain.jsonl", "w") as file:
                for part in images.split(BATCH):
                    file.writelines(json.dumps(each) + "\n" for each in task.predict(model, [*part]))
        else:
            predictions, export = imported("ddp_project.runtime.predictions"), folder / "export"
            export.mkdir(exist_ok=True)
            (export / "model.json").write_text("{}")
            task.read_inputs = lambda model, file: images
            config, env = imported("ddp_project.config").Config(workers=0), imported("ddp_project.runtime.launcher")
            inputs = predictions.Inputs(model, [export / "model.json"], export, config)
            file = predictions.PredictionFile(folder / "predictions.jsonl", inputs)
            loader = predictions.InputLoader(inputs, 0, BATCH, config, env.DistEnv(0, 0, 1, 1), torch.device("cpu"))
            predictions.predict(model, loader, file, imported("ddp_project.runtime.exits").StopSignals())
    seconds = time.perf_counter() - started
    return {"rate": round(len(images) / seconds), "memory": memory("VmHWM") - before}


def copy(project: Path, folder: Path, way: str) -> Record:
    """Copy a checkpoint to another folder, as if that were a remote place."""
    enter(project, folder)
    run, there = folder / "run", folder / "there"
    shutil.rmtree(there, ignore_errors=True)
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    file = run / "checkpoints" / "step-00000001.pt"
    file.write_bytes(os.urandom(COPIED))
    storage, remote = imported("ddp_project.runtime.storage"), imported("ddp_project.runtime.remote")
    entry = {"file": file.name, "size": COPIED, "step": 1}
    storage.Manifest(run / "checkpoints").enter(storage.sha256_of(file), entry)
    mirror = remote.Mirror(f"file://{there}", run, keep=1)
    mirror.fetch(resumes=True)
    Path("/proc/self/clear_refs").write_text("5")
    before, started = memory("VmRSS"), time.perf_counter()
    if way == "a plain loop":
        there.mkdir()
        shutil.copyfile(file, there / file.name)
    else:
        mirror.send()
        mirror.finish()
    return {"rate": round(COPIED / (time.perf_counter() - started)), "memory": memory("VmHWM") - before}
