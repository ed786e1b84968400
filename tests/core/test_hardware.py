"""What a project finds of a machine without torch: quotas, GPUs and other devices, from real files and programs."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Package, Render
from tests.support.hardware import quota
from tests.support.processes import PATH, output_of, scaled, write_program

CGROUPS = "sys/fs/cgroup"
TWO = "echo GPU-a, 00000000:03:00.0, 550.54.14; echo GPU-b, 00000000:04:00.0, 550.54.14"
BOTH = ["GPU-a 00000000:03:00.0", "GPU-b 00000000:04:00.0"]
PCI = "sys/bus/pci/devices/0000:4d:00.0/uevent"
INTEL = "DRIVER=xe\nPCI_CLASS=38000\nPCI_ID=8086:0BD5\nPCI_SUBSYS_ID=8086:0000\nPCI_SLOT_NAME=0000:4d:00.0\n"
ON_BOARD = INTEL.replace("38000", "30000").replace("4d:00.0", "00:02.0")
KFD = "sys/class/kfd/kfd/topology/nodes"
AMD = {f"{KFD}/0/properties": "cpu_cores_count 64\nsimd_count 0\n", f"{KFD}/1/properties": "simd_count 440\n"}
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed"
OF_DRIVER = {"proc/driver/nvidia/gpus/0000:03:00.0/information": "", "proc/driver/nvidia/version": VERSION}
OR_CPU = "or give --device cpu"
FOR_CUDA = f"install the build of torch for CUDA, {OR_CPU}"
GIVE_GPUS = f"give the container its GPUs (docker run --gpus all), {OR_CPU}"
SEE_DRIVER = f"update the driver, see CUDA_VISIBLE_DEVICES, {GIVE_GPUS}"
ELSEWHERE = f"cannot be used by a run, which needs CUDA, ROCm or XPU: train elsewhere, {OR_CPU}"
OLD_DRIVER = {"dev/nvidia0": "", "proc/driver/nvidia/version": "470.82.01"}
UNUSED: list[tuple[str | None, str | None, dict[str, str], str, str, str]] = [
    # what torch is built for, the files of a system, its devices, the build, and the remedy
    (None, None, {"dev/nvidia0": ""}, "1 x NVIDIA GPU (driver none)", "CPUs", FOR_CUDA),
    ("12.6", None, OLD_DRIVER, "1 x NVIDIA GPU (driver 470.82.01)", "CUDA 12.6", SEE_DRIVER),
    (None, "6.4", {"dev/nvidia0": "", "dev/nvidia1": ""}, "2 x NVIDIA GPU (driver none)", "ROCm 6.4", FOR_CUDA),
    (None, None, {PCI: INTEL}, "1 x Intel GPU", "CPUs", FOR_CUDA.replace("CUDA", "XPU")),
    (None, None, {"dev/davinci0": ""}, "1 x Ascend NPU", "", ELSEWHERE),
    (None, None, {}, "", "", ""),
]
WATCH = """
import sys, time
from threading import Thread
from ddp_project.runtime import launcher
launcher.PAUSE = 0.1
Thread(target=launcher.watch_node_0, args=(sys.argv[1], float(sys.argv[2])), daemon=True).start()
print("watching", flush=True)
time.sleep(float(sys.argv[3]))
print("done")
"""
DEVICES = [
    ({}, {}),
    (dict.fromkeys(("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl"), ""), {"2 x NVIDIA GPU (driver none)": "CUDA"}),
    (OF_DRIVER, {"1 x NVIDIA GPU (driver 470.82.01)": "CUDA"}),
    (AMD | {"dev/kfd": ""}, {"1 x AMD GPU": "ROCm"}),
    ({PCI: INTEL}, {"1 x Intel GPU": "XPU"}),
    ({PCI.replace("4d:00.0", "00:02.0"): ON_BOARD}, {}),
    ({PCI: INTEL.replace("38000", "20000")}, {}),
    ({"sys/class/accel/accel0/device/uevent": "DRIVER=intel_vpu\n"}, {}),
    ({"sys/class/accel/accel0/device/uevent": "DRIVER=habanalabs\n"}, {"1 x accelerator": ""}),
    ({f"dev/accel{number}": "" for number in range(4)}, {"4 x TPU": ""}),
    ({"dev/davinci0": "", "dev/davinci1": "", "dev/davinci_manager": ""}, {"2 x Ascend NPU": ""}),
    ({"dev/neuron0": ""}, {"1 x Neuron device": ""}),
    ({"dev/hl0": "", "dev/hl_controlD0": ""}, {"1 x Gaudi": ""}),
]
SAYINGS = [
    (TWO, BOTH, "550.54.14"),
    (f"{TWO}; exit 14", BOTH, "550.54.14"),
    ("echo 550.54.14, GPU-a, 40960 MiB; echo", ["GPU-a"], "550.54.14"),
    ("echo uuid, pci.bus_id; echo [N/A], 00000000:03:00.0, 550.54.14", ["00000000:03:00.0"], "550.54.14"),
    ("echo '| N/A  GPU-Util |'; echo '|  0  A100  Off | 00000000:03:00.0 Off |'", ["00000000:03:00.0"], "none"),
    ("echo Failed to initialize NVML: Driver/library version mismatch; exit 18", [], "none"),
    (r"printf '\377\376\n'; exit 1", [], "none"),
    ("kill -SEGV $$", [], "none"),
    ("echo GPU-a, 00000000:03:00.0, 550.54.14; sleep 60", [], "none"),
]


@pytest.fixture
def hardware(package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a project, on a system whose files the test writes below tmp_path, with no variable for GPUs."""
    for name in os.environ:
        if name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    module = package("runtime.hardware")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return module


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def v1(group: str, quota: str, period: str) -> dict[str, str]:
    """What a cgroup of version 1 says; one of version 2 says it in one file."""
    return {f"{group}/cpu.cfs_quota_us": quota, f"{group}/cpu.cfs_period_us": period}


# What a process is in, what its cgroups say, and the least quota.
QUOTAS: list[tuple[str, dict[str, str], float | None]] = [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    ("0::/\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/pod/one\n", {"pod/cpu.max": "200000 100000\n", "pod/one/cpu.max": "max 100000\n"}, 2),
    ("0::/pod/one\n", {"pod/cpu.max": "90000 100000", "pod/one/cpu.max": "50000 10000"}, 0.9),
    ("0::/docker/a/one\n", {"cpu.max": "300000 100000", "one/cpu.max": "100000 50000"}, 2),
    ("0::/pod\n", {"pod/cpu.max": "", "other/cpu.max": "10000 100000"}, None),
    ("4:cpu,cpuacct:/docker/a\n3:cpuset:/\n", v1("cpu,cpuacct", "50000\n", "100000\n"), 0.5),
    ("4:cpuacct,cpu:/a\n0::/\n", v1("cpu,cpuacct/a", "-1\n", "100000\n"), None),
    ("1:cpu:/a/b\n0::/\n", v1("cpu/a", "300000", "100000") | {"cpu/a/b/x": ""}, 3),
    ("", {}, None),
]


@pytest.mark.parametrize(("process", "groups", "least"), QUOTAS)
def test_the_least_quota_of_a_process_counts(
    process: str, groups: dict[str, str], least: float | None, hardware: Any, tmp_path: Path
) -> None:
    """Of version 1 or 2, of its own cgroup or one around it, in a container that sees only some of them or not."""
    lay(tmp_path, {"proc/self/cgroup": process})
    lay(tmp_path / CGROUPS, groups)
    assert min(hardware.quotas().values(), default=None) == least
    cores = len(os.sched_getaffinity(0))
    assert hardware.ranks_on_cpus() == max(1, int(min(least or cores, cores)))


def test_two_processes_name_a_quota_that_they_share_alike(hardware: Any, tmp_path: Path) -> None:
    lay(tmp_path / CGROUPS, {f"{group}/cpu.max": "100000 100000" for group in ("a", "a/one", "a/two")})
    found = []
    for group in ("one", "two"):
        lay(tmp_path, {"proc/self/cgroup": f"0::/a/{group}\n"})
        found.append(hardware.quotas())
    assert ([len(each) for each in found], len(found[0].keys() & found[1].keys())) == ([2, 2], 1)
    assert hardware.shares_of_quotas(found) == [0.5, 0.5]


def test_a_real_quota_is_found_and_launch_sh_starts_a_rank_for_each_core(project: Render, tmp_path: Path) -> None:
    with quota(1.5) as join:
        if join is None:
            pytest.skip("no quota of CPUs can be set here")
        words = (
            "import sys; from ddp_project.runtime import hardware, launcher; print([*hardware.quotas().values()]); "
            "sys.argv = ['', '--nproc-per-node=auto', 'train.py']; launcher.get_ready(); print(sys.argv[1])"
        )
        script = f'echo $$ >{join}; exec {sys.executable} -c "{words}"'
        assert output_of(["bash", "-c", script], project()).split() == ["[1.5]", "--nproc-per-node=1"]
        env = os.environ | {"PATH": PATH, "NPROC_PER_NODE": "2"}
        doctor = f"echo $$ >{join}; exec ./launch.sh --doctor --device cpu --run-dir {tmp_path}/run"
        assert ": 2 ranks share a quota of 1.5 cores: " in output_of(["bash", "-c", doctor], project(), env)


@pytest.mark.parametrize(("script", "gpus", "driver"), SAYINGS)
def test_nvidia_smi_may_say_anything(script: str, gpus: list[str], driver: str, hardware: Any, tmp_path: Path) -> None:
    """It may be missing, or no program, too."""
    assert hardware.nvidia_gpus() == ([], "none")
    write_program(tmp_path / "nvidia-smi", script)
    began = time.monotonic()
    assert hardware.nvidia_gpus(patience=scaled(1)) == (gpus, driver)
    assert time.monotonic() - began < 30
    for mode, words in ((0o644, "#!/bin/sh\n"), (0o755, "no program"), (0o755, "#!/nowhere\n")):
        (tmp_path / "nvidia-smi").write_text(words)
        (tmp_path / "nvidia-smi").chmod(mode)
        assert hardware.nvidia_gpus() == ([], "none")


def test_gpus_are_those_that_nvidia_smi_tells(hardware: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "nvidia-smi", TWO)
    assert hardware.gpus_and_driver("auto") == (BOTH, "550.54.14")
    visible = {"1": BOTH[1:], "GPU-a": BOTH[:1], "": [], "-1": [], "1,-1,0": BOTH[1:], "1, 0": BOTH[::-1]}
    for value, gpus in (visible | {"0,2": BOTH[:1], "GPU-c,0": [], "MIG-c": ["MIG-c"]}).items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert hardware.gpus_and_driver("auto") == (gpus, "550.54.14")
    assert hardware.gpus_and_driver("cpu") == ([], "none")
    write_program(tmp_path / "nvidia-smi", "exit 9")
    assert hardware.gpus_and_driver("auto") == ([], "none")


def test_amd_gpus_are_those_that_linux_shows(hardware: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 is a processor. Numbers of HIP_VISIBLE_DEVICES count what ROCR_VISIBLE_DEVICES has left."""
    told = {2: "simd_count 304\nunique_id 26\ndomain 0\nlocation_id 9987\n", 0: "simd_count 0\n"}
    told[10] = "simd_count 304\nunique_id 27\ndomain 1\nlocation_id 256\n"
    files = {f"sys/class/kfd/kfd/topology/nodes/{node}/properties": text for node, text in told.items()}
    lay(tmp_path, files | {"sys/module/amdgpu/version": "6.12.12\n"})
    both = ["GPU-000000000000001a 0000:27:00.3", "GPU-000000000000001b 0001:01:00.0"]
    assert hardware.gpus_and_driver("auto") == (both, "6.12.12")
    assert hardware.gpus_and_driver("cpu") == ([], "none")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert hardware.gpus_and_driver("auto") == (both[1:], "6.12.12")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert hardware.gpus_and_driver("auto") == (both[:1], "6.12.12")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-000000000000001b")
    assert hardware.gpus_and_driver("auto") == (both[1:], "6.12.12")


@pytest.mark.parametrize(("files", "shown"), DEVICES)
def test_devices_that_a_system_has(files: dict[str, str], shown: dict[str, str], hardware: Any, tmp_path: Path) -> None:
    """A GPU or an NPU that is part of the processor of a laptop is none on which to train."""
    lay(tmp_path, files)
    assert hardware.accelerators() == shown


@pytest.mark.parametrize("case", UNUSED, ids=lambda case: case[3])
def test_the_line_names_the_devices_the_build_and_the_remedy(
    case: Any, hardware: Any, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, hip, files, devices, build, remedy = case
    placement = package("runtime.devices")
    lay(tmp_path, files)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    used = f"cannot be used by torch {torch.__version__}, built for {build}: {remedy}" if build else remedy
    assert placement.unused_devices("auto").partition(": ")[2] == f"{devices} {used}".strip()
    assert placement.unused_devices("cpu") == ""


@pytest.mark.parametrize(("kind", "ranks"), [("cuda", 3), ("xpu", 3), ("", len(os.sched_getaffinity(0)))])
def test_auto_is_a_rank_for_each_gpu(
    kind: str, ranks: int, hardware: Any, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none, a rank for each core: torchrun would count no quota."""
    launcher, found = package("runtime.launcher"), torch.device(kind) if kind else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setenv(launcher.THREADS, "")  # which it sets: not for the tests after this one
    for words, expected in (("auto", ranks), ("2", 2)):
        monkeypatch.setattr(sys, "argv", ["", f"--nproc-per-node={words}"])
        launcher.get_ready()
        assert sys.argv[1] == f"--nproc-per-node={expected}"


def test_a_launcher_ends_when_node_0_is_silent(project: Render, free_port: int) -> None:
    """By itself, without the programs of the shell, and not before: it may listen on and off."""
    command = [sys.executable, "-c", WATCH, f"127.0.0.1:{free_port}"]
    silent = output_of([*command, "1", "60"], project(), code=69, timeout=60)
    gone = f"error: 127.0.0.1:{free_port} has been out of reach for more than 1 s"
    assert silent == f"watching\n{gone}: launch.sh --doctor examines the nodes\n"
    with socket.create_server(("127.0.0.1", free_port)):
        assert output_of([*command, "1", "3"], project()) == "watching\ndone\n"
    with socket.create_server(("::1", free_port), family=socket.AF_INET6):
        assert output_of([*command[:-1], f"[::1]:{free_port}", "1", "3"], project()) == "watching\ndone\n"
