"""Every recipe of RECIPES.md works: it edits the owner's files, or train.py, and a run of it can be stopped."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from generator.render.project import read_files
from tests.conftest import Render
from tests.core.exact.test_resume import assert_stops_in_turn_change_nothing
from tests.support.forked_runs import Program
from tests.support.projects.instructions import ALTERNATING, follow_recipe, read_recipes

OWNERS = {*(f"ddp_project/{name}.py" for name in ("task", "model", "data", "options")), "tests/task.py"}
CONTRASTIVE = "A contrastive loss over all ranks"
CALLBACK, PLATEAU, SCHEDULER = IN_TRAIN = [
    "A callback every few minutes",
    "ReduceLROnPlateau",
    "A PyTorch scheduler: OneCycleLR",
]
STREAMED = HF, PARQUET, TAR = [
    "Hugging Face datasets, streamed",
    "A stream of Parquet files",
    "A stream of tar files: WebDataset",
]
TITLES = [
    SCHEDULER,
    "A batch that is a dict, with two inputs",
    CALLBACK,
    CONTRASTIVE,
    "A metric from a confusion matrix",
    "A metric of all samples: AUROC",
    "A mixture of datasets",
    PARQUET,
    TAR,
    ALTERNATING,
    "Another learning-rate schedule",
    "Batches by number of tokens",
    "Bucketing: batches of like length",
    "Frozen parameters",
    "Gradient checkpointing",
    HF,
    "Images from a folder",
    "Parameter groups: weight decay and learning rates",
    PLATEAU,
    "Regression, where the lowest is best",
    "Sample images, histograms and texts",
    "Several evaluation sets, a test set, a collate function",
    "Several optimizers: a GAN",
    "Tokens with padding",
    "Weighted sampling",
]
TASKS = [{"task": task} for task in ("images", "language", "tabular")]
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "warmup_steps": 2, "log_every": 3, "clip_norm": 1}


def changed_project(title: str, project: Path, place: Path) -> Path:
    follow_recipe(title, project, place)
    for part, number in (("training", 119), ("validation", 10)):
        for i in range(number):
            file = place / "images" / part / str(i % 3) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 9), 80 * (i % 3) + i % 7, np.uint8)).save(file)
    if title in STREAMED:
        write_shards(place / "shards")
    return place


def write_shards(folder: Path) -> None:
    """Write images of digits and their labels as tar and as Parquet files of unequal sizes."""
    folder.mkdir()
    images, labels = load_digits(return_X_y=True)
    first = 0
    for part, number in (("training-0", 40), ("training-1", 3), ("training-2", 50), ("validation-0", 7)):
        rows = [
            {"pixels": (16 * images[i].clip(max=15)).astype(np.uint8), "label": int(labels[i])}
            for i in range(first, first + number)
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{part}.parquet", row_group_size=16)
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for i, row in enumerate(rows):
                add(tar, f"{i}.png", png(row["pixels"].reshape(8, 8)))
                add(tar, f"{i}.cls", str(row["label"]).encode())
        first += number


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    tar.addfile(about, io.BytesIO(content))


def test_every_recipe_is_tried(project: Render) -> None:
    assert sorted(read_recipes(project())) == TITLES


@pytest.mark.parametrize("title", TITLES)
def test_a_recipe_is_followed_trained_stopped_and_resumed(title: str, small: Render, tmp_path: Path) -> None:
    before = small(logging="csv")
    project = changed_project(title, before, tmp_path / "project")
    old, new = read_files(before), read_files(project)
    allowed = OWNERS | ({"train.py"} if title in IN_TRAIN else set())
    assert {
        path for path in new if new[path] != old.get(path) and not path.startswith(("images/", "shards/"))
    } <= allowed
    options = OPTIONS | ({"accum_steps": 1} if title == CONTRASTIVE else {})
    # Each dataset of Hugging Face needs shared memory, which ranks that may write no file do not get.
    options |= {"steps": 10, "workers": 0} if title in STREAMED else {}
    assert_stops_in_turn_change_nothing(Program(project, tmp_path / "whole", options), 3, 7)


@pytest.mark.parametrize("answers", [{"amp": "none"}, {"amp": "torch"}, {"amp": "apex"}, *TASKS], ids=str)
def test_edits_of_train_py_fit_every_task_and_precision(
    answers: dict[str, str], project: Render, tmp_path: Path
) -> None:
    for title in IN_TRAIN:
        place = changed_project(title, project(**answers), tmp_path / title)
        compile((place / "train.py").read_text(), "train.py", "exec")


@pytest.mark.parametrize(
    ("title", "answers", "options"),
    [
        *((title, {"task": "language"}, {}) for title in IN_TRAIN),
        (PLATEAU, {"amp": "torch"}, {"precision": "fp16"}),
        (SCHEDULER, {"amp": "torch"}, {"precision": "fp16"}),
        (ALTERNATING, {"amp": "torch"}, {"precision": "fp16"}),
    ],
    ids=str,
)
def test_edits_of_train_py_hold_for_other_tasks_and_precisions(
    title: str, answers: dict[str, str], options: dict[str, str], small: Render, tmp_path: Path
) -> None:
    project = changed_project(title, small(logging="csv", **answers), tmp_path / "project")
    assert_stops_in_turn_change_nothing(Program(project, tmp_path / "whole", OPTIONS | options), 3, 7)
