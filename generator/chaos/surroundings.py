"""What a run has around it and what can fail there: clock, data, disk, shared memory, CPU time, links and servers."""

import math
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock, Thread, Timer
from typing import IO, Any, Protocol

from generator.chaos import faulty_dataset
from generator.chaos.job import Job

HOUR = 3600  # seconds
SHM = "/dev/shm"
OWN_SHM = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs ddp-chaos {SHM} && exec "$0" "$@"')
SLACK = 1 << 20  # bytes, in which processes may have taken some more
CHUNK = bytes(1 << 16)
TRIES = 100  # to make shared memory smaller while processes take more of it
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PERIOD = 100_000  # microseconds, as containers have it
GONE_WITHIN = 5.0  # seconds, in which the last process leaves a control group


@dataclass(frozen=True)
class Clock:
    """A clock, and where it is read from: a library that is preloaded into all processes shifts the time of day."""

    library: Path
    file: Path

    def jump(self, seconds: int) -> None:
        """Be so far from the time of this machine from now on."""
        self.file.write_text(f"{seconds:+d}")

    @property
    def variables(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "DDP_CLOCK": str(self.file)}


def build_clock(folder: Path) -> Clock:
    """Build the library in a folder. Raises OSError, which says why, if that is not possible."""
    clock = Clock(folder / "clock.so", folder / "clock")
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("there is no C compiler (cc)")
    source = Path(__file__).with_name("clock.c")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(clock.library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"cc fails: {(done.stderr.strip().splitlines() or ['it says nothing'])[0]}")
    clock.jump(HOUR)
    tell = [sys.executable, "-c", "import time; print(time.time())"]
    told = subprocess.run(tell, env={**os.environ, **clock.variables}, capture_output=True, text=True).stdout
    if not told or abs(float(told) - time.time() - HOUR) > HOUR / 2:
        raise OSError(f"what cc builds in {folder} moves no clock, as on a disk that is mounted with noexec")
    clock.jump(0)
    return clock


@dataclass
class Teller:
    """Something whose states, once they have changed a call, are lines of a file."""

    told: Path
    known: int = 0  # lines

    def states_met(self) -> set[str]:
        """Return the states that have changed a call since this was asked last."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        new, self.known = lines[self.known :], len(lines)
        return {*new}


class Data(Teller):
    """The data of an owner, which follows orders in loader workers: see faulty_dataset."""

    def __init__(self, place: Path) -> None:
        """Make the files in a new folder through which the data of jobs gets its orders."""
        super().__init__(place / "orders.met")
        self.orders = place / "orders"
        place.mkdir()
        shutil.copy(faulty_dataset.__file__, place / "sitecustomize.py")
        self.set_state("sound")

    @property
    def variables(self) -> Mapping[str, str]:
        places = [str(self.orders.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(places), faulty_dataset.ORDERS: str(self.orders)}

    def set_state(self, state: str, workers: Iterable[int] = ()) -> None:
        """Be so from now on in processes with these IDs, and sound in others."""
        self.orders.write_text(" ".join([state, *map(str, workers)]))


class Disk(Teller):
    """A disk that follows orders: see faulty_filesystem. No state of it reaches the files themselves."""

    def __init__(self, place: Path, orders: IO[str]) -> None:
        super().__init__(place / "disk.changes")
        self.folder, self.mount = place / "files", place / "disk"  # with the files, and where programs see them
        self.orders = orders

    def set_state(self, state: str) -> None:
        self.orders.write(f"{state}\n")
        self.orders.flush()


def reason_in(log: Path) -> str:
    """Return the first line of a file that is no part of a traceback but its end, if it has one."""
    lines = [line for line in log.read_text().splitlines() if line.strip() and not line.startswith((" ", "Traceback"))]
    return [*lines, "it says nothing"][0]


@contextmanager
def failing_disk(place: Path) -> Iterator[Disk]:
    """Yield a disk in a new folder. Raises OSError, which says why, if FUSE is not to be had."""
    folder, mount = place / "files", place / "disk"
    for each in (folder, mount):
        each.mkdir(parents=True)
    with open(place / "disk.log", "w") as log, open(place / "disk.changes", "w") as told:
        command = [sys.executable, "-m", "generator.chaos.faulty_filesystem", str(folder), str(mount)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=told, stderr=log, text=True)
    assert server.stdin
    try:
        while not mount.is_mount():
            if server.poll() is not None:
                raise OSError(f"FUSE does not serve a disk: {reason_in(place / 'disk.log')}")
            time.sleep(0.01)
        yield Disk(place, server.stdin)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], capture_output=True)
        server.kill()
        server.communicate()


@dataclass
class SharedMemory:
    """Provides jobs with a private /dev/shm, and fills it."""

    before: Sequence[str] = OWN_SHM  # prefix of a command: its private /dev/shm ends with it
    over: Event = field(default_factory=Event)
    threads: list[Thread] = field(default_factory=list)

    def fill(self, pid: int) -> None:
        """Fill the shared memory of a process until release(). Raises ProcessLookupError if the process is gone."""
        place = Path(f"/proc/{pid}/root{SHM}")
        try:
            if os.stat(place).st_dev == os.stat(SHM).st_dev:
                raise AssertionError(f"{pid} has no {SHM} of its own")
            descriptor = os.open(place / "ddp-chaos", os.O_WRONLY | os.O_CREAT)
            make_small(pid)
        except FileNotFoundError as error:
            raise ProcessLookupError from error
        take_all(descriptor)
        self.threads.append(Thread(target=self._keep_full, args=(descriptor,), daemon=True))
        self.threads[-1].start()

    def release(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.threads.clear()
        self.over.clear()

    def _keep_full(self, descriptor: int) -> None:
        """Take the room that a received batch frees, so that the next batch has none."""
        while not self.over.wait(0.001):
            take_all(descriptor)
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def make_small(pid: int) -> None:
    """Shrink a /dev/shm to little more than is in use, so that filling it needs nearly no memory."""
    for _ in range(TRIES):
        stat = os.statvfs(f"/proc/{pid}/root{SHM}")
        size = (stat.f_blocks - stat.f_bfree) * stat.f_frsize + SLACK
        command = ["nsenter", "--target", str(pid), "--mount", "mount", "-o", f"remount,size={size}", SHM]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
        time.sleep(0.001)
    raise ProcessLookupError(pid)


def take_all(descriptor: int) -> None:
    with suppress(OSError):
        while os.write(descriptor, CHUNK):
            pass


def shared_memory() -> SharedMemory:
    """Return a SharedMemory. Raises OSError with the reason if jobs cannot have a private /dev/shm."""
    try:
        done = subprocess.run([*OWN_SHM, "nsenter", "--version"], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise OSError(f"there is no {error.filename}") from error
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["unshare says nothing"])[0])
    return SharedMemory()


@dataclass
class Quota:
    """A quota of CPU time, as in a container, by a control group of version 1 or 2."""

    folder: Path
    known: int = 0  # periods

    @property
    def before(self) -> Sequence[str]:
        return ("sh", "-c", 'echo 0 >"$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def limit(self, cores: float) -> None:
        """Limit the processes of the group to the CPU time of this number of cores together; math.inf is no limit."""
        quota = int(cores * PERIOD) if cores < math.inf else None
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{quota or 'max'} {PERIOD}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota or -1))

    def states_met(self) -> set[str]:
        """Return "throttled" if the quota made processes wait since the last call."""
        stat = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        before, self.known = self.known, int(stat.get("nr_throttled", 0))
        return {"throttled"} if self.known > before else set()


def parent_group() -> Path:
    """Return a control group whose children can have a quota. Raises OSError if there is none."""
    lines = [line.split(":", 2) for line in OWN_GROUP.read_text().splitlines()]
    paths = {name: path for _, names, path in lines for name in names.split(",")}  # version 2 has no names
    if "cpu" in paths:
        return GROUPS / "cpu" / paths["cpu"].lstrip("/")
    group = GROUPS / paths.get("", "/").lstrip("/")
    for place in (group, *group.parents):  # in version 2, a group with processes cannot delegate
        with suppress(FileNotFoundError):
            if "cpu" in (place / "cgroup.subtree_control").read_text().split():
                return place
    raise OSError("no control group hands on CPU time")


@contextmanager
def cpu_quota() -> Iterator[Quota]:
    """Yield a control group without a quota. Raises OSError with the reason if it cannot be made."""
    quota = Quota(parent_group() / f"ddp-chaos-{uuid.uuid4().hex[:12]}")
    os.mkdir(quota.folder)
    try:
        quota.limit(math.inf)
        yield quota
    finally:
        deadline = time.monotonic() + GONE_WITHIN
        while quota.folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                os.rmdir(quota.folder)
            time.sleep(0.02)


class Stateful(Protocol):
    """A part with states, of which one is "sound": a disk, a link between machines or a server."""

    def set_state(self, state: str) -> None: ...


class Machines(Protocol):
    """The machines of a cluster, which run its jobs."""

    def take(self, job: Job, victim: float) -> None:
        """Take a machine from a job. Raises NoVictim if the job has none."""

    def restore(self) -> None:
        """Bring the machine back."""


@dataclass
class Surroundings:
    """The surroundings of a run (clock, link, disk, ...), and the changes made to them."""

    clock: Clock | None = None
    link: Stateful | None = None
    machines: Machines | None = None  # of a scheduler that restarts lost jobs
    server: Stateful | None = None  # a tracking server
    data: Data | None = None
    shm: SharedMemory | None = None  # if each job has a private one
    quota: Quota | None = None  # of all jobs
    disk: Disk | None = None
    pace: float = 1.0  # factor for the lengths of faults that pass
    hit: int | None = None  # the rank that was killed or frozen last, or whose process was
    timers: list[Timer] = field(default_factory=list)
    changes: dict[Hashable, object] = field(default_factory=dict)  # the last change of each thing
    lock: Any = field(default_factory=RLock)

    @property
    def variables(self) -> Mapping[str, str]:
        return {name: value for part in (self.clock, self.data) if part for name, value in part.variables.items()}

    @property
    def before(self) -> Sequence[str]:
        """Return the prefix of a command that gives the job its quota and its shared memory."""
        return [word for part in (self.quota, self.shm) if part for word in part.before]

    def change(self, thing: Hashable, begin: Callable[[], None], end: Callable[[], None], length: float) -> None:
        """Change a thing for some time, and undo the change, unless a later change of the same thing replaced it."""
        with self.lock:
            begin()
            self.changes[thing] = mine = object()

        def is_over() -> None:
            with self.lock:
                if self.changes[thing] is mine:
                    end()

        if length < math.inf:
            self.later(length, is_over)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call an action after some seconds, times the pace of the run."""
        self.timers.append(Timer(seconds * self.pace, action))
        self.timers[-1].start()

    def reset(self) -> None:
        """Wait for the end of faults that pass, and undo the others."""
        for timer in self.timers:
            timer.join()
        self.timers.clear()
        for part in filter(None, (self.link, self.data)):
            part.set_state("sound")
        if self.shm:
            self.shm.release()
        if self.quota:
            self.quota.limit(math.inf)

    def states_met(self) -> set[str]:
        return set().union(*(part.states_met() for part in (self.disk, self.data, self.quota) if part))
