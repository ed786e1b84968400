"""Faults that nobody chose, at any moment and together, are survived by forked ranks."""

import math
import os
import resource
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest

from generator.chaos.faults import FAULTS as KINDS
from generator.chaos.faults import LOST, Need, possible_faults
from generator.chaos.invariants import newest_step
from generator.chaos.job import launch, loader_workers
from generator.chaos.nemesis import OPTIONS, Nemesis
from generator.chaos.schedule import TRAINING, Fault, Schedule, Start
from generator.chaos.surroundings import Data, Surroundings, cpu_quota, failing_disk, shared_memory
from tests.conftest import Measured, Render
from tests.support.chaos import befall, forked, streaming
from tests.support.processes import scaled, wait_until

FAULTS = {"a data set": (15, 0), "a stream": (10, 13)}  # so many at least, and the first seed


@pytest.fixture
def needs(tmp_path: Path) -> list[Need]:
    """What there is beside ranks: a disk that fails, if FUSE is to be had; fails where it must be."""
    try:
        with failing_disk(tmp_path / "trial"):
            return [Need.DISK]
    except OSError as error:
        if Path("/dev/fuse").exists() and os.geteuid() == 0:
            raise
        warnings.warn(f"no disk fails: {error}", stacklevel=1)
        return []


@pytest.mark.parametrize("data", FAULTS)
def test_what_nobody_chose_is_survived(data: str, needs: list[Need], own_project: Render, tmp_path: Path) -> None:
    place = own_project(logging="csv")
    kinds = possible_faults(*needs)
    nemesis = Nemesis(place, forked(place, tmp_path), "csv", tmp_path, kinds, slowness=lambda: scaled(2))
    nemesis.options = streaming(place) if data == "a stream" else ()
    befall(nemesis, *FAULTS[data])


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


def test_a_process_that_loads_data_for_a_spawned_rank_is_killed(project: Render, tmp_path: Path) -> None:
    start, run_dir = launch(project(launcher="spawn", logging="csv"), tmp_path, (), {}), tmp_path / "run"
    job = start(run_dir, 2, [*OPTIONS, "--workers", "1", "--save-every", "5"])
    try:
        wait_until(lambda: newest_step(run_dir) or job.code() is not None, told=job.output)
        workers = {worker.pid for rank in job.ranks() for worker in loader_workers(rank)}
        assert len(job.ranks()) == 2
        assert len(workers) >= 2, "one for each rank, for its training set, and perhaps another to evaluate"
        assert not workers & {rank.pid for rank in job.ranks()}
        KINDS["kill a loader worker"].act(job, Surroundings(), 0.0, 0.1)
        assert wait_until(job.code, told=job.output) == LOST, job.output()
        assert "a process that loads its data has gone" in job.output()
    finally:
        job.end()
