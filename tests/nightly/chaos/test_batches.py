"""Whatever keeps batches from coming is named by forked ranks."""

import math
import resource
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest

from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import Need, possible_faults
from generator.chaos.nemesis import Nemesis
from generator.chaos.schedule import TRAINING, Fault, Schedule, Start
from generator.chaos.surroundings import Data, Surroundings, cpu_quota, shared_memory
from tests.conftest import Measured, Render
from tests.support.chaos import forked
from tests.support.processes import scaled


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    """Data that obeys, shared memory that can be full and a quota, as far as they are to be had; some must be."""
    around = Surroundings(data=Data(tmp_path / "inside"))
    with ExitStack() as stack:
        for part, make in (("shm", shared_memory), ("quota", lambda: stack.enter_context(cpu_quota()))):
            try:
                setattr(around, part, make())
            except OSError as error:
                warnings.warn(f"no {part}: {error}", stacklevel=1)
        yield around


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="Linux alone can limit another process")
def test_what_keeps_batches_from_coming_is_named(
    surroundings: Surroundings, project: Render, tmp_path: Path, measured: Measured
) -> None:
    place, around = project(logging="csv"), surroundings
    there = [Need.LOADER, *([Need.SHM] if around.shm else []), *([Need.QUOTA] if around.quota else [])]
    kinds = [kind for kind in possible_faults(*there) if KINDS[kind].need in there]
    start, options = forked(place, tmp_path, around), ("--timeout", str(math.ceil(scaled(3))))
    nemesis = Nemesis(place, start, "csv", tmp_path, kinds, around, options=options, slowness=lambda: scaled(2))
    one, every = 0.5, 0.501  # ranks that the faults hit, in turn
    victims = zip(range(len(kinds)), kinds, cycle([every, one]))
    faults = [Fault(number, kind, TRAINING, 1, 0.0, victim, 0.1) for number, kind, victim in victims]
    verdict = nemesis.run(Schedule(0, [Start(2, {"workers": "1"}, [fault]) for fault in faults]))
    assert not verdict.wrong, "\n".join([*map(str, verdict.results), *verdict.wrong])
    assert [fault.kind for fault in verdict.happened] == kinds
    times = Counter((fault.kind, "every rank" if fault.victim == every else "one rank") for fault in verdict.happened)
    for (kind, victim), number in times.items():
        measured("batches", f"{kind}, for {victim} (times)", number)
