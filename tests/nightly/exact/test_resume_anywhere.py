"""A run that is stopped after any of its steps, or told to stop in any of its micro-batches, ends as a whole one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Measured, Render
from tests.core.exact.test_resume import END, SIGNAL, assert_signals_change_nothing, assert_stops_change_nothing
from tests.core.exact.test_streams import assert_stops_of_streams_change_nothing, kind, streaming
from tests.support.forked_runs import TELLING

__all__ = ["kind", "streaming"]
VARIANTS: dict[str, tuple[dict[str, object], dict[str, Any], Sequence[int]]] = {
    # answers, options, and the steps to stop after
    "float32": ({}, {}, range(1, END)),
    "float32 with clipping": ({}, {"clip_norm": 0.1}, range(2, END, 4)),
    "float32, loader workers": ({}, {"workers": 2}, range(1, END, 2)),
    "bfloat16": ({"amp": "torch"}, {"precision": "bf16"}, range(1, END)),
    "float16": ({"amp": "torch"}, {"precision": "fp16"}, range(1, END)),
    "float16, loader workers": ({"amp": "torch"}, {"precision": "fp16", "workers": 2}, range(4, END, 5)),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_anywhere_it_ends_the_same(variant: str, small: Render, tmp_path: Path, measured: Measured) -> None:
    answers, options, stops = VARIANTS[variant]
    assert_stops_change_nothing(small(logging="csv", **answers), options, stops, tmp_path)
    measured("resume", variant, len(stops))


def test_a_stream_stopped_after_any_step_ends_the_same(streaming: Path, tmp_path: Path) -> None:
    assert_stops_of_streams_change_nothing(streaming, tmp_path, range(1, 13))


def test_a_signal_to_one_rank_anywhere_changes_nothing(small: Render, tmp_path: Path, measured: Measured) -> None:
    micro_batches = range(1, 28)
    assert_signals_change_nothing(small(TELLING + SIGNAL, logging="csv"), micro_batches, tmp_path)
    measured("resume", "float32, a signal to rank 1", len(micro_batches))
