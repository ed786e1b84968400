"""A run that is copied to an object store is whole there whenever it is cut, and resumes on a machine without it."""

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import boto3
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from tests.conftest import Package, Render, of_package
from tests.support.processes import wait_until
from tests.support.ranks import assert_same_state, error_in, output_of_fork, start_ranks, train_on_ranks
from tests.support.training import ON_CPU, checkpoint, whole_checkpoint
from tools.rewriting import Rewrite

URL = "s3://bucket/runs/digits"
LOCAL = Path("runs", "bucket-runs-digits")
OPTIONS = ("--max-steps", "12", "--save-every", "2", "--keep", "2", "--global-batch-size", "64")
PARALLEL = pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
remote, storage, machine = map(of_package, ("runtime.remote", "runtime.storage", "runtime.doctor_node"))


class Wire:
    """What is between a run and the store: it can be cut, slowed down, and joined again."""

    def __init__(self, port: int) -> None:
        self.to, self.is_cut, self.pause = port, False, 0.0  # seconds for each packet
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.to))
                for one, other in ((near, far), (far, near)):
                    Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError), source, to:
            while (packet := source.recv(1 << 14)) and not self.is_cut:
                time.sleep(self.pause)
                to.sendall(packet)


@pytest.fixture(scope="module")
def store() -> Iterator[int]:
    """The port of an S3 server on this machine."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def wire(store: int, monkeypatch: pytest.MonkeyPatch) -> Wire:
    """The way of this test to an empty bucket."""
    wire = Wire(store)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{wire.port}", "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    direct = boto3.resource("s3", endpoint_url=f"http://127.0.0.1:{store}")
    bucket = direct.create_bucket(Bucket="bucket")
    bucket.objects.all().delete()
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # those of other tests have other wires
    return wire


def objects(store: int) -> dict[str, bytes]:
    bucket = boto3.resource("s3", endpoint_url=f"http://127.0.0.1:{store}").Bucket("bucket")
    return {each.key.removeprefix("runs/digits/"): each.get()["Body"].read() for each in bucket.objects.all()}


def newest_step(store: int) -> int:
    """Return the newest step that the store has. Fails if its manifest names what is not whole."""
    bucket = boto3.resource("s3", endpoint_url=f"http://127.0.0.1:{store}").Bucket("bucket")

    def read(name: str) -> bytes:
        try:
            content: bytes = bucket.Object(f"runs/digits/checkpoints/{name}").get()["Body"].read()
            return content
        except bucket.meta.client.exceptions.NoSuchKey:
            return b""

    manifest = read("manifest.json")
    entries = json.loads(manifest or b"{}")
    digests = {}
    for sha256, entry in entries.items():
        name = f"{Path(entry['file']).stem}-{sha256[:16]}"
        digests[f"{name}.pt"] = sha256
        shards = entry.get("shards", {"files": {}})["files"]
        digests |= {f"{name}/{shard}": digest for shard, digest in shards.items()}
    damaged = [name for name, digest in digests.items() if hashlib.sha256(read(name)).hexdigest() != digest]
    if damaged and read("manifest.json") != manifest:  # a newer one came meanwhile
        return newest_step(store)
    assert damaged == []
    return max((entry["step"] for entry in entries.values()), default=0)


def assert_ends_alike(project: Path, whole: Path) -> None:
    assert_same_state(whole_checkpoint(whole), whole_checkpoint(project / LOCAL), "model", "optimizer", "ranks")


@PARALLEL
def test_a_run_is_copied_and_goes_on_where_nothing_of_it_is(
    parallel: str, own_project: Render, wire: Wire, store: int, tmp_path: Path
) -> None:
    project = own_project(parallel=parallel)
    how: dict[str, Any] = {"outputs": tmp_path}
    train_on_ranks(project, tmp_path / "whole", *OPTIONS)
    train_on_ranks(project, Path(URL), *OPTIONS, "--max-steps", "5", **how)
    assert newest_step(store) == 5
    names = {name for name in objects(store) if name.endswith(".pt")}
    assert len(names) <= 3, "two of --keep, and the best"
    folders = {f"{Path(name).parent}.pt" for name in objects(store) if name.endswith(".safetensors")}
    assert folders == (names if parallel == "fsdp" else set())
    shutil.rmtree(project / "runs")
    printed = train_on_ranks(project, Path(URL), *OPTIONS, code=2, **how)
    assert error_in(printed) == f"error: {URL} holds a run already: go on with --resume, or choose another --run-dir"
    train_on_ranks(project, Path(URL), *OPTIONS, "--resume", "auto", **how)
    assert_ends_alike(project, tmp_path / "whole")
    assert newest_step(store) == 12
    found = objects(store)
    assert json.loads(found["result.json"])["exit_code"] == 0
    for file in ("metrics.jsonl", "config.json", "report.html"):
        assert found[file] == (project / LOCAL / file).read_bytes()
    recorded = [json.loads(line) for line in found["metrics.jsonl"].splitlines()]
    steps = [record["step"] for record in recorded if "train/loss" in record]
    assert steps == sorted({*steps}), "each once"

    shutil.rmtree(project / "runs")
    lines = output_of_fork("evaluate.py", URL, *ON_CPU, project=project, processes=2).splitlines()
    [evaluated] = [json.loads(line) for line in lines if line.startswith("{")]
    assert evaluated["accuracy"] == json.loads(found["result.json"])["best"]["accuracy"]
    assert output_of_fork("export.py", URL, project=project) == f"{LOCAL}/export\n"

    other = train_on_ranks(project, Path("s3://bucket-runs/digits"), *OPTIONS, code=2, **how)
    assert f"{LOCAL} is the copy of {URL}: move it away, or choose another --run-dir" in error_in(other)


def test_training_goes_on_without_the_network_and_the_next_start_copies_the_rest(
    own_project: Render, wire: Wire, store: int, tmp_path: Path
) -> None:
    project = own_project()
    how: dict[str, Any] = {"outputs": tmp_path}
    Rewrite("STALLED = $X", "STALLED = 2.0").apply(project / "ddp_project" / "runtime" / "remote.py")
    slow = '__import__("time").sleep(0.02)\n{}'
    Rewrite("run.progress.advance($$$A)", slow, "train_step").apply(project / "train.py")
    ranks = start_ranks(project, Path(URL), *OPTIONS, "--max-steps", "40", **how)
    wait_until(lambda: newest_step(store) >= 2, told=ranks[0].output.read_text)
    wire.is_cut = True
    printed = [rank.ends_with(2, 60) for rank in ranks]
    error = error_in(printed)
    assert f"error: --run-dir {URL}" in error
    assert f"the run is whole in {LOCAL}: start again with --resume to copy it" in error
    assert checkpoint(project / LOCAL)["progress"]["step"] == 40
    wire.is_cut = False
    assert newest_step(store) < 40
    train_on_ranks(project, Path(URL), *OPTIONS, "--max-steps", "40", "--resume", **how)
    assert newest_step(store) == 40


class Cut(BaseException):
    """Ends a program as a kill does."""


class CutFiles:
    """A file system of fsspec that is cut at one of its transfers: before it, or within a checkpoint."""

    def __init__(self, files: Any, at: int) -> None:
        self.files, self.left = files, at

    def __getattr__(self, name: str) -> Any:
        work = getattr(self.files, name)
        if name not in ("pipe_file", "put_file", "rm_file", "rm", "get_file"):
            return work

        def cut_or_work(*arguments: Any, **how: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Cut
            if self.left == 1 and name == "put_file":  # a store that shows what has arrived so far
                self.files.pipe_file(arguments[1], Path(arguments[0]).read_bytes()[:3])
                raise Cut
            work(*arguments, **how)

        return cut_or_work


class Saved:
    """A run directory that is saved to, without a run: of each step, a checkpoint with some files of shards."""

    def __init__(self, storage: Any, folder: Path, shards: int = 0) -> None:
        self.storage, self.folder, self.shards = storage, folder / "checkpoints", shards
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manifest = storage.Manifest(self.folder)

    def save(self, step: int, *, best: bool, keep: int = 2) -> None:
        path, content = self.folder / f"step-{step:08d}.pt", f"weights of step {step}".encode()
        entry: dict[str, Any] = {"file": path.name, "size": len(content), "step": step, "best": best}
        if self.shards:
            files = {f"{number}.safetensors": f"{number} of {step}" for number in range(self.shards)}
            path.with_suffix("").mkdir()
            for name, text in files.items():
                (path.with_suffix("") / name).write_text(text)
            digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
            entry["shards"] = {"folder": path.stem, "files": digests}
        self.manifest.enter(hashlib.sha256(content).hexdigest(), entry)
        path.write_bytes(content)
        for name in ("last.pt", "best.pt") if best else ("last.pt",):
            self.storage.link_atomically(path, self.folder / name)
        for old in self.manifest.numbered()[:-keep]:
            old.unlink()
        kept = {entry["shards"]["folder"] for entry in self.manifest.read().values() if self.shards}
        for folder in [each for each in self.folder.iterdir() if each.is_dir() and each.name not in kept]:
            shutil.rmtree(folder)
        (self.folder.parent / "metrics.jsonl").write_text(f"records until step {step}\n")


def held(remote: Any, url: str, folder: Path) -> dict[str, str]:
    """Return what a machine that has nothing gets from a place; every checkpoint of its manifest must be whole."""
    mirror = remote.Mirror(url, folder, keep=2)
    mirror.fetch(resumes=True)
    for entry in mirror.manifest.read().values():
        for name, digest in entry.get("shards", {"files": {}})["files"].items():
            assert remote.sha256_of(mirror.manifest.folder / entry["shards"]["folder"] / name) == digest
    files = {path.name: path.read_text() for path in folder.rglob("*") if path.suffix in (".pt", ".jsonl")}
    shutil.rmtree(folder, ignore_errors=True)
    return files


@PARALLEL
def test_cut_at_any_change_the_place_has_a_whole_run(
    parallel: str, package: Package, storage: Any, tmp_path: Path
) -> None:
    remote, shards = package("runtime.remote", parallel=parallel), 2 if parallel == "fsdp" else 0
    steps = {1: False, 2: True, 3: False, 4: False, 5: True, 6: False}
    for at in count(1):
        url, saved = f"file://{tmp_path}/{at}/there", Saved(storage, tmp_path / str(at) / "here", shards)
        mirror = remote.Mirror(url, saved.folder.parent, keep=2)
        mirror.fetch(resumes=False)
        mirror.files = CutFiles(mirror.files, at)
        reached = 0
        for step, best in steps.items():
            saved.save(step, best=best)
            try:
                mirror._copy(saved.manifest.read(), mirror._changed_files())
                reached = step
            except Cut:
                break
        found = held(remote, url, tmp_path / str(at) / "fresh")
        if reached:
            assert found["last.pt"] in (f"weights of step {reached}", f"weights of step {step}")
        if reached >= 2:
            assert found["best.pt"] in {f"weights of step {each}" for each in (2, 5) if each <= step}
        # The next program on this machine brings all up to date.
        again = remote.Mirror(url, saved.folder.parent, keep=2)
        again.fetch(resumes=True)
        again._copy(saved.manifest.read(), again._changed_files())
        found = held(remote, url, tmp_path / str(at) / "fresh")
        assert found["last.pt"] == f"weights of step {step}"
        assert found["metrics.jsonl"] == f"records until step {step}\n"
        left = {file.stem for file in (tmp_path / str(at) / "there" / "checkpoints").glob("*.pt")}
        assert len(left) <= 3, "two of --keep, and the best"
        folders = {each.name for each in (tmp_path / str(at) / "there" / "checkpoints").iterdir() if each.is_dir()}
        assert folders == (left if shards else set())
        if reached == 6:
            return


def test_a_download_that_was_cut_is_made_again(
    remote: Any, storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an older state of the run was left."""
    url = f"file://{tmp_path}/there"
    for place, steps in {"here": 3, "ahead": 6}.items():
        saved, mirror = Saved(storage, tmp_path / place), remote.Mirror(url, tmp_path / place, keep=2)
        mirror.fetch(resumes=True)
        for step in range(1, steps + 1):
            saved.save(step, best=step == steps - 1)
        if place == "ahead":
            mirror._copy(saved.manifest.read(), mirror._changed_files())
    connect = fsspec.core.url_to_fs

    def fetch_and_cut(folder: Path, at: int) -> None:
        with monkeypatch.context() as patched, suppress(Cut):
            files, root = connect(url)
            patched.setattr(fsspec.core, "url_to_fs", lambda url, **how: (CutFiles(files, at), root))
            remote.Mirror(url, folder, keep=2).fetch(resumes=True)

    for at in count(1):
        folder = shutil.copytree(tmp_path / "here", tmp_path / f"cut-{at}")
        fetch_and_cut(folder, at)
        manifest = storage.Manifest(folder / "checkpoints")
        done = [manifest.problem(file) for file in manifest.newest_first()[:1]] == [None]
        remote.Mirror(url, folder, keep=2).fetch(resumes=True)
        files = {file.name: file.read_text() for file in (folder / "checkpoints").glob("*.pt")}
        expected = {"last.pt": 6, "step-00000006.pt": 6, "best.pt": 5, "step-00000005.pt": 5}
        assert files == {name: f"weights of step {step}" for name, step in expected.items()}
        assert [*map(manifest.problem, manifest.newest_first())] == [None] * 2
        assert (folder / "metrics.jsonl").read_text() == "records until step 6\n"
        if done and at > 3:
            return


@pytest.mark.parametrize("of", ["the same file", "an older file"])
def test_a_second_name_that_a_kill_left_is_not_written_through(of: str, storage: Any, tmp_path: Path) -> None:
    saved = Saved(storage, tmp_path)
    for step in (1, 2):
        saved.save(step, best=True)
    old, new = (tmp_path / "checkpoints" / f"step-{step:08d}.pt" for step in (1, 2))
    os.link(new if of == "the same file" else old, tmp_path / "checkpoints" / "last.pt.tmp")
    storage.link_atomically(new, tmp_path / "checkpoints" / "last.pt")
    assert [file.read_text() for file in (old, new)] == ["weights of step 1", "weights of step 2"]
    assert (tmp_path / "checkpoints" / "last.pt").samefile(new)


def test_weights_of_a_run_that_has_taken_the_place_of_another_are_brought(
    remote: Any,
    storage: Any,
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Although it has fewer steps: what --init-from has brought is replaced, and a run directory is named."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/there"
    for steps in (6, 3):
        shutil.rmtree(tmp_path / "there", ignore_errors=True)
        saved, mirror = Saved(storage, tmp_path / f"trained-{steps}"), remote.Mirror(
            url, tmp_path / f"trained-{steps}", 1
        )
        mirror.fetch(resumes=False)
        saved.save(steps, best=True)
        mirror.copy_now()
        brought = package("runtime.pretrained").download(url) / "checkpoints"
        assert (brought / "best.pt").read_text() == f"weights of step {steps}"
        assert caplog.messages == []
        held = remote.here(Path(url))
    assert (held / "checkpoints" / "best.pt").read_text() == "weights of step 6"
    assert caplog.messages == [f"{held} is used: if {url} holds another run, move it away"]


def test_a_manifest_of_a_stranger_names_no_file_elsewhere(package: Package, storage: Any, tmp_path: Path) -> None:
    """Its shards would be written there, outside of the run directory."""
    remote, saved = package("runtime.remote", parallel="fsdp"), Saved(storage, tmp_path / "trained", shards=1)
    there = tmp_path / "deep" / "there"
    url, mirror = f"file://{there}", remote.Mirror(f"file://{there}", tmp_path / "trained", 1)
    mirror.fetch(resumes=False)
    saved.save(1, best=True)
    mirror.copy_now()
    manifest, (shard,) = there / "checkpoints" / "manifest.json", there.rglob("*.safetensors")
    manifest.write_text(manifest.read_text().replace('"0.safetensors"', '"../../../victim"'))
    shard.rename(there.parent / "victim")  # which ../../../victim is, from the folder of the shard
    remote.Mirror(url, tmp_path / "run", 1).fetch(resumes=True)
    assert not (tmp_path / "victim").exists()


def test_a_place_keeps_no_result_of_a_start_before_this_one(remote: Any, storage: Any, tmp_path: Path) -> None:
    saved, mirror = Saved(storage, tmp_path / "here"), remote.Mirror(f"file://{tmp_path}/there", tmp_path / "here", 1)
    for _ in range(2):
        mirror.fetch(resumes=True)
        mirror.begin(lambda: (tmp_path / "here" / "result.json").unlink(missing_ok=True))
        assert not (tmp_path / "there" / "result.json").exists()
        saved.save(1, best=True)
        (tmp_path / "here" / "result.json").write_text("stopped")
        mirror.copy_now()
        assert (tmp_path / "there" / "result.json").exists()


def test_a_place_that_takes_no_manifest_for_a_while_keeps_no_more_than_keep_says(
    remote: Any, storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Saved(storage, tmp_path / "here")
    mirror = remote.Mirror(f"file://{tmp_path}/there", tmp_path / "here", keep=2)
    mirror.fetch(resumes=False)
    write = mirror.files.pipe_file
    for step in range(1, 8):
        saved.save(step, best=step == 1)
        monkeypatch.setattr(mirror.files, "pipe_file", write if step == 7 else lambda *_: 1 / 0)
        with suppress(ZeroDivisionError):
            mirror._copy(saved.manifest.read(), mirror._changed_files())
    left = {file.name[:13] for file in (tmp_path / "there" / "checkpoints").glob("*.pt")}
    assert left == {"step-00000001", "step-00000006", "step-00000007"}


def test_a_store_without_a_place_is_refused(remote: Any, package: Package) -> None:
    with pytest.raises(
        package("runtime.exits").UserError, match="s3:// names no place: give one such as s3://BUCKET/RUN"
    ):
        package("runtime.cli").remote_place(Path("s3://"))


def test_a_place_keeps_what_is_not_of_the_run(remote: Any, storage: Any, package: Package, tmp_path: Path) -> None:
    """Files of others stay, also without a right to delete; a damaged manifest, or a run in a folder, is no new run."""
    url, there, saved = f"file://{tmp_path}/there", tmp_path / "there", Saved(storage, tmp_path / "here")
    (tmp_path / "here" / "own.pt").write_text("by the owner's code")
    (there / "checkpoints").mkdir(parents=True)
    for name in ("llama.safetensors", "step-7-0123456789abcdef.pt"):
        (there / "checkpoints" / name).write_text("of somebody else")
    mirror = remote.Mirror(url, tmp_path / "here", keep=1)
    assert not mirror.fetch(resumes=True)
    for step in (1, 2):
        saved.save(step, best=step == 1, keep=1)
        mirror.copy_now()
    (there / "other" / "checkpoints").mkdir(parents=True)
    (there / "other" / "checkpoints" / "manifest.json").write_text("{}")
    (there / "other" / "large").write_text("of another run")
    assert {"llama.safetensors", "step-7-0123456789abcdef.pt"} < {*map(str, os.listdir(there / "checkpoints"))}
    fresh = remote.Mirror(url, tmp_path / "fresh", keep=1)
    assert fresh.fetch(resumes=True)
    assert (tmp_path / "fresh" / "own.pt").read_text() == "by the owner's code"
    assert not (tmp_path / "fresh" / "other").exists()
    manifest = there / "checkpoints" / "manifest.json"
    [best] = [sha256 for sha256, entry in json.loads(manifest.read_text()).items() if entry["best"]]
    (there / "checkpoints" / f"step-00000001-{best[:16]}.pt").write_text("damaged")
    assert held(remote, url, tmp_path / "again")["best.pt"] == "weights of step 2"
    for text in ("", manifest.read_text()[:20]):
        manifest.write_text(text)
        with pytest.raises(package("runtime.exits").UserError, match=r"manifest.json is damaged: put an earlier one"):
            remote.Mirror(url, tmp_path / "third", keep=1).fetch(resumes=True)


def test_a_node_without_the_folder_takes_what_node_0_has(remote: Any, storage: Any, tmp_path: Path) -> None:
    """Node 0 has a checkpoint that it could not copy, and the other node has one that the store does not know."""
    url, one, other = f"file://{tmp_path}/there", Saved(storage, tmp_path / "one"), Saved(storage, tmp_path / "other")
    first, second = (remote.Mirror(url, tmp_path / name, keep=2) for name in ("one", "other"))
    first.fetch(resumes=True)
    for step in (1, 2):
        one.save(step, best=True)
    for step in (1, 9):
        other.save(step, best=True)
    first.copy_now()
    second.fetch(resumes=True, follows=True)
    assert (tmp_path / "other" / "checkpoints" / "last.pt").read_text() == "weights of step 2"


def test_what_another_program_has_written_is_not_overwritten(remote: Any, storage: Any, tmp_path: Path) -> None:
    url, one, other = f"file://{tmp_path}/there", Saved(storage, tmp_path / "one"), Saved(storage, tmp_path / "other")
    first = remote.Mirror(url, tmp_path / "one", keep=2)
    first.fetch(resumes=False)
    one.save(1, best=True)
    first.copy_now()
    second = remote.Mirror(url, tmp_path / "other", keep=2)
    second.fetch(resumes=True)
    other.save(2, best=True)
    second.send()
    second.finish()
    one.save(2, best=False)
    first.send()
    with pytest.raises(Exception, match=f"another program writes to {url}: stop one of them, or choose"):
        first.finish()
    with pytest.raises(Exception, match="another program writes to"):
        first.send()
    assert held(remote, url, tmp_path / "fresh")["best.pt"] == "weights of step 2"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://nowhere/run", "FileNotFoundError The specified bucket does not exist"),
        ("gs://bucket/run", "ImportError Please install gcsfs"),
        ("foo://bucket/run", "ValueError Protocol not known: foo"),
        ("file:///proc/run", "FileNotFoundError"),
    ],
)
def test_a_place_that_takes_no_run_is_named(
    url: str, said: str, remote: Any, wire: Wire, package: Package, tmp_path: Path
) -> None:
    mirror = remote.Mirror(url, tmp_path / "run", keep=2)
    with pytest.raises(package("runtime.exits").UserError) as refused:
        _ = mirror.fetch(resumes=False), mirror.begin(lambda: None)
    assert str(refused.value).startswith(f"--run-dir {url}: {said}")
    assert not (tmp_path / "run").exists()
    assert remote.problem_of(url).startswith(f"--run-dir {url}: {said}")


def test_the_doctor_writes_to_the_place(
    remote: Any, machine: Any, wire: Wire, store: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And leaves nothing there; a network that is silent ends the wait."""
    monkeypatch.chdir(tmp_path)
    config = SimpleNamespace(run_dir=Path(URL))
    assert [*machine.problem_of_folder(config)] == []
    assert objects(store) == {}
    monkeypatch.setattr(remote, "ANSWER", 0.5)
    wire.pause = 60
    [problem] = machine.problem_of_folder(config)
    assert f"--run-dir {URL} does not answer within 0.5 s: mend the access to it" in problem
