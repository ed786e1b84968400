"""What waits for a GPU, in steps that each write their results at once: scripts/gpu.sh runs it."""

import functools
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import psutil
import typer
from packaging.requirements import Requirement

from generator.answers.questions import TEMPLATE

LIMIT = 590.0  # seconds of a step
# What is packed beside the generator's own requirements: what the steps import of the test extra, and what builds.
PYTEST = ("pytest", "pytest-split", "pytest-timeout", "pytest-xdist")
IMPORTED = ("ast-grep-py", "numpy", "psutil", *PYTEST, "safetensors", "tyro")
BUILDING = ("ninja", "setuptools>=77", "wheel")
PLATFORMS = [f"manylinux_2_{version}_x86_64" for version in range(5, 35)] + [
    f"manylinux{name}_x86_64" for name in ("1", "2010", "2014")
]
# The names of the settings of benchmarks/gpu.py, which imports torch: those that tell most first.
SPEED = (
    "TF32 convolutions",
    "float32",
    "bfloat16",
    "bfloat16, channels last",
    "bfloat16, channels last, compiled",
    "TF32",
    "TF32, channels last",
)


# What the steps know as variables. A CPU tries the steps themselves, as far as it can.
DEVICES = {
    "cuda": {"DEVICE": "cuda", "BACKEND": "nccl", "RATES": "", "BLOCKS": "--workloads wide"},
    "cpu": {
        "DEVICE": "cpu",
        "BACKEND": "gloo",
        "RATES": "--device cpu --workload small_cnn --rounds 1 --steps 40",
        "BLOCKS": "--workloads small_cnn --rounds 2",
    },
}


@functools.cache
def gpus() -> int:
    """How many GPUs torch sees."""
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def no_device(out: Path, device: str) -> str:
    """Say that there is no GPU, unless a CPU will do, or nothing."""
    return "" if device == "cpu" or gpus() else "no GPU"


def no_gpu(out: Path, device: str) -> str:
    """Say that there is no GPU, or nothing."""
    return "a CPU cannot do it" if device == "cpu" else no_device(out, device)


def no_second_device(out: Path, device: str) -> str:
    """Say that there are less than two GPUs, unless a CPU will do, or nothing."""
    return "" if device == "cpu" or gpus() > 1 else f"{gpus() or 'no'} GPU, and NCCL wants one for each process"


def no_kernels(out: Path, device: str) -> str:
    """Say that apex was installed without its kernels, or nothing."""
    importlib.invalidate_caches()
    return no_gpu(out, device) or ("" if importlib.util.find_spec("amp_C") else "apex's kernels are not built")


def no_rates(out: Path, device: str) -> str:
    """Say that no speed was measured, or nothing."""
    return "" if device == "cuda" and (out / "gpu.json").exists() else "no speed of a GPU was measured"


@dataclass(frozen=True)
class Step:
    """Commands of bash. $OUT is for what is kept, $WORK is an empty folder, $PACKED has what was packed."""

    name: str
    what: str
    commands: str
    missing: Callable[[Path, str], str] = no_device  # why it must be skipped


FACTS = """
python -m torch.utils.collect_env
[ "$DEVICE" = cuda ] || exit 0
python -c 'import torch; print("NCCL", torch.cuda.nccl.version()); print("bfloat16 in hardware",
    torch.cuda.is_bf16_supported(including_emulation=False))'
nvidia-smi
"""
NEW_PROJECT = 'ddp-template new "$WORK/project" && cd "$WORK/project"\n'
TRAIN = 'python train.py --device "$DEVICE" --epochs 1'
TRACE = f"""{NEW_PROJECT}{TRAIN} --log-every 1000 --profile --run-dir "$WORK/run"
cp "$WORK/run/trace.json.gz" "$OUT"
cd "$OLDPWD"
python -c 'import pathlib, sys; from benchmarks.gpu import waits_of_a_step
print("a step waits for the GPU so often:", waits_of_a_step(pathlib.Path(sys.argv[1])))' "$OUT/trace.json.gz"
"""
TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node=2"  # torch may be another environment's
NCCL = f'{TORCHRUN} train.py --device "$DEVICE" --backend "$BACKEND" --epochs 1'
BLOCKS = 'python -m benchmarks blocks --device "$DEVICE" $BLOCKS --out "$OUT/blocks.json"'
NIGHTLY = ("exact/test_gpu", "exact/test_device", "exact/test_ddp_options", "exact/test_bad_steps", "test_precision")
GPU, DEVICE, DDP_OPTIONS, BAD_STEPS, PRECISION = (f"tests/nightly/{file}.py" for file in NIGHTLY)
KILLS = ("tests/nightly/faults/test_many_kills.py", "tests/core/faults/test_disks.py")
COMPILED = "tests/nightly/test_compiled.py"
CHECKPOINTS = "tests/core/test_checkpoints.py"


def tests(words: str, *files: str) -> str:
    """Commands that run tests by words of their names. On a GPU, one that skips has shown nothing."""
    return f"""python -m pytest -m gpu -rs -k '{words}' {' '.join(files)} | tee "$WORK/told"
[ "$DEVICE" = cpu ] || ! grep -qE "[0-9]+ skipped" "$WORK/told"
"""


FETCH_APEX = """
git init --quiet "$WORK/git"
git -C "$WORK/git" fetch --quiet --depth 1 "${APEX_SOURCE:-https://github.com/NVIDIA/apex}" refs/tags/25.05
git -C "$WORK/git" archive --prefix=apex/ --output="$PACKED/apex.tar.gz" FETCH_HEAD
"""
GET_APEX = f'[ -e "$PACKED/apex.tar.gz" ] || {{ {FETCH_APEX} }}\ntar -xf "$PACKED/apex.tar.gz" -C "$WORK"\n'
# CUDA 13 compiles nothing for Volta, for which apex names an option of two lines.
BUILD_APEX = """sed -i -e '/append("-gencode")/{N;/compute_70/d}' "$WORK/apex/setup.py"
python -m pip install --verbose --no-index --no-deps --no-build-isolation --no-cache-dir \\
    --config-settings "--build-option=--cpp_ext --cuda_ext --parallel 8" "$WORK/apex"
"""
STEPS = (
    Step("facts", "what the machine is", FACTS),
    Step("train", "the default project, an epoch", NEW_PROJECT + TRAIN),
    Step("exact", "the guarantees of docs/exact.md", tests("", GPU, COMPILED)),
    Step("precision", "TF32 and torch.amp", tests("not apex", PRECISION)),
    Step("trace", "how often a step waits for the GPU", TRACE),
    Step("memory", "a GPU whose memory is full", tests("full", DEVICE)),
    Step("kills", "--async-saves with kills, and saves that take long", tests("beside or longer", *KILLS)),
    Step("options", "the static graph, buckets, gradients in bfloat16", tests("sent or travel", DDP_OPTIONS)),
    Step("bad-steps", "bad steps: fused, SGD, float16, bfloat16", tests("trace", BAD_STEPS)),
    Step("uneven", "uneven counts, rows of all ranks", tests("uneven or rows", DEVICE)),
    Step("placement", "ranks that cannot work together", tests("together", DEVICE)),
    Step("kernels", "kernels, streams, the layout of moments", tests("few or stream or moments", DEVICE)),
    Step("loading", "a checkpoint is loaded without a copy", tests("without_a_copy", CHECKPOINTS)),
    Step("project", "the default project's own tests", NEW_PROJECT + "python -m pytest"),
    Step("nccl", "two processes with NCCL", NEW_PROJECT + NCCL, no_second_device),
    Step(
        "hang",
        "a rank that is frozen, with NCCL",
        tests("record", "tests/nightly/faults/test_frozen.py"),
        no_second_device,
    ),
    Step("gradients", "what the options of DistributedDataParallel are worth", BLOCKS, no_second_device),
    Step("apex", "apex without its kernels", f'{GET_APEX}export PYTHONPATH="$WORK/apex"\n{tests("apex", PRECISION)}'),
    *(
        Step(
            f"speed-{name.lower().replace(',', '').replace(' ', '-')}",
            f"samples per second in {name}",
            f'python -m benchmarks gpu $RATES --fresh --setting "{name}" --out "$OUT/gpu.json"',
        )
        for name in SPEED
    ),
    Step("docs", "docs/speed.md", 'cp "$OUT/gpu.json" benchmarks/results/ && ddp-template docs', no_rates),
    Step("build-apex", "apex's kernels are built", GET_APEX + BUILD_APEX, no_gpu),
    Step("apex-kernels", "apex with its kernels", tests("apex", PRECISION), no_kernels),
)


@dataclass(frozen=True)
class Result:
    """How a step ended."""

    result: str  # ok, failed or skipped
    reason: str = ""
    seconds: float = 0.0


def run(step: Step, out: Path, packed: Path, device: str) -> Result:
    """Run a step, unless something is missing, and write what it prints to a log."""
    if reason := step.missing(out, device):
        return Result("skipped", reason)
    typer.echo(f"{step.name}: {step.what}", err=True)
    packed.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work, open(out / f"{step.name}.log", "w") as log:
        places = {"OUT": str(out), "PACKED": str(packed), "WORK": work, "PYTHONUNBUFFERED": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", "-euo", "pipefail", "-c", step.commands]
        environment = {**os.environ, **DEVICES[device], **places, "PATH": path}
        process = subprocess.Popen(command, cwd=TEMPLATE, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT)
            reason = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            reason = f"no end after {LIMIT:.0f} s"
        finally:
            end(process)
    return Result("failed" if reason else "ok", reason, round(time.monotonic() - started, 1))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, which may be in sessions of their own."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for each in [*first.children(recursive=True), first]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def run_all(steps: Sequence[Step], out: Path, packed: Path, device: str, *, fresh: bool) -> list[list[str]]:
    """Run the steps that have not succeeded before. Returns the rows of the summary."""
    file, rows = out / "results.json", []
    known = {name: Result(**found) for name, found in json.loads(file.read_text()).items()} if file.exists() else {}
    for step in steps:
        before = not fresh and step.name in known and known[step.name].result == "ok"
        if not before:
            known[step.name] = run(step, out, packed, device)
            file.with_suffix(".tmp").write_text(json.dumps({name: asdict(known[name]) for name in known}, indent=1))
            file.with_suffix(".tmp").replace(file)
        ended = known[step.name]
        told = f"{ended.result}: {ended.reason}" if ended.reason else ended.result + before * " (before)"
        ran = ended.result != "skipped"
        rows.append([step.name, told, f"{ended.seconds:.0f}" * ran, str(out / f"{step.name}.log") * ran])
    return rows


def chosen(names: Sequence[str], begin: str) -> list[Step]:
    """Return the steps of these names, or those from one on. Raises BadParameter if there is none of a name."""
    known = [step.name for step in STEPS]
    for name in [*names, *([begin] if begin else [])]:
        if name not in known:
            raise typer.BadParameter(f"there is no step {name}: --list shows all")
    first = known.index(begin) if begin else 0
    return [step for step in STEPS[first:] if not names or step.name in names]


def pack(folder: Path, python: str) -> None:
    """Fetch what a machine without a network needs beside its torch: wheels, and apex's source."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = map(Requirement, metadata.requires("ddp-template") or [])
    needed = [f"{each.name}{each.specifier}" for each in requirements if not each.marker or each.name in IMPORTED]
    target = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:"]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--quiet", "--dest", str(folder), "--constraint", str(TEMPLATE / "tests" / "constraints.txt")]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *target, *needed, *BUILDING], check=True)
    with tempfile.TemporaryDirectory() as work:
        environment = {**os.environ, "WORK": work, "PACKED": str(folder)}
        subprocess.run(["bash", "-euo", "pipefail", "-c", FETCH_APEX], env=environment, check=True)
    typer.echo(f"packed: {folder}, {sum(file.stat().st_size for file in folder.iterdir()) / 2**20:.0f} MiB")


def main(
    steps: Annotated[list[str] | None, typer.Argument(help="Run these alone.", show_default="all")] = None,
    begin: Annotated[str, typer.Option("--from", metavar="STEP", help="Run this one and those after it.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the steps.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has succeeded before.")] = False,
    device: Annotated[str, typer.Option(help="cpu tries the steps themselves, as far as it can.")] = "cuda",
    out: Annotated[Path, typer.Option(help="Where logs and results go.")] = Path("gpu-results"),
    packed: Annotated[Path | None, typer.Option(help="Install from this folder, without a network.")] = None,
    pack_into: Annotated[Path | None, typer.Option("--pack", help="Fill this folder, and run no step.")] = None,
    python: Annotated[str, typer.Option(help="The version of Python that --pack is for.")] = "3.12",
) -> None:
    """Run what waits for a GPU. Folders are relative to the repository; a step that fails does not end the others."""
    if device not in DEVICES:
        raise typer.BadParameter(f"there is no device {device}: choose of {', '.join(DEVICES)}")
    wanted = chosen(steps or [], begin)
    out = (out if device == "cuda" else out / device).resolve()  # what a CPU has done, a GPU has not
    if pack_into:
        pack(pack_into.resolve(), python)
    elif show:
        typer.echo("".join(f"{step.name:<40} {step.what}\n" for step in wanted), nl=False)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        out.mkdir(parents=True, exist_ok=True)
        rows = run_all(wanted, out, (packed or out / "packed").resolve(), device, fresh=fresh)
        lines = [["step", "result", "seconds", "log"], ["---"] * 4, *rows]
        (out / "summary.md").write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))
        typer.echo((out / "summary.md").read_text(), nl=False)
        raise typer.Exit(any(told.startswith("failed") for _, told, *_ in rows))


if __name__ == "__main__":
    typer.run(main)
