"""The doctor names a quota of CPU time that a control group of this machine has."""

import os
from pathlib import Path

import pytest
from generator.chaos.quota import cpu_quota

from generator.chaos.job import launch
from tests.conftest import Render
from tests.support.processes import wait_until


@pytest.mark.parametrize(
    ("cores", "said"), [(1.0, "2 ranks share a quota of 1 core:"), (None, "sound: a run can start here")]
)
def test_the_doctor_names_a_quota(cores: float | None, said: str, project: Render, tmp_path: Path) -> None:
    place = project(launcher="torchrun", logging="csv")
    try:
        with cpu_quota() as quota:
            if cores:
                quota.limit(cores)
            job = launch(place, tmp_path, (), {}, quota.before)(tmp_path / "run", 2, ["--doctor", "--device", "cpu"])
            wait_until(lambda: job.code() is not None, limit=100, told=job.output)
            assert job.code() == 0, job.output()
            assert said in job.output()
            assert ("quota" in job.output()) == bool(cores)
    except OSError as error:
        if os.geteuid() == 0 and Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
            raise
        pytest.skip(f"no quota: {error}")
