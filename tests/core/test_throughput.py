"""The throughput of a device, its share of the peak, and what the training waits for, in runs where these are known."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from generator.check.train.records import OF_CLOCK, read_jsonl
from tests.conftest import Package, Render
from tests.support.processes import scaled
from tests.support.ranks import run_train, train_on_ranks, wrap

OPTIONS = ("--max-steps", "24", "--log-every", "8", "--workers", "0")
# FLOPs of a digit: a product takes two, and is there for the outputs, the weights and, but for the images, the inputs.
OF_LAYERS = 2 * (2 * 8 * 8 * 32 * 9) + 3 * (2 * 4 * 4 * 64 * 32 * 9) + 3 * (2 * 64 * 2 * 2 * 10)


class Slow(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return self.dataset[index]


def train_with_slow_data() -> None:
    wrap("data.load_data", lambda load_data: lambda config: [*map(Slow, load_data(config))])
    run_train()


def train_slowly(function: str, rank: str, seconds: float) -> None:
    """Let a function take longer on a rank."""

    def make(before: Any) -> Any:
        def slowly(*arguments: Any) -> Any:
            if os.environ["RANK"] == rank:
                time.sleep(seconds)
            return before(*arguments)

        return slowly

    wrap(function, make)
    run_train()


def of_clock(run_dir: Path) -> dict[str, list[float]]:
    found = {name: [value for _, value in values] for name, values in read_jsonl(run_dir).items()}
    return {name: values for name, values in found.items() if name.startswith(OF_CLOCK)}


@pytest.mark.parametrize(
    ("slow", "longest"),
    [
        (None, "waiting/data"),
        (("task.compute", "1", 0.15), "waiting/ranks"),
        (("task.compute", "0", 0.15), ""),
        (("runtime.checkpoint.writer_of", "0", 0.6), "waiting/saves"),
    ],
    ids=["data", "another rank", "itself", "saves"],
)
def test_rank_0_tells_what_it_waits_for(slow: Any, longest: str, project: Render, tmp_path: Path) -> None:
    entry: Any = partial(train_slowly, slow[0], slow[1], scaled(slow[2])) if slow else train_with_slow_data
    train_on_ranks(project(), tmp_path / "run", *OPTIONS, "--save-every", "4", entry=entry)
    found = of_clock(tmp_path / "run")
    shares = {name: sum(values) / len(values) for name, values in found.items() if name.startswith("waiting/")}
    assert [name for name, share in shares.items() if share > 0.5] == [longest] * bool(longest), shares
    assert all(0 <= share <= 1 for share in shares.values())
    rates, of_devices = found["samples_per_second"], found["device/samples_per_second"]
    assert of_devices == pytest.approx([rate / 2 for rate in rates])


def train_with_a_peak() -> None:
    """Let the table of peaks have this CPU: 10^9 FLOP/s."""
    wrap("runtime.throughput.PEAKS", lambda peaks: {"cpu": 0.001, **peaks})
    run_train()


def test_the_mfu_is_what_the_layers_compute(project: Render, tmp_path: Path) -> None:
    """With several micro-batches, of which the last step of an epoch has fewer; in float32 no peak is known."""
    precision = ("--precision", "bf16", "--accum-steps", "2")
    train_on_ranks(project(), tmp_path / "run", *OPTIONS, *precision, entry=train_with_a_peak)
    found = of_clock(tmp_path / "run")
    rates = found["device/samples_per_second"]
    assert found["device/mfu"] == pytest.approx([rate * OF_LAYERS / 1e9 for rate in rates])
    train_on_ranks(project(), tmp_path / "other", *OPTIONS, entry=train_with_a_peak)
    assert "device/mfu" not in of_clock(tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
    ],
)
def test_a_peak_is_that_of_the_whole_name(
    name: str, peak: float | None, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    config = package("config").Config(precision="bf16")
    assert package("runtime.throughput").peak_of(config, torch.device("cuda")) == peak


def test_tokens_are_counted_where_the_task_has_them(project: Render, tmp_path: Path) -> None:
    train_on_ranks(project(task="language"), tmp_path / "run", *OPTIONS, "--context", "32")
    found = of_clock(tmp_path / "run")
    for tokens, samples in zip(found["device/tokens_per_second"], found["samples_per_second"], strict=True):
        assert 0.98 < tokens / (samples / 2 * 32) <= 1 + 1e-9, "the last window of a file has padding"
