"""Which GPU and how many cores each rank uses, and what is refused before the ranks communicate."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist

from tests.conftest import Package, Render, of_package
from tests.support.hardware import see_gpus
from tests.support.ranks import assert_same_state, error_in, join, project_module, run_train, train_on_ranks

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
placement = of_package("runtime.devices")
RECORDERS = [
    ("2.13.0", "nccl", {}, {}),  # which records by itself, and warns of the older name
    ("2.11.0", "gloo", {}, {}),
    ("2.10.0", "gloo", {}, {SIZES[0]: "2000"}),
    ("2.8.0", "nccl", {}, {SIZES[1]: "2000"}),  # whose watchdog knows no other name
    ("2.8.0", "nccl", {SIZES[0]: "0"}, {SIZES[0]: "0"}),
    ("2.8.0", "gloo", {SIZES[1]: "9"}, {SIZES[1]: "9"}),
]
PRECISIONS = [
    ("none", True, "auto", "tf32-convolutions"),
    ("none", False, "auto", "float32"),
    ("none", True, "float32", "float32"),
    ("torch", True, "auto", "bf16"),
    ("torch", False, "auto", "fp16"),
    ("torch", False, "float32", "float32"),
    ("torch", False, "bf16", "Tesla T4 has no bfloat16, and would be slow to emulate it: give --precision fp16"),
]
BINDINGS = [
    ("SLURM_GPU_BIND=none", ["0,1,2,3"] * 4, "ABCD"),
    ("SLURM_GPU_BIND=single:1", ["0", "1", "2", "3"], "ABCD"),
    ("SLURM_GPU_BIND=map_gpu:3,2,1,0", ["3", "2", "1", "0"], "DCBA"),
    ("SLURM_GPU_BIND=mask_gpu:0xf,0x3,0xc,0x3", ["0,1,2,3", "0,1", "2,3", "0,1"], "DACB"),
    ("SLURM_GPU_BIND=per_task:2", ["0,1", "2,3"], "AC"),
    ("SLURM_GPUS_PER_TASK=1", ["0", "1", "2", "3"], "ABCD"),
    ("SLURM_GPUS_PER_TASK=2", ["0,1", "2,3"], "AC"),
    # Two GPUs are near each socket; the tasks go to the sockets in turns, or fill one after the other.
    ("SLURM_GPU_BIND=closest SLURM_DISTRIBUTION=block:cyclic", ["0,1", "2,3", "0,1", "2,3"], "ACBD"),
    ("SLURM_GPU_BIND=closest SLURM_DISTRIBUTION=block:block", ["0,1", "0,1", "2,3", "2,3"], "ABCD"),
    ("SLURM_GPU_BIND=closest, a task with cores of both sockets", ["0,1,2,3", "0,1", "2,3"], "BAC"),
    ("SLURM_GPU_BIND=closest, a socket without a GPU", ["0,1,2,3", "0,1", "0,1", "0,1,2,3"], "CABD"),
]


def test_cores_and_quotas_are_divided_among_the_ranks_that_share_them(placement: Any) -> None:
    def shares(*ranks: Sequence[int] | dict[str, float], apart: bool = False) -> list[int]:
        """Of ranks that each have some cores, or 16 cores and some quotas."""
        places = []
        for number, own in enumerate(ranks):
            cores, quotas = (range(16), own) if isinstance(own, dict) else (own, {})
            places.append(placement.LocalDevices(f"node{number * apart}", "cpu", "gloo", [], tuple(cores), quotas))
        return [*placement.shares_of_cores(places)]

    assert shares(range(16), range(16)) == [8, 8], "nothing has divided them"
    assert shares(range(8), range(8, 16)) == [8, 8], "the launcher has divided them already"
    assert shares(range(8), range(8), range(8, 16), range(8, 16)) == [4, 4, 4, 4], "two ranks on each socket"
    assert shares(range(2), range(2), range(2)) == shares(range(3), range(3), range(3)) == [1, 1, 1]
    assert shares(range(16), range(16), apart=True) == [16, 16]
    assert shares({"all": 4.0}, {"all": 4.0}) == [2, 2]
    assert shares({"all": 1.0}, {"all": 1.0}) == [1, 1], "never none"
    assert shares({"all": 0.5}) == shares({"all": 1.5}) == [1]
    assert shares({"one": 3.0}, {"other": 2.0}) == [3, 2], "each has its own"
    assert shares({"all": 5.0, "one": 1.0}, {"all": 5.0, "other": 4.0}) == [1, 2], "and all share one"
    assert shares({"all": 100.0}, {}) == [8, 8], "more than the cores"


def test_steps_of_a_job_of_slurm_meet_at_ports_of_their_own(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    start, ports = package("runtime.launcher", launcher="slurm"), {}
    for step in ("0", "1", "4294967290"):  # of srun; and the shell of salloc
        for name, value in {"MASTER_ADDR": "a", "SLURM_JOB_ID": "20777", "SLURM_STEP_ID": step}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("MASTER_PORT", raising=False)
        start.name_meeting_place()
        ports[step] = int(os.environ["MASTER_PORT"])
    assert (ports["0"], len({*ports.values()})) == (12777, 3)
    assert all(12000 <= port < 32000 for port in ports.values())


@pytest.mark.parametrize(("variables", "visible", "expected"), BINDINGS)
def test_each_task_of_slurm_has_a_gpu_of_its_own(
    variables: str, visible: list[str], expected: str, placement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm binds a task to GPUs by its CUDA_VISIBLE_DEVICES: here those of the tasks of a node with GPUs A to D."""
    places, chosen = chosen_gpus(visible, placement, monkeypatch)
    seen = [["ABCD"[int(number)] for number in numbers.split(",")] for numbers in visible]
    assert "".join(gpus[number] for gpus, number in zip(seen, chosen, strict=True)) == expected, variables
    assert placement.problem_of(places, chosen) is None


def chosen_gpus(visible: list[str], placement: Any, patch: pytest.MonkeyPatch) -> tuple[list[Any], list[int]]:
    """What the ranks of a machine find, each with what CUDA_VISIBLE_DEVICES lets it see, and which GPU each uses."""
    patch.setattr(torch.accelerator, "set_device_index", Mock(side_effect=AssertionError("takes memory of a GPU")))
    patch.setattr(dist, "is_nccl_available", lambda: True)
    seen = [[{"uuid": "ABCD"[int(number)]} for number in numbers.split(",")] for numbers in visible]
    places = [local_devices(placement, patch, *gpus) for gpus in seen]
    return places, placement.divide_gpus(places)


def local_devices(placement: Any, patch: pytest.MonkeyPatch, *gpus: Mapping[str, object]) -> Any:
    """Where a rank can compute to which torch tells this of its GPUs."""
    patch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    patch.setattr(torch.accelerator, "device_count", lambda: len(gpus))
    patch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**gpus[index]))
    return replace(placement.local_devices(placement.Config()), backend="nccl")


def at(bus: int, uuid: str) -> dict[str, object]:
    """What torch tells of a GPU at a PCI address."""
    return {"pci_domain_id": 0, "pci_bus_id": bus, "pci_device_id": 0, "uuid": uuid}


ALIKE = "00000000-0000-0000-0000-000000000000"
AT_3, AT_4 = at(3, ALIKE), at(4, ALIKE)
UUID: dict[str, Any] = {"uuid": ALIKE}
GPUS: dict[str, tuple[list[list[Any]], bool, list[int] | None]] = {
    # what torch tells each rank of its GPUs, whether they are on two hosts, and which each uses, or that it is refused
    "equal UUIDs": ([[AT_3, AT_4], [AT_3, AT_4]], False, [0, 1]),
    "equal UUIDs of ranks apart": ([[AT_3], [AT_4]], False, [0, 0]),
    # Addresses of two hosts are often equal; the UUIDs of some virtual and AMD GPUs, too.
    "equal on two hosts": ([[AT_3], [AT_3]], True, [0, 0]),
    "equal UUIDs alone, on two hosts": ([[UUID], [UUID]], True, [0, 0]),
    "nothing told, on two hosts": ([[{}], [{}]], True, [0, 0]),
    # Parts of a GPU share its address: those of NVIDIA have UUIDs of their own, those of AMD may have none.
    "parts": (2 * [[at(3, "A"), at(3, "B")]], False, [0, 1]),
    "parts of equal UUIDs": (2 * [[AT_3, AT_3]], False, [0, 1]),
    "parts of equal UUIDs alone": (2 * [[UUID, UUID]], False, [0, 1]),
    "parts of which nothing is told": (2 * [[{}, {}]], False, [0, 1]),
    "one for two ranks": (2 * [[at(3, "A")]], False, None),
    "one for two ranks, by its UUID": (2 * [[{"uuid": "A"}]], False, None),
}


@pytest.mark.parametrize("case", GPUS)
def test_each_rank_has_a_gpu_whatever_is_told(case: str, placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, apart, expected = GPUS[case]
    places = [local_devices(placement, monkeypatch, *each) for each in gpus]
    if apart:
        places = [replace(each, host=host) for each, host in zip(places, ("n1", "n2"), strict=True)]
    chosen = placement.divide_gpus(places)
    problem = placement.problem_of(places, chosen)
    if expected:
        assert (chosen, problem) == (expected, None)
    else:
        assert re.search("rank 0 and rank 1 have the same GPU of .*start at most 1 there", problem)


def test_ranks_that_share_a_gpu_need_gloo(placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    places, chosen = chosen_gpus(["0,1"] * 5 + ["2"], placement, monkeypatch)
    assert chosen == [0, 1, 0, 1, 0, 0], "of those that each sees"
    problem = placement.problem_of(places, chosen)
    assert re.match("rank 0 and rank 2 have the same GPU of .*start at most 3 there, or give --backend gloo", problem)
    with_gloo = [replace(each, backend="gloo") for each in places]
    assert placement.problem_of(with_gloo, placement.divide_gpus(with_gloo)) is None


@pytest.mark.parametrize(("amp", "has_bf16", "wanted", "chosen"), PRECISIONS)
def test_the_precision_is_one_that_the_gpu_has(
    amp: str, has_bf16: bool, wanted: str, chosen: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU before the A100 emulates bfloat16, which torch counts as support unless it is told not to."""
    placement = package("runtime.devices", amp=amp)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=1: has_bf16 or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(placement.UserError, match=chosen) if "Tesla" in chosen else nullcontext():
        config = placement.choose_precision(placement.Config(precision=wanted), torch.device("cuda", 0))
        assert config.precision == chosen


def join_in_turns() -> None:
    """What a rank does on a node of two sockets, to which the ranks went in turns, and that has two GPUs near each."""
    used: list[int] = []
    see_gpus(*("AB", "CD")[int(os.environ["RANK"]) % 2])
    vars(torch.accelerator)["set_device_index"] = used.append

    def main(config: Any, world: Any, device: torch.device) -> int:
        print("uses", *used, "and trains on", device, "in", config.precision)
        torch.distributed.barrier()  # a rank that leaves at once can meet others that still connect
        return 0

    join(main, backend="gloo")


def test_each_rank_uses_the_gpu_that_it_is_given(project: Render, tmp_path: Path) -> None:
    printed = train_on_ranks(project(), tmp_path / "run", processes=4, timeout=60, entry=join_in_turns)
    found = [line for text in printed for line in text.splitlines() if line.startswith("uses")]
    numbers = [0, 0, 1, 1]
    assert found == [f"uses {number} and trains on cuda:{number} in bf16" for number in numbers]


def tell_threads() -> None:
    def main(config: Any, world: Any, device: torch.device) -> int:
        print("threads:", torch.get_num_threads(), "cores:", project_module("runtime.devices").own_cores())
        torch.distributed.barrier()
        return 0

    join(main, seed=0)


@pytest.mark.parametrize(
    ("user", "noted", "threads"), [("3,2", None, 3), ("1", "", 0), ("1", "5", 5), ("many", None, 0), ("0", None, 0)]
)
def test_the_user_sets_the_threads(user: str, noted: str | None, threads: int, project: Render, tmp_path: Path) -> None:
    """torchrun sets OMP_NUM_THREADS=1, too: launch.sh notes before what the user has set, and the 1 is no limit."""
    variables = {"OMP_NUM_THREADS": user} | ({} if noted is None else {"DDP_OMP_NUM_THREADS": noted})
    ranks = 2 if noted == "" else 1
    cores, run = max(1, len(os.sched_getaffinity(0)) // ranks), (project(), tmp_path / "run")
    printed = train_on_ranks(*run, processes=ranks, env=variables, timeout=60, entry=tell_threads)
    assert printed == [f"threads: {threads or cores} cores: {cores}\n"] * ranks


def run_with_a_gpu_on_rank_0() -> None:
    """What a rank does that sees a GPU if it is rank 0, as if the driver of another machine had failed."""
    if os.environ["RANK"] == "0":
        see_gpus("A")
        vars(dist)["is_nccl_available"] = lambda: True
    join(None, seed=0)


def join_with_a_gpu_twice() -> None:
    """What a rank does whose NCCL finds, as it does at the first connection, that two ranks share a GPU."""
    told = "NCCL error in: NCCLUtils.cpp:94, invalid usage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0"
    where = "Exception raised from create at NCCLUtils.cpp:94 (most recent call first)"
    vars(dist)["init_process_group"] = Mock(side_effect=dist.DistBackendError(f"{told}\n{where}"))
    run_train()


def test_ranks_that_cannot_meet_say_why(project: Render, tmp_path: Path) -> None:
    """Else one rank would wait with NCCL, and the other with Gloo, until --timeout. NCCL names a cause at its end."""
    for entry, said in (
        (run_with_a_gpu_on_rank_0, r"the ranks must use the same backend, not nccl on rank 0 \(.*and gloo on rank 1"),
        (join_with_a_gpu_twice, ".* Last error: Duplicate GPU detected : rank 1 and rank 0; launch.sh --doctor"),
    ):
        printed = train_on_ranks(project(), tmp_path / "run", code=2, timeout=60, entry=entry)
        assert re.match(f"error: {said}", error_in(printed[:1]))


@pytest.mark.parametrize(("version", "backend", "user", "expected"), RECORDERS)
def test_the_flight_recorder_is_on_where_torch_does_not_turn_it_on(
    version: str, backend: str, user: dict[str, str], expected: dict[str, str], package: Package
) -> None:
    process_group, told = package("runtime.distributed"), torch.torch_version.TorchVersion(version)
    with patch.dict(os.environ), patch.object(torch, "__version__", told):
        for name in SIZES:
            os.environ.pop(name, None)
        os.environ.update(user)
        process_group.remember_collectives(backend)
        assert {name: os.environ[name] for name in SIZES if name in os.environ} == expected


def join_on_other_devices() -> None:
    """What a rank does on a node of two GPUs of a kind."""
    kind, *options = os.environ["DEVICE"].split()
    see_gpus(*"AB"[: 1 if kind == "mps" else 2], kind=kind)

    def main(config: Any, world: Any, device: torch.device) -> int:
        print("trains on", device, "with", dist.get_backend())
        dist.barrier()
        return 0

    join(main, backend="gloo", device=options[0])


@pytest.mark.parametrize(
    ("device", "processes", "said"),
    [
        ("xpu auto", 2, "trains on xpu:{rank} with gloo"),
        ("xpu xpu", 2, "trains on xpu:{rank} with gloo"),
        ("xpu cuda", 2, "error: --device cuda needs one that torch can use, and it finds none: give --device xpu"),
        ("mps auto", 1, "trains on mps:0 with gloo"),
        ("mps auto", 2, "error: MPS trains one process, as nothing sends its tensors to another: start one"),
        ("mps cpu", 2, "trains on cpu with gloo"),
    ],
)
def test_devices_of_other_kinds(device: str, processes: int, said: str, project: Render, tmp_path: Path) -> None:
    env, code = {"DEVICE": device}, 2 if said.startswith("error") else 0
    run = (project(amp="none"), tmp_path / "run")
    printed = train_on_ranks(*run, processes=processes, code=code, env=env, timeout=60, entry=join_on_other_devices)
    for rank, text in enumerate(printed[:1] if code else printed):
        assert said.format(rank=rank) in text


def test_a_sharded_model_trains_beside_mps(project: Render, tmp_path: Path) -> None:
    """It has one process, and nothing to shard over."""
    run = (project(amp="none", parallel="fsdp"), tmp_path / "run")
    printed = train_on_ranks(*run, env={"DEVICE": "mps auto"}, timeout=60, entry=join_on_other_devices)
    assert all("trains on cpu with gloo" in text for text in printed)


def test_each_kind_of_device_has_its_library(placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    chosen = {kind: placement.choose_backend("auto", kind) for kind in ("cuda", "xpu", "mps", "cpu")}
    assert chosen == {"cuda": "nccl", "xpu": "xccl", "mps": "gloo", "cpu": "gloo"}
    with pytest.raises(placement.UserError, match="--backend nccl needs CUDA devices, and this run is on XPU"):
        placement.choose_backend("nccl", "xpu")
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name == "gloo")
    assert placement.choose_backend("auto", "xpu") == "gloo"
    with pytest.raises(placement.UserError, match="this PyTorch is built without XCCL: give --backend gloo"):
        placement.choose_backend("xccl", "xpu")


def train_without_ddp() -> None:
    """What a rank does whose wrapper is that for MPS."""
    wrapper = project_module("runtime.distributed").OneProcess
    vars(project_module("runtime.distributed"))["wrap"] = lambda module, config: wrapper(module)
    run_train()


def test_one_process_on_mps_trains_as_with_ddp(project: Render, tmp_path: Path) -> None:
    """Only its wrapper is tried here, on a CPU."""
    options = ("--max-steps", "6", "--accum-steps", "2", "--global-batch-size", "64")
    for name, entry in (("with", run_train), ("without", train_without_ddp)):
        train_on_ranks(project(), tmp_path / name, *options, processes=1, entry=entry)
    paths = (tmp_path / name / "checkpoints" / "last.pt" for name in ("with", "without"))
    one, other = (torch.load(path, weights_only=True) for path in paths)
    assert_same_state(one, other, "model", "optimizer", "ranks")
