"""The recipes that fine-tune models of timm, torchvision, transformers and peft work, on a second torch, too."""

import os
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.runner import python_with
from generator.answers.questions import TEMPLATE
from tests.conftest import Render
from tests.support.forked_runs import metrics, state
from tests.support.processes import hang_timeout, output_of, started, wait_for_line
from tests.support.projects.instructions import follow_recipe
from tests.support.training import ON_CPU, differences

SUPPORT = TEMPLATE / "tests" / "support" / "finetuned.py"
STEPS = ("--epochs", "1", "--eval-every", "1000", "--log-every", "1", "--warmup-steps", "2", "--workers", "0")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
SMALL_TEXT = "--data pretrained/tokenizer.json --context 32 --global-batch-size 16 --pretrained pretrained"


class Case(NamedTuple):
    task: str
    title: str
    options: str
    input: str  # of predict.py


CASES = {
    "timm": Case(
        "images",
        "Fine-tuning: a model of timm",
        "--architecture test_resnet --init-from pretrained",
        "data/digits/val/3/*.png",
    ),
    "detection": Case(
        "images",
        "Fine-tuning: detection with torchvision",
        "--backbone resnet18 --init-from pretrained/model.pth --global-batch-size 2 --score-threshold 0.001",
        "data/digits/val/3/*.png",
    ),
    "language": Case(
        "language",
        "Fine-tuning: a language model of transformers",
        f"{SMALL_TEXT} --init-from pretrained/body",
        "README.md",
    ),
    "lora": Case("language", "Fine-tuning: adapters of peft (LoRA)", SMALL_TEXT, "README.md"),
    "classification": Case(
        "language",
        "Fine-tuning: sequence classification",
        "--pretrained pretrained --init-from pretrained --texts tests/small-distilbert --global-batch-size 16",
        "tests/small-distilbert/val.jsonl",
    ),
}


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with(TEMPLATE / "tests" / "finetuning.txt")


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_fine_tunes_stops_resumes_exports_and_predicts(
    name: str, python: Path, project: Render, tmp_path: Path
) -> None:
    case = CASES[name]
    place = follow_recipe(case.title, project(task=case.task, logging="csv"), tmp_path / "project")
    env = os.environ | {"PYTHONPATH": f"{place}:{place / 'tests'}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began, whole, stopped = (tmp_path / each for each in ("began", "whole", "stopped"))

    def run(*command: str | Path) -> str:
        return output_of([python, *command], place, env)

    def words(run_dir: Path, *more: str) -> list[str | Path]:
        return [python, *LAUNCH, *ON_CPU, *STEPS, *case.options.split(), "--run-dir", run_dir, *more]

    run(SUPPORT, f"write_{name}")
    run(*words(began, "--max-steps", "1", "--lr", "0", "--weight-decay", "0")[1:])
    run(*words(whole, "--max-steps", "14")[1:])
    with started(words(stopped, "--max-steps", "14"), place, tmp_path / "output.log", env) as process:
        wait_for_line(stopped / "train.log", "step 3 ")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=hang_timeout(60))
    assert 3 <= state(stopped)["progress"]["step"] < 14, "the signal has stopped it"
    run(*words(stopped, "--max-steps", "14", "--resume")[1:])
    assert differences(state(whole), state(stopped)) == []
    assert metrics(whole)["train/loss"] == metrics(stopped)["train/loss"]
    run("export.py", whole)
    predicted = run("predict.py", whole / "export", min(place.glob(case.input)))
    assert predicted.count('{"file"') >= 1
    run(SUPPORT, f"check_{name}", began, whole)


@pytest.mark.parametrize("name", ["default", *CASES])
def test_the_tests_of_a_project_pass(name: str, python: Path, project: Render, tmp_path: Path) -> None:
    if name in CASES:
        task, title, *_ = CASES[name]
        place = follow_recipe(title, project(task=task), tmp_path / "project")
    else:
        place = shutil.copytree(project(), tmp_path / "project")
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    assert " passed" in output_of([python, "-m", "pytest", "-p", "no:cacheprovider", "tests"], place, env, timeout=1800)
