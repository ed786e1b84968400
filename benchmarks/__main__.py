"""python -m benchmarks NAME [options] measures, and writes benchmarks/results/NAME.json.

Nothing else should run on the machine meanwhile. NAME --help shows the options. The benchmarks are:
"""

import importlib
import shlex
import sys
import tempfile
from pathlib import Path

import tyro

from .runner import CommandError, run_benchmark

NAMES = {
    "speed": "training, compared with other loops and frameworks",
    "blocks": "training, compared with plain loops block by block in the same processes",
    "step_parts": "the parts of a small step",
    "ablation": "the project with one optimization taken out",
    "guards": "what each guard and each logger takes of a step",
    "gpu": "training on one GPU, compared with a plain loop",
    "starting": "the start and the end of a project's commands",
    "loading": "data loading with more and more workers",
    "streams": "streams and predictions, compared with plain loops",
    "scale": "many samples and many ranks",
    "copying": "copier copy and copier update",
    "site": "the preview in a browser",
    "check": "ddp-template check",
    "faults": "saves of checkpoints with and without a digest",
}


def main(arguments: list[str]) -> None:
    """Run the benchmark of the first argument with the others as its options."""
    name, *options = arguments or ["--help"]
    if name not in NAMES:
        print(__doc__, *(f"  {name:<11} {what}" for name, what in NAMES.items()), sep="\n")
        sys.exit(name not in ("-h", "--help") and 2)
    kind = importlib.import_module(f"benchmarks.{name}").Benchmark
    benchmark = tyro.cli(kind, prog=f"python -m benchmarks {name}", args=options)
    with tempfile.TemporaryDirectory() as folder:
        try:
            file = run_benchmark(benchmark, name, Path(folder), shlex.join(["python", "-m", "benchmarks", *arguments]))
        except CommandError as error:
            sys.exit(f"error: {error}")
    print(f"results: {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
