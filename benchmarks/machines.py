"""What the measurements ran on."""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

MEMORY = 2**27  # bytes: what Linux keeps for itself differs a little from boot to boot


def machine() -> dict[str, Any]:
    """What decides the times beside the code."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(psutil.virtual_memory().total / MEMORY) * MEMORY,
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def cpu_name() -> str:
    """The name of the processor; "unknown" where Linux does not tell it."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return found[1].strip() if found else "unknown"
