"""Reads back the records of each logger, by the logger's own reader or format, not by the code under test."""

import csv
import json
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

History = dict[str, list[tuple[int, float]]]  # the steps and values of each metric, in the order of recording
OF_CLOCK = ("samples_per_second", "peak_memory_gib", "device/", "waiting/")  # how names begin that depend on the clock


def read_jsonl(run_dir: Path) -> History:
    """Read metrics.jsonl, which every run has."""
    history: History = defaultdict(list)
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "event" not in record:
            for name in record.keys() - {"step", "time"}:
                history[name].append((record["step"], record[name]))
    return history


def read_csv(run_dir: Path) -> History:
    history: History = defaultdict(list)
    with open(run_dir / "metrics.csv", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            history[row["metric"]].append((int(row["step"]), float(row["value"])))
    return history


def read_tensorboard(run_dir: Path) -> History:
    """Read the event files in the order of recording. TensorBoard itself orders them by name: second and process."""
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]

    events = event_accumulator.EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    history = {}
    for name in events.Tags()["scalars"]:
        recorded = sorted(events.Scalars(name), key=lambda event: event.wall_time)
        history[name] = [(event.step, event.value) for event in recorded]
    return history


def wandb_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "wandb").glob("offline-run-*/run-*.wandb"))


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file, which W&B's own protocol buffers read: a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    block, header = 32768, 7
    data = file.read_bytes()
    place, content = header, b""  # W&B's file header is as long as the header of a chunk
    while place + header <= len(data):
        if block - place % block < header:
            place += block - place % block  # the rest of a block that no chunk fits in
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        content += data[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # a whole record, or its last chunk
            yield Record.FromString(content)
            content = b""


def read_wandb(run_dir: Path) -> History:
    """Read what W&B would send of the newest run. A new run in the same folder has a separate W&B run."""
    history: History = defaultdict(list)
    files = wandb_files(run_dir)
    of_newest = [file for file in files if file.name == files[-1].name]
    for record in (record for file in of_newest for record in wandb_records(file)):
        values = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for name, value in values.items():
            if not name.startswith("_"):
                history[name].append((values["_step"], value))
    return history


def mlflow_client(run_dir: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{run_dir}/mlflow.db")


def mlflow_runs(folder: Path, condition: str = "") -> list[Any]:
    client = mlflow_client(folder)
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(everywhere, condition, order_by=["attributes.start_time DESC"]))


def read_mlflow(folder: Path, condition: str = "") -> History:
    """Read the metrics of the newest run, in the order in which they were recorded."""
    client, run = mlflow_client(folder), mlflow_runs(folder, condition)[0]
    history = {}
    for name in run.data.metrics:
        recorded = sorted(client.get_metric_history(run.info.run_id, name), key=lambda metric: metric.timestamp)
        history[name] = [(metric.step, metric.value) for metric in recorded]
    return history


# By the answer to "logging". For other answers, the check reads metrics.jsonl alone, and says so.
READERS: dict[str, Callable[[Path], History]] = {
    "console": read_jsonl,
    "csv": read_csv,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


# The slow part of a logger's first use, such as making an empty store, runs once. Every run directory starts with a
# copy of the resulting folder.
FIRST_USES: dict[str, Callable[[Path], Any]] = {"mlflow": mlflow_client}
