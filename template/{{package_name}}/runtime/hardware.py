"""What a node has for ranks, known without torch: cores, quotas on them, GPUs and other accelerators."""

import math
import os
import re
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

ROOT = Path("/")  # of the files in which Linux tells what there is
HIDING = ("", "-1", "none", "void", "NoDevFiles")  # what a variable holds that hides all GPUs on purpose
UUID_OR_ADDRESS = re.compile(r"\bGPU-[\da-f-]+\b|\b[\da-fA-F]{4,8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d\b")
# Files that show a device, if they hold this. Those that are part of a processor do not count.
AMD = ("sys/class/kfd/kfd/topology/nodes/*/properties", r"simd_count [1-9]")
INTEL = ("sys/bus/pci/devices/*/uevent", r"PCI_CLASS=3....\nPCI_ID=8086:(.*\n)*PCI_SLOT_NAME=(?!.*00:02\.0)")
OTHERS = {
    "accelerator": ("sys/class/accel/*/device/uevent", r"DRIVER=(?!intel_vpu|amdxdna)"),
    "TPU": ("dev/accel[0-9]*", ""),
    "Gaudi": ("dev/hl[0-9]*", ""),
    "Neuron device": ("dev/neuron[0-9]*", ""),
    "Ascend NPU": ("dev/davinci[0-9]*", ""),
}


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def quotas() -> dict[str, float]:
    """Return how many cores each CPU quota allows that limits this process, by the cgroup whose processes share it."""
    found = {}
    for line in text_of(ROOT / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = Path(path).parts[1:]
        for name in ("cpu", "cpu,cpuacct") if controllers else (".", "unified"):  # of version 1, or 2
            top = ROOT / "sys/fs/cgroup" / name
            # In a container, what is mounted may begin below the path.
            paths = (top.joinpath(*parts[begin:]) for begin in range(len(parts)))
            own = next((path for path in paths if path.is_dir()), top)
            for group in own, *own.parents[: len(own.parts) - len(top.parts)]:
                if (allowed := quota_of(group)) < math.inf:
                    found[f"{socket.gethostname()} {group.stat().st_dev}:{group.stat().st_ino}"] = allowed
    return found


def quota_of(group: Path) -> float:
    """Return how many cores a cgroup may use, of version 2 or 1; inf if it has no quota."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        if (both := group / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if float(quota) > 0:
            return float(quota) / float(period)
    return math.inf


def shares_of_quotas(ranks: Sequence[Mapping[str, float]]) -> list[float]:
    """Return how many cores each rank has by its quotas, which others may share with it; inf without a quota."""
    users = Counter(group for quotas in ranks for group in quotas)
    return [min((cores / users[group] for group, cores in quotas.items()), default=math.inf) for quotas in ranks]


def ranks_on_cpus() -> int:
    """Return for how many ranks there is a core each."""
    return max(1, int(min([len(cores()), *quotas().values()])))


def gpus_and_driver(device: str) -> tuple[list[str], str]:
    """Return UUID and address of each GPU on which CUDA or ROCm would compute here, and their driver's version."""
    gpus, driver = nvidia_gpus() if device != "cpu" else ([], "none")
    if gpus or device == "cpu":
        return visible(gpus, "CUDA_VISIBLE_DEVICES"), driver
    version = text_of(ROOT / "sys/module/amdgpu/version").strip()
    gpus = visible(amd_gpus(), "ROCR_VISIBLE_DEVICES")
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"
    return visible(gpus, hip), (gpus and version) or driver


def visible(gpus: Sequence[str], variable: str) -> list[str]:
    """Return which of the GPUs a variable lets a program see, in its order."""
    numbers = {str(number): gpu for number, gpu in enumerate(gpus)}

    def named(word: str) -> str:  # MIG: a part of a GPU, which nvidia-smi does not list
        by_uuid = next((gpu for gpu in gpus if word and gpu.startswith(word)), "")
        return numbers.get(word, word if word.startswith("MIG-") else by_uuid)

    words = os.environ.get(variable, ",".join(numbers)).replace(" ", "").split(",")
    # CUDA takes those before the first that it does not know, such as -1.
    return [*takewhile(bool, map(named, words if gpus else []))]


def amd_gpus() -> list[str]:
    """Return UUID and address of each AMD GPU that Linux shows, as rocm-smi writes them."""
    found = []
    for file in sorted(ROOT.glob(AMD[0]), key=lambda file: int(file.parent.name)):
        if re.search(AMD[1], text := text_of(file)):
            told = {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
            place = told.get("location_id", 0)
            address = f"{told.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}"
            found.append(f"GPU-{told.get('unique_id', 0):016x} {address}")
    return found


def nvidia_gpus(patience: float = 10) -> tuple[list[str], str]:
    """Return UUID and address of each GPU that nvidia-smi shows within some seconds, and the version of the driver."""
    command = ["nvidia-smi", "--query-gpu=uuid,pci.bus_id,driver_version", "--format=csv,noheader"]
    text = ""
    with suppress(OSError):
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, errors="replace")
        try:
            text = program.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            program.kill()  # without a wait for its end: a driver that hangs does not let go of it
    # There may be other columns, or words alone.
    gpus = [" ".join(found) for line in text.splitlines() if (found := UUID_OR_ADDRESS.findall(line))]
    driver = re.search(r"\b\d{3}\.\d[\d.]*", text + text_of(ROOT / "proc/driver/nvidia/version"))
    return gpus, driver[0] if driver else "none"


def accelerators() -> dict[str, str]:
    """Return what the system shows and no variable hides, and the platform of torch that can use it, if one can."""
    hidden = is_hidden("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    gpus, driver = ([], "") if hidden else nvidia_gpus(patience=3)
    files = [*ROOT.glob("dev/nvidia[0-9]*")] or [*ROOT.glob("proc/driver/nvidia/gpus/*")]
    amd = 0 if is_hidden("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") else count(*AMD)
    found = [(0 if hidden else len(gpus or files), f"NVIDIA GPU (driver {driver})", "CUDA"), (amd, "AMD GPU", "ROCm")]
    found += [(0 if is_hidden("ZE_AFFINITY_MASK") else count(*INTEL), "Intel GPU", "XPU")]
    found += [(count(*shown), name, "") for name, shown in OTHERS.items()]
    return {f"{number} x {name}": platform for number, name, platform in found if number}


def is_hidden(*variables: str) -> bool:
    """Return whether one of these variables hides all GPUs on purpose."""
    return any(os.environ.get(variable, "all").strip() in HIDING for variable in variables)


def count(pattern: str, words: str) -> int:
    """Return how many files of the system there are that hold some words."""
    return sum(not words or bool(re.search(words, text_of(file))) for file in ROOT.glob(pattern))


def text_of(file: Path) -> str:
    """Return what a file of the system says; nothing if it is not there."""
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
