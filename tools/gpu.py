"""What waits for a GPU, in steps that each write their results at once: scripts/gpu.sh runs it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from generator.answers.questions import TEMPLATE
from tools.gpu_report import REPORT, write_report

LIMITS = {"cuda": 60.0, "cpu": 600.0}  # seconds of a step
LEAST = 10.0  # seconds that are left: no step does anything in less
NO_TIME = "no time left"
BEGAN = "GPU_SH_BEGAN"  # the variable with the time at which the script has begun, which may have installed packages
PLATFORMS = [f"manylinux_2_{version}_x86_64" for version in range(5, 35)] + [
    f"manylinux{name}_x86_64" for name in ("1", "2010", "2014")
]
# The steps that measure, and their settings of benchmarks/gpu.py, which imports torch.
SETTINGS = {
    "resnet-bf16": "ResNet-50, bfloat16, channels last",
    "resnet-tf32": "ResNet-50, TF32",
    "gpt": "GPT, bfloat16",
    "gpt-compiled": "GPT, bfloat16, compiled",
    "mlp": "MLP, bfloat16",
    "cnn": "small CNN, bfloat16",
    "memory": "memory",
    "saves": "saves",
}
# What the steps know as variables. A CPU tries the steps themselves, as far as it can.
DEVICES = {
    "cuda": {"DEVICE": "cuda", "BACKEND": "nccl", "MEASURE": "", "BLOCKS": "--workloads wide --rounds 20"},
    "cpu": {
        "DEVICE": "cpu",
        "BACKEND": "gloo",
        "MEASURE": "--seconds 1 --rounds 3",
        "BLOCKS": "--workloads small_cnn --rounds 2",
    },
}


def facts(out: Path) -> dict[str, Any]:
    """Return what the first step has found; nothing if it has failed."""
    with suppress(OSError, ValueError):
        return dict(json.loads((out / "facts.json").read_text()))
    return {}


def no_device(out: Path, device: str) -> str:
    """Say that torch sees no GPU, unless a CPU will do, or nothing."""
    return "" if device == "cpu" or facts(out).get("gpus") else "torch sees no GPU"


def no_second_device(out: Path, device: str) -> str:
    """Say that there are less than two GPUs, unless a CPU will do, or nothing."""
    gpus = facts(out).get("gpus", 0)
    return "" if device == "cpu" or gpus > 1 else f"{gpus or 'no'} GPU, and NCCL wants one for each process"


@dataclass(frozen=True)
class Step:
    """Commands of bash. $OUT is for what is kept, $WORK is an empty folder, $PACKED has what was packed."""

    name: str
    what: str
    commands: str
    missing: Callable[[Path, str], str] = no_device  # why it must be skipped


FACTS = """
python -c 'import json, sys; from benchmarks.gpu import machine; print(json.dumps(machine(sys.argv[1])))' "$DEVICE" \\
    >"$OUT/facts.json"
cat "$OUT/facts.json"
"""
NEW_PROJECT = 'ddp-template new "$WORK/project" && cd "$WORK/project"\n'
TRAIN = 'python train.py --device "$DEVICE" --epochs 1'
TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node=2"  # torch may be another environment's
NCCL = f'{TORCHRUN} train.py --device "$DEVICE" --backend "$BACKEND" --epochs 1'
BLOCKS = 'python -m benchmarks blocks --device "$DEVICE" $BLOCKS --out "$OUT/blocks.json"'
NIGHTLY = ("exact/test_gpu", "exact/test_device", "exact/test_ddp_options", "exact/test_bad_steps", "test_precision")
GPU, DEVICE, DDP_OPTIONS, BAD_STEPS, PRECISION = (f"tests/nightly/{file}.py" for file in NIGHTLY)
KILLS, DISKS = "tests/nightly/faults/test_many_kills.py", "tests/core/faults/test_disks.py"
COMPILED, CHECKPOINTS = "tests/nightly/test_compiled.py", "tests/core/test_checkpoints.py"


def measure(name: str, further: str = "") -> str:
    """Commands that measure a setting."""
    options = f'--device "$DEVICE" $MEASURE --setting "{SETTINGS[name]}" {further} --out "$OUT/gpu.json"'
    return f"python -m benchmarks gpu {options}"


def tests(words: str, *files: str) -> str:
    """Commands that run tests by words of their names. On a GPU, one that skips has shown nothing."""
    return f"""python -m pytest -m gpu -v -rs -k '{words}' {' '.join(files)} | tee "$WORK/told"
[ "$DEVICE" = cpu ] || ! grep -qE "[0-9]+ skipped" "$WORK/told"
"""


def project_tests(*files: str) -> str:
    """Commands that run tests of the default project."""
    return f"{NEW_PROJECT}python -m pytest -v {' '.join(f'tests/test_{file}.py' for file in files)}"


FETCH_APEX = """
git init --quiet "$WORK/git"
git -C "$WORK/git" fetch --quiet --depth 1 "${APEX_SOURCE:-https://github.com/NVIDIA/apex}" refs/tags/25.05
git -C "$WORK/git" archive --prefix=apex/ --output="$PACKED/apex.tar.gz" FETCH_HEAD
"""
# A machine may have apex with its kernels.
GET_APEX = f"""if ! python -c "import apex.amp" 2>/dev/null; then
[ -e "$PACKED/apex.tar.gz" ] || {{ {FETCH_APEX} }}
tar -xf "$PACKED/apex.tar.gz" -C "$WORK"
export PYTHONPATH="$WORK/apex${{PYTHONPATH:+:$PYTHONPATH}}"
fi
"""
STEPS = (
    Step("facts", "what the machine is", FACTS, lambda out, device: ""),
    Step("resnet-bf16", "ResNet-50 beside a plain loop, bfloat16", measure("resnet-bf16")),
    Step("resnet-tf32", "the same, TF32", measure("resnet-tf32")),
    Step("gpt", "a GPT of 124 million weights beside a plain loop", measure("gpt")),
    Step(
        "compile", "the first step of both, which fills torch.compile's cache", measure("gpt-compiled", "--seconds 0")
    ),
    Step("gpt-compiled", "the GPT, compiled", measure("gpt-compiled")),
    Step("mlp", "a network of one hidden layer beside a plain loop", measure("mlp")),
    Step("cnn", "two convolutions beside a plain loop", measure("cnn")),
    Step("memory", "the memory that averaging, accumulation and prefetch take", measure("memory")),
    Step("saves", "how long a save stops the training", measure("saves")),
    Step("train", "the default project, an epoch", NEW_PROJECT + TRAIN),
    Step("exact", "SyncBatchNorm, and no wait in a step", tests("sync_batch or does_not_wait", GPU)),
    Step("resume", "a resumed run with NCCL", tests("resumed", GPU)),
    Step("placement", "ranks that cannot work together", tests("together", DEVICE)),
    Step("full-memory", "a GPU whose memory is full", tests("full", DEVICE)),
    Step("kernels", "kernels, streams, loading", tests("few or stream or without_a_copy", DEVICE, CHECKPOINTS)),
    Step("tf32", "TF32 keeps three digits", tests("tf32", PRECISION)),
    Step("amp", "torch.amp learns", tests("torch_amp", PRECISION)),
    Step("compiled", "a compiled run and its checkpoint", tests("same_keys", COMPILED)),
    Step("bad-steps", "bad steps in float32", tests("trace and float32", BAD_STEPS)),
    Step("bad-steps-fp16", "the same in float16", tests("trace and float16 and not bfloat16", BAD_STEPS)),
    Step("bad-steps-bf16", "the same in bfloat16", tests("trace and bfloat16", BAD_STEPS)),
    Step("bad-steps-unfused", "the same, not fused", tests("trace and fused and not float16", BAD_STEPS)),
    Step("kills", "--async-saves with kills", tests("beside", KILLS)),
    Step("slow-disk", "saves that take long", tests("longer", DISKS)),
    Step("uneven", "uneven counts, rows of all ranks", tests("uneven or rows", DEVICE)),
    Step("moments", "the layout of moments", tests("moments", DEVICE)),
    Step("options", "the static graph and buckets", tests("sent", DDP_OPTIONS)),
    Step("bf16-gradients", "gradients in bfloat16", tests("travel", DDP_OPTIONS)),
    Step("project", "the default project's own tests: numbers", project_tests("exact", "metrics", "collectives")),
    Step("project-train", "the others of them", project_tests("train", "faults", "loading", "export")),
    Step("nccl", "two processes with NCCL", NEW_PROJECT + NCCL, no_second_device),
    Step(
        "hang",
        "a rank that is frozen, with NCCL",
        tests("record", "tests/nightly/faults/test_frozen.py"),
        no_second_device,
    ),
    Step("gradients", "what the options of DistributedDataParallel are worth", BLOCKS, no_second_device),
    Step("apex", "apex, with its kernels if the machine has them", GET_APEX + tests("apex", PRECISION)),
)


@dataclass(frozen=True)
class Result:
    """How a step ended."""

    result: str  # ok, failed or skipped
    reason: str = ""
    seconds: float = 0.0


def run(step: Step, out: Path, packed: Path, device: str, until: float) -> Result:
    """Run a step to its end or its limit, unless something is missing, and write what it prints to a log."""
    limit = min(LIMITS[device], until - time.time())
    if reason := step.missing(out, device) or (NO_TIME if limit < LEAST else ""):
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
            code = process.wait(limit)
            found = Result("failed", f"exit code {code}") if code else Result("ok")
        except subprocess.TimeoutExpired:
            ended = f"no end after {limit:.0f} s"
            found = Result("failed", ended) if limit == LIMITS[device] else Result("skipped", f"{NO_TIME}: {ended}")
        finally:
            end(process)
    return replace(found, seconds=round(time.monotonic() - started, 1))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, which may be in sessions of their own."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for each in [*first.children(recursive=True), first]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def run_all(
    steps: Sequence[Step], out: Path, packed: Path, device: str, until: float, *, fresh: bool
) -> dict[str, Result]:
    """Run the steps that have not succeeded before, those that failed last. Returns how each step ended.

    Results and report are on the disk after each step.
    """
    file = out / "results.json"
    known = {name: Result(**found) for name, found in json.loads(file.read_text()).items()} if file.exists() else {}
    before = {} if fresh else dict(known)
    left = [step for step in steps if step.name not in before or before[step.name].result != "ok"]
    for step in sorted(left, key=lambda step: step.name in before and before[step.name].result == "failed"):
        known[step.name] = run(step, out, packed, device, until)
        results = {name: asdict(each) for name, each in known.items()}
        file.with_suffix(".tmp").write_text(json.dumps(results, indent=1))
        file.with_suffix(".tmp").replace(file)
        write_report(out, facts(out), results)
    return {step.name: known[step.name] for step in steps}


def chosen(names: Sequence[str], begin: str) -> list[Step]:
    """Return the steps of these names, or those from one on. Raises BadParameter if there is none of a name."""
    known = [step.name for step in STEPS]
    for name in [*names, *([begin] if begin else [])]:
        if name not in known:
            raise typer.BadParameter(f"there is no step {name}: --list shows all")
    first = known.index(begin) if begin else 0
    return [step for step in STEPS[first:] if not names or step.name in names]


def requirements() -> list[str]:
    """Return what a machine needs beside torch, as pip names it."""
    import tomllib  # Python 3.11 has it, and the steps themselves run on 3.10

    # Not the metadata of the installed package, which may be of an earlier state.
    project = tomllib.loads((TEMPLATE / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["gpu"]]


def pack(folder: Path, python: str) -> None:
    """Fetch what a machine without a network needs beside its torch: wheels, and apex's source."""
    folder.mkdir(parents=True, exist_ok=True)
    target = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:"]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--quiet", "--dest", str(folder), "--constraint", str(TEMPLATE / "tests" / "constraints.txt")]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *target, *requirements()], check=True)
    with tempfile.TemporaryDirectory() as work:
        environment = {**os.environ, "WORK": work, "PACKED": str(folder)}
        subprocess.run(["bash", "-euo", "pipefail", "-c", FETCH_APEX], env=environment, check=True)
    typer.echo(f"packed: {folder}, {sum(file.stat().st_size for file in folder.iterdir()) / 2**20:.0f} MiB")


def main(
    steps: Annotated[list[str] | None, typer.Argument(help="Run these alone.", show_default="all")] = None,
    begin: Annotated[str, typer.Option("--from", metavar="STEP", help="Run this one and those after it.")] = "",
    show: Annotated[bool, typer.Option("--list", help="List the steps.")] = False,
    minutes: Annotated[float, typer.Option(help="End after so long. Another start takes the steps that are left.")] = 8,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has succeeded before.")] = False,
    device: Annotated[str, typer.Option(help="cpu tries the steps themselves, as far as it can.")] = "cuda",
    out: Annotated[Path, typer.Option(help="Where logs and results go.")] = Path("gpu-results"),
    packed: Annotated[Path | None, typer.Option(help="Install from this folder, without a network.")] = None,
    pack_into: Annotated[Path | None, typer.Option("--pack", help="Fill this folder, and run no step.")] = None,
    python: Annotated[str, typer.Option(help="The version of Python that --pack is for.")] = "3.12",
) -> None:
    """Run what waits for a GPU, the most telling first. Folders are relative to the repository.

    A step that fails, or takes more than a minute, does not end the others. report.md has what all have found.
    """
    if device not in DEVICES:
        raise typer.BadParameter(f"there is no device {device}: choose of {', '.join(DEVICES)}")
    wanted = chosen(steps or [], begin)
    out = (out if device == "cuda" else out / device).resolve()  # what a CPU has done, a GPU has not
    if pack_into:
        pack(pack_into.resolve(), python)
    elif show:
        typer.echo("".join(f"{step.name:<20} {step.what}\n" for step in wanted), nl=False)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        out.mkdir(parents=True, exist_ok=True)
        until = float(os.environ.get(BEGAN, time.time())) + 60 * minutes
        found = run_all(wanted, out, (packed or out / "packed").resolve(), device, until, fresh=fresh)
        for name, each in found.items():
            typer.echo(f"{name:<20} {each.result}{f': {each.reason}' if each.reason else ''}")
        if any(each.reason.startswith(NO_TIME) for each in found.values()):
            typer.echo("Start again for the steps that had no time left.")
        typer.echo(f"The file to send in: {out / REPORT}")
        raise typer.Exit(any(each.result == "failed" for each in found.values()))


if __name__ == "__main__":
    typer.run(main)
