"""A copy of the run directory in a remote place such as s3://bucket/run: whole after each save, fetched to resume."""

import fcntl
import json
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Condition, Thread
from typing import Any, TypeVar

from .cli import PLACE, local_run_dir, remote_place
from .exits import UserError, in_one_line
from .storage import Manifest, link_atomically, sha256_of

MANIFEST = "checkpoints/manifest.json"
OF_THIS_MACHINE = (MANIFEST, PLACE, "fetching", "in-use", "starts")  # files that are not copied as they are
STALLED = 120.0  # seconds without progress after which the end of a run no longer waits
LONGEST_PAUSE = 30.0  # seconds between two tries
ANSWER = 30.0  # seconds that the doctor waits for it

T = TypeVar("T")
Entries = dict[str, dict[str, Any]]  # of a manifest, by the SHA-256 of checkpoints, in the order of saving


class Mirror:
    """Copies a run directory to a place that fsspec knows, in a thread of its own: no step waits for the network.

    A checkpoint there has its digest in its name, so none is ever written over. The manifest is written after what it
    names, and what it does not name any more is deleted after that: whenever this is cut, the place has a whole run.
    """

    def __init__(self, url: str, run_dir: Path, keep: int) -> None:
        """Name the place, and how many checkpoints to keep there. Nothing is read or written yet."""
        self.url, self.run_dir, self.keep = url, run_dir, keep
        self.manifest = Manifest(run_dir / "checkpoints")
        self.written: set[bytes | None] = set()  # the manifests that may be there if no other program writes one
        self.put: set[str] = set()  # checkpoints that this program has copied
        self.copied: dict[str, tuple[int, int]] = {}  # size and time of the other files
        self.waiting: tuple[Entries, set[str]] | None = None  # the manifest and the names of other files to copy next
        self.is_busy = False  # copying
        self.problem: str | None = None  # why the last try failed
        self.is_lost = False  # to another program
        self.progressed = 0.0  # time at which something was copied last
        self.gave_up = False  # to wait for the copy
        self.changed = Condition()
        self.thread: Thread | None = None

    def fetch(self, *, resumes: bool, follows: bool = False) -> bool:
        """Get ready to copy. If the run resumes and is ahead there, bring the newest and the best checkpoint first.

        A node that follows takes what is there in any case. Returns whether a run is there. Raises UserError if the
        place cannot be reached, or has a run that is not to go on.
        """
        place = self.run_dir / PLACE
        if place.exists() and (other := place.read_text()) != self.url:
            raise UserError(f"{self.run_dir} is the copy of {other}: move it away, or choose another --run-dir")
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it reports what is an error of a call here, too
        with described(self.url):
            self.files, self.root = file_system(self.url)
            there = self._read_manifest()
            self.written, self.had_manifest = {there}, there is not None
            try:
                theirs: Entries = {} if there is None else json.loads(there)
            except ValueError as error:
                advice = "put an earlier one in its place, or choose another --run-dir"
                raise UserError(f"{self.url}/{MANIFEST} is damaged: {advice}") from error
            if theirs and not resumes:
                raise UserError(f"{self.url} holds a run already: go on with --resume, or choose another --run-dir")
            if theirs and self._is_behind(theirs, follows=follows):
                self.run_dir.mkdir(parents=True, exist_ok=True)
                with open(self.run_dir / "fetching", "w") as file:
                    with suppress(OSError):  # some file systems have no locks
                        fcntl.flock(file, fcntl.LOCK_EX)  # ranks that share the folder may do the same
                    if self._is_behind(theirs, follows=follows):
                        self._download(theirs)
                place.write_text(self.url)
        return bool(theirs)

    def begin(self, claim: Callable[[], T]) -> T:
        """Make the run directory by claim(), and return its result. Raises UserError if the place takes no files."""
        with described(self.url):
            self.files.pipe_file(f"{self.root}/{PLACE}", self.url.encode())
        claimed = claim()
        (self.run_dir / PLACE).write_text(self.url)
        return claimed

    def _read_manifest(self) -> bytes | None:
        self.files.invalidate_cache()
        with suppress(FileNotFoundError):
            found: bytes = self.files.cat_file(f"{self.root}/{MANIFEST}")
            return found
        return None

    def _is_behind(self, theirs: Entries, *, follows: bool) -> bool:
        """Return whether the newest checkpoint there is unknown here, and not older than that of this machine."""
        ours, newest = self.manifest.read(), [*theirs][-1]
        if newest in ours and self._path(ours[newest]).is_file():
            return False
        step = max((entry.get("step", 0) for entry in ours.values() if self._path(entry).is_file()), default=-1)
        return bool(follows or theirs[newest]["step"] >= step)

    def _path(self, entry: dict[str, Any]) -> Path:
        return self.manifest.folder / Path(entry["file"]).name

    def _download(self, theirs: Entries) -> None:
        """Replace what is here by the newest checkpoint that is whole, the best one, and the other files."""
        names = {name.removeprefix(self.root).lstrip("/"): name for name in self.files.find(self.root)}
        others = tuple(inner.removesuffix(MANIFEST) for inner in names if inner.endswith(f"/{MANIFEST}"))  # other runs
        for inner, name in names.items():
            elsewhere = inner.startswith(("checkpoints/", *others)) or ".." in inner.split("/")
            if not elsewhere and inner not in OF_THIS_MACHINE:
                get_file(self.files, name, self.run_dir / inner)
        newest_first = [*theirs.items()][::-1]
        newest = next((each for each in newest_first if self._get_whole(*each)), None)
        if newest is None:
            raise UserError(f"no checkpoint of {self.url} is whole")
        best = next((each for each in newest_first if each[1].get("best") and self._get_whole(*each)), None)
        if best is None and any(entry.get("best") for entry in theirs.values()):
            best = newest  # else nothing could be evaluated or exported
        # Whole again if this is cut: the manifest that tells about the links comes after them.
        for name, found in {"last.pt": newest, "best.pt": best}.items():
            if found:
                link_atomically(self._path(found[1]), self.manifest.folder / name)
        kept = dict(each for each in (best, newest) if each)
        self.manifest.write(kept)
        for stale in {*self.manifest.folder.glob("step-*.pt")} - {*map(self._path, kept.values())}:
            stale.unlink(missing_ok=True)

    def _get_whole(self, sha256: str, entry: dict[str, Any]) -> bool:
        """Bring a checkpoint. Returns whether it has the right bytes."""
        path = self._path(entry)
        with suppress(FileNotFoundError):
            if not path.is_file() or sha256_of(path) != sha256:
                get_file(self.files, f"{self.root}/checkpoints/{name_of(sha256, entry)}", path)
            if sha256_of(path) == sha256:
                return True
        logging.warning("%s of %s is missing or damaged", entry["file"], self.url)
        return False

    def send(self) -> None:
        """Copy what is new, in the background. Raises UserError if another program writes there."""
        if self.is_lost:
            raise UserError(str(self.problem))
        files = self._changed_files()
        with self.changed:
            self.waiting = self.manifest.read(), (self.waiting[1] if self.waiting else set()) | files
            self.changed.notify_all()
        if self.thread is None:
            self.thread = Thread(target=self._copy_for_ever, daemon=True)  # else a dead network would keep the program
            self.thread.start()

    def _changed_files(self) -> set[str]:
        """Return the names of files, but for checkpoints of the run, that are others than when this looked last."""
        found = set()
        for path in self.run_dir.rglob("*"):
            name = path.relative_to(self.run_dir).as_posix()
            is_checkpoint = path.parent == self.manifest.folder and path.suffix == ".pt"
            if name in OF_THIS_MACHINE or is_checkpoint or path.suffix == ".tmp" or not path.is_file():
                continue
            with suppress(OSError):  # it is gone meanwhile, say
                form = path.stat().st_size, path.stat().st_mtime_ns
                if self.copied.get(name) != form:
                    found.add(name)
                    self.copied[name] = form
        return found

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all is copied, for some seconds at most or, without a number, as long as there is progress.

        Raises UserError if it is not, or if another program writes there.
        """
        began = time.monotonic()
        with self.changed:
            while (self.waiting or self.is_busy) and not self.is_lost:
                since = began if seconds else max(began, self.progressed)
                if time.monotonic() - since > (seconds or STALLED):
                    break
                self.changed.wait(1.0)
            if not (self.is_lost or self.waiting or self.is_busy):
                return
        self.gave_up = True
        problem = self.problem or f"--run-dir {self.url} takes too long"
        advice = "" if self.is_lost else f"; the run is whole in {self.run_dir}: start again with --resume to copy it"
        raise UserError(f"{problem}{advice}")

    def copy_now(self) -> None:
        """Copy what is new, and wait for it. Raises UserError as send() and finish() do."""
        self.send()
        self.finish()

    def _copy_for_ever(self) -> None:
        """Copy what waits, and try again after a pause if that fails."""
        pause = 1.0  # seconds
        while not self.is_lost:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting is not None)
                assert self.waiting is not None
                (manifest, files), self.waiting, self.is_busy = self.waiting, None, True
            problem = None
            try:
                with described(self.url):
                    self._copy(manifest, files)
            except UserError as error:
                problem = str(error)
            with self.changed:
                if problem:
                    newest, more = self.waiting or (manifest, files)
                    self.waiting = newest, files | more
                if bool(problem) != bool(self.problem):  # at the begin of an outage, and at its end
                    logging.warning("%s", f"{problem}; it is tried again" if problem else f"{self.url} has all again")
                self.problem, self.is_busy = problem, False
                self.changed.notify_all()
                pause = min(2 * pause, LONGEST_PAUSE) if problem else 1.0
                if problem:
                    self.changed.wait(pause)

    def _copy(self, manifest: Entries, files: set[str]) -> None:
        """Copy checkpoints and files, then the manifest that names them, and delete what it does not name."""
        self.files.invalidate_cache()
        try:
            listed = self.files.ls(f"{self.root}/checkpoints", detail=True)
        except FileNotFoundError:
            listed = []
        there = {Path(each["name"]).name: each["size"] for each in listed if each["type"] == "file"}
        newest_first = [*manifest.items()][::-1]
        best = next((sha256 for sha256, entry in newest_first if entry.get("best")), None)
        kept: Entries = {}
        for sha256, entry in newest_first:
            if len(kept) < self.keep or sha256 == best:
                name = name_of(sha256, entry)
                paths = [self._path(entry), *([self.manifest.folder / "best.pt"] if sha256 == best else [])]
                is_there = there.get(name, -1) == entry.get("size")
                if is_there or any(self._put(path, f"checkpoints/{name}", sha256) for path in paths):
                    kept[sha256] = entry
        self._check_that_no_other_writes()
        for name in sorted(files):
            self._put(self.run_dir / name, name)
            self._note_progress()
        if not kept:
            return
        self._check_that_no_other_writes()
        content = json.dumps(dict([*kept.items()][::-1]), indent=2).encode()
        self.written.add(content)  # also if the answer is lost
        self.files.pipe_file(f"{self.root}/{MANIFEST}", content)
        self.written = {content}
        names = {name_of(*each) for each in kept.items()}
        self.put |= names
        for name in [name for name in there.keys() - names if name in self.put or (self.had_manifest and is_own(name))]:
            try:
                self.files.rm_file(f"{self.root}/checkpoints/{name}")
            except Exception as error:  # some stores keep all
                logging.debug("%s stays in %s: %s", name, self.url, in_one_line(error))

    def _note_progress(self, *of_fsspec: object, **more: object) -> None:
        if self.problem is None:  # to copy the same again and again is none
            self.progressed = time.monotonic()

    def _check_that_no_other_writes(self) -> None:
        if self._read_manifest() not in (None, *self.written):
            self.is_lost = True
            raise UserError(f"another program writes to {self.url}: stop one of them, or choose another --run-dir")

    def _put(self, path: Path, name: str, sha256: str | None = None) -> bool:
        """Copy a file. Returns whether it is still here, with this digest if it is given."""
        try:
            file = open(path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return False
        with file:
            itself = f"/dev/fd/{file.fileno()}"  # another file may get its name meanwhile
            if sha256 not in (None, sha256_of(Path(itself))):
                return False
            progress = import_module("fsspec.callbacks").Callback(hooks={"progress": self._note_progress})
            self.files.put_file(itself, f"{self.root}/{name}", callback=progress)
            return True


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it. Raises ImportError if a package is missing."""
    makes_folders = {"auto_mkdir": True} if url.startswith("file:") else {}
    found: tuple[Any, str] = import_module("fsspec.core").url_to_fs(url, **makes_folders)
    return found


def get_file(files: Any, name: str, path: Path) -> None:
    """Bring a file of a file system of fsspec. It gets its name here when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    files.get_file(name, str(temporary))
    os.replace(temporary, path)


def problem_of(url: str) -> str | None:
    """Write a file to a remote place, read it and delete it. Returns what is wrong, if that fails."""
    found: list[str | None] = [f"--run-dir {url} does not answer within {ANSWER:g} s"]

    def attempt() -> None:
        try:
            with described(url):
                files, root = file_system(url)
                name = f"{root}/.doctor-{platform.node()}-{os.getpid()}"
                files.pipe_file(name, b"written")
                same = files.cat_file(name) == b"written"
                files.rm_file(name)
                found[0] = None if same else f"--run-dir {url} does not return what was written"
        except UserError as error:
            found[0] = str(error)

    trying = Thread(target=attempt, daemon=True)
    trying.start()
    trying.join(ANSWER)
    return found[0]


def here(run_dir: Path) -> Path:
    """Return a run directory of this machine: for a URL the copy, once the newest and the best checkpoint are there."""
    if url := remote_place(run_dir):
        run_dir = local_run_dir(run_dir)
        if not Mirror(url, run_dir, keep=1).fetch(resumes=True) and not run_dir.exists():
            raise UserError(f"{url} holds no run")
    return run_dir


def is_own(name: str) -> bool:
    """Return whether this is the name of a checkpoint in a remote place."""
    return re.fullmatch(r"step-\d+-[0-9a-f]{16}\.pt", name) is not None


def name_of(sha256: str, entry: dict[str, Any]) -> str:
    """Return the name of a checkpoint in the remote place."""
    return f"{Path(entry['file']).stem}-{sha256[:16]}.pt"


@contextmanager
def described(url: str, option: str = "--run-dir") -> Iterator[None]:
    """Raise what goes wrong inside as UserError: each file system has errors of its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{option} {url}: {in_one_line(error)}") from error
