"""apex.amp for ranks on CPUs: a stand-in for it, and NVIDIA's own code, changed to work on tensors of a CPU.

Its last tag with amp comes from the git repository that APEX_SOURCE names, or is cloned once into a cache folder.
"""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

REPOSITORY = "https://github.com/NVIDIA/apex"
TAG = "25.05"
CACHE = Path.home() / ".cache" / "ddp-template-tests" / f"apex-{TAG}.git"
STAND_IN = Path(__file__).parent / "apex_stand_in" / "apex"
# The package apex.amp and all that it imports.
PARTS = ["__init__.py", "amp", "contrib/__init__.py", "contrib/optimizers", "fp16_utils", "multi_tensor_apply"]
PARTS += ["optimizers", "parallel"]
# What code for GPUs becomes on a CPU: types of tensors and their names, questions where a tensor is, other packages.
CHANGES = {
    r"\btorch\.cuda\.(\w+Tensor)\b": r"torch.\1",
    r"\b\w+\.is_cuda\b": "True",
    r"^from \. import (normalization|transformer)$": "",
}


class NotAtHand(Exception):
    """There is no apex, and it cannot be cloned. The message says what helps."""


def read_apex() -> dict[str, str]:
    """Return apex for a CPU, the code of each file by its path. Raises NotAtHand if it is not here."""
    source = os.environ.get("APEX_SOURCE") or cached_clone()
    command = ["git", "-C", source, "archive", TAG, "--", *(f"apex/{part}" for part in PARTS)]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        python = {member.name: files.extractfile(member) for member in files if member.name.endswith(".py")}
        texts = {name: file.read().decode() for name, file in python.items() if file}
    for pattern, replacement in CHANGES.items():
        texts = {name: re.sub(pattern, replacement, text, flags=re.MULTILINE) for name, text in texts.items()}
    return texts


def cached_clone() -> Path:
    """Return the clone in the cache folder, and make it if it is missing. Raises NotAtHand if that fails."""
    if CACHE.exists():
        return CACHE
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    clone = Path(tempfile.mkdtemp(prefix=f"{CACHE.name}-", dir=CACHE.parent))
    command = ["git", "clone", "--quiet", "--bare", "--depth", "1", "--branch", TAG, REPOSITORY, str(clone)]
    try:
        environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
        subprocess.run(command, env=environment, check=True, timeout=600, stderr=subprocess.PIPE, text=True)
        with suppress(OSError):  # another process was faster
            clone.rename(CACHE)
    except subprocess.SubprocessError as error:
        reason = " ".join((getattr(error, "stderr", None) or str(error)).split())
        raise NotAtHand(f"let APEX_SOURCE name a clone of {REPOSITORY} with tag {TAG}; git clone: {reason}") from error
    finally:
        shutil.rmtree(clone, ignore_errors=True)
    return CACHE


def put_stand_in(project: Path) -> None:
    shutil.copytree(STAND_IN, project / "apex")


def put_apex(project: Path, files: dict[str, str]) -> None:
    for name, code in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(code)
