"""What --doctor finds on one machine, in a meeting of several that this one stands for, and among forked ranks."""

import math
import os
import runpy
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.conftest import Package, Render, of_package
from tests.support.processes import output_of, scaled, write_program
from tests.support.ranks import train_on_ranks

CONFIG = SimpleNamespace(device="cpu", backend="auto", workers="auto", run_dir=Path("auto"))
machine, doctor = of_package("runtime.doctor_node"), of_package("runtime.doctor")


def test_a_sound_machine_has_no_findings_and_no_traces(project: Render, tmp_path: Path) -> None:
    words = "-m ddp_project.runtime.doctor true train.py --doctor --device cpu"  # as launch.sh does before the launcher
    command = [sys.executable, *words.split(), "--run-dir", str(tmp_path / "run")]
    place = {"NNODES": "1", "NODE_RANK": "0", "RDZV_ENDPOINT": "127.0.0.1:0", "NPROC_PER_NODE": "1"}
    assert output_of(command, project(), os.environ | place) == ""
    assert not [*tmp_path.iterdir()]
    refused = output_of([*command, "--epochs", "0"], project(), os.environ | place, code=2)
    assert refused.startswith("error: --epochs must be at least 1, not 0"), "as in a run"


def test_ranks_that_share_cores_or_gpus(machine: Any) -> None:
    def found(ranks: int, cores: int, gpus: int = 0, backend: str = "auto", quota: float = math.inf) -> list[str]:
        return [*machine.problems_of_shares("n1", ranks, cores, 64, quota, gpus, SimpleNamespace(backend=backend))]

    assert found(2, 64) == found(2, 64, 2) == found(4, 64, 2, backend="gloo") == []
    lower = "lower NPROC_PER_NODE to"
    assert found(4, 3) == [f"warning: n1: for 4 ranks there are 3 of 64 cores: {lower} 3"]
    assert found(2, 2) == ["warning: n1: each rank has one core, of 64: see what binds them to it"]
    assert found(4, 64, 2) == [f"error: n1: 4 ranks need a GPU each, of 2: {lower} 2"]
    assert found(2, 64, 8) == ["warning: n1: 6 of 8 GPUs stay idle: raise NPROC_PER_NODE to 8"]
    raised = "raise it (docker run --cpus, or the limit of its pod)"
    assert found(2, 64, quota=1) == [f"warning: n1: 2 ranks share a quota of 1 core: {raised}, or {lower} 1"]
    assert found(4, 64, quota=2.5) == [f"warning: n1: 4 ranks share a quota of 2.5 cores: {raised}, or {lower} 2"]
    assert found(1, 64, quota=0.5) == [f"warning: n1: 1 rank has a quota of 0.5 core: {raised}"]
    assert found(2, 64, quota=2) == found(2, 64, quota=70) == []


def report(machine: Any, number: int, **others: Any) -> Any:
    facts = {"ranks": 1, "cores": [0], "all_cores": 1, "gpus": [], "driver": "none", "problems": [], "takes_runs": True}
    facts |= {"quotas": {}, "address": "127.0.0.1", "number": number, "host": f"n{number + 1}"}
    facts["versions"] = {"Python": "3.12.1", "torch": "2.13.0"}
    return machine.Report(**facts | others)


def test_machines_that_differ_are_named(machine: Any) -> None:
    def found(**others: Any) -> list[str]:
        gpus = {"gpus": ["GPU-a"], "driver": "550.54"}
        return [*machine.differences([report(machine, 0, **gpus), report(machine, 1, **gpus | others)])]

    older, same = {"Python": "3.12.1", "torch": "2.12.0"}, "install the same on both"
    assert found() == []
    assert found(versions=older) == [f"error: n2: torch is 2.12.0, and 2.13.0 on n1: {same}"]
    assert found(driver="535.1") == [f"warning: n2: GPU driver 535.1, and 550.54 on n1: {same}"]
    without = "error: n2: no GPU, and n1 has: see nvidia-smi there, or give --device cpu"
    assert found(gpus=[], driver="none") == [without]


def test_what_looks_who_listens_is_no_guest(doctor: Any, machine: Any, tmp_path: Path, free_port: int) -> None:
    """launch.sh tries to reach node 0 all the time, and others scan ports."""
    members = [doctor.Node(report(machine, number), tmp_path) for number in range(2)]
    with ThreadPoolExecutor(1) as threads:
        presiding = threads.submit(doctor.coordinate, members[0], 2, free_port, CONFIG)
        for words in (b"", b"GET / HTTP/1.0\r\n\r\n", b'{"number": 1}\n'):
            with doctor.connect_to_first("n2", "127.0.0.1", free_port).stream as stream:
                stream.write(words.decode())
        assert doctor.join(members[1], "127.0.0.1", free_port) == presiding.result() == []


def test_a_name_of_a_node_may_lead_to_ipv6(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    node = package("runtime.doctor_node")
    monkeypatch.setattr(socket, "gethostname", lambda: "::1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert [node.own_address(nccl, "::1", 1) for nccl in (False, True)] == ["::1", "::1"]


def test_a_lock_that_holds_on_one_machine_only_is_a_warning(doctor: Any, machine: Any, tmp_path: Path) -> None:
    (tmp_path / "seen").touch()  # as another machine sees it whose lock does not come here
    line = doctor.Node(report(machine, 1), tmp_path).look("seen")
    assert line.startswith(f"warning: n2: {tmp_path}: file locks do not hold between nodes, and sweep.py needs them")


def run_doctor() -> None:
    runpy.run_path("train.py", run_name="__main__")


def with_gpus_and_a_build_for_cpus() -> None:
    """The machine has GPUs, as a real program named nvidia-smi says, and --device is not given."""
    sys.argv.remove("--device")
    sys.argv.remove("cpu")
    run_doctor()


def test_gpus_that_torch_cannot_use_are_named(project: Render, tmp_path: Path) -> None:
    """By the doctor as an error, by a run as one warning."""
    write_program(tmp_path / "nvidia-smi", "echo GPU-a, 00000000:03:00.0, 550.54; echo GPU-b, 00000000:04:00.0, 550.54")
    run, path = (project(), tmp_path / "run"), {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = train_on_ranks(*run, "--doctor", code=2, env=path, entry=with_gpus_and_a_build_for_cpus)
    [line] = "".join(printed).splitlines()
    assert line == (
        f"error: {socket.gethostname()}: 2 x NVIDIA GPU (driver 550.54) cannot be used by torch {torch.__version__}, "
        "built for CPUs: install the build of torch for CUDA, or give --device cpu"
    )
    hidden = path | {"CUDA_VISIBLE_DEVICES": ""}
    for env, entry in ((path, run_doctor), (hidden, with_gpus_and_a_build_for_cpus)):
        [alone] = train_on_ranks(*run, "--doctor", processes=1, env=env, entry=entry)
        assert alone.splitlines()[-1] == "sound: a run can start here"
    printed = train_on_ranks(*run, "--max-steps", "1", env=path, entry=with_gpus_and_a_build_for_cpus)
    [line] = [line for line in "".join(printed).splitlines() if "GPU" in line]
    assert "rank 0 WARNING" in line


def with_wrong_sums() -> None:
    all_reduce = dist.all_reduce

    def wrong(tensor: torch.Tensor, *arguments: Any, **options: Any) -> None:
        all_reduce(tensor, *arguments, **options)
        tensor += 1

    if os.environ["RANK"] == "1":
        dist.all_reduce = wrong
    run_doctor()


def with_a_silent_rank() -> None:
    if os.environ["RANK"] == "1":
        dist.broadcast = lambda *arguments, **options: time.sleep(4 * scaled(2))
    run_doctor()


def test_ranks_that_exchange_are_called_sound(project: Render, tmp_path: Path) -> None:
    printed = train_on_ranks(project(), tmp_path / "run", "--doctor")[0]
    first, *rows, last = printed.splitlines()
    assert (first, last) == ("world size 2, gloo:", "sound: a run can start here")
    names = ["slowest pair: rank", "all-reduce", "broadcast", "gather", "all-gather of objects", "broadcast of objects"]
    assert all(row.strip().startswith(name) for row, name in zip(rows, names, strict=True)), printed
    assert not (tmp_path / "run").exists()


def test_collectives_that_are_wrong_or_fail_are_named(project: Render, tmp_path: Path) -> None:
    printed = train_on_ranks(project(), tmp_path / "run", "--doctor", code=2, entry=with_wrong_sums)
    expected = "error: all-reduce gives rank 1 wrong numbers: update the driver, or try --backend gloo"
    assert "".join(printed).splitlines() == [expected]
    options = ("--doctor", "--timeout", str(math.ceil(scaled(2))))
    printed = train_on_ranks(project(), tmp_path / "run", *options, code=2, entry=with_a_silent_rank)
    [line] = printed[0].splitlines()
    assert line.startswith(f"error: rank 0 on {socket.gethostname()}: broadcast fails (")
    assert line.endswith("): see how these ranks reach each other; NCCL_DEBUG=INFO tells more")
