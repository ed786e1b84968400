"""A quota of CPU time, as containers have it: the job is in a control group of its own, of version 1 or 2 of them."""

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PERIOD = 100_000  # microseconds, as containers have it
GONE_WITHIN = 5.0  # seconds, in which the last process leaves a group


@dataclass
class Quota:
    """A control group."""

    folder: Path
    known: int = 0  # periods

    @property
    def before(self) -> Sequence[str]:
        """What goes before a command that is to run in it."""
        return ("sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def limit(self, cores: float) -> None:
        """Let all that runs in it have the time of so many cores together."""
        self._set(str(int(cores * PERIOD)))

    def lift(self) -> None:
        """Let it have as much as there is."""
        self._set("max")

    def _set(self, quota: str) -> None:
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.folder / "cpu.cfs_quota_us").write_text("-1" if quota == "max" else quota)

    def states_met(self) -> set[str]:
        """Return "throttled" if processes have had to wait for it since this was asked last."""
        stat = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        before, self.known = self.known, int(stat.get("nr_throttled", 0))
        return {"throttled"} if self.known > before else set()


def parent_group(groups: Path = GROUPS, own: Path = OWN) -> Path:
    """Return the control group in which others can have a quota. Raises OSError if there is none."""
    lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    paths = {name: path for _, names, path in lines for name in names.split(",")}  # version 2 has no names
    if "cpu" in paths:
        return groups / "cpu" / paths["cpu"].lstrip("/")
    group = groups / paths.get("", "/").lstrip("/")
    for place in (group, *group.parents):  # a group of version 2 that has processes can hand on nothing
        with suppress(FileNotFoundError):
            if "cpu" in (place / "cgroup.subtree_control").read_text().split():
                return place
    raise OSError("no control group hands on CPU time")


@contextmanager
def cpu_quota() -> Iterator[Quota]:
    """Yield a control group without a quota. Raises OSError, which says why, if none is to be had."""
    quota = Quota(parent_group() / f"ddp-chaos-{uuid.uuid4().hex[:12]}")
    os.mkdir(quota.folder)
    try:
        quota.lift()
        yield quota
    finally:
        deadline = time.monotonic() + GONE_WITHIN
        while quota.folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                os.rmdir(quota.folder)
            time.sleep(0.02)
