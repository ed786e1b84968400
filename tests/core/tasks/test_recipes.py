"""Every recipe of RECIPES.md fits: it edits the owner's files or train.py; tests/nightly/exact/ trains each."""

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from generator.answers.questions import TEMPLATE
from generator.render.project import read_files
from tests.conftest import Render
from tests.support.projects.instructions import ALTERNATING, follow_recipe, recipes_of
from website.recipes import TITLE, Block

OWNERS = {*(f"ddp_project/{name}.py" for name in ("task", "model", "data", "options")), "tests/task.py"}
ALL = ("digits", "images", "language", "tabular")
# Of the recipes in a partial; the others are those of one task.
TASKS = {"classes": ("digits", "images"), "any": ALL, "train": ALL}
PARTIALS = sorted((TEMPLATE / "partials" / "recipes").glob("*.md.jinja"))
# They need packages of tests/finetuning.txt: tests/nightly/test_finetuning.py trains them.
FINETUNING = sorted((TEMPLATE / "partials" / "recipes" / "finetuning").glob("*.md.jinja"))
CALLBACK, PLATEAU, SCHEDULER = WITH_STATE = [
    "A callback every few minutes",
    "ReduceLROnPlateau",
    "A PyTorch scheduler: OneCycleLR",
]
SWEPT = ["Cross-validation"]
OPPOSED = ["Several optimizers: a GAN", ALTERNATING]  # whose loss need not fall
NUMBER = "A number of your own: the gradient norm of a layer"
IN_TRAIN = [*WITH_STATE, "Early layers frozen until an epoch", NUMBER]
STREAMED = HF, PARQUET, TAR = [
    "Hugging Face datasets, streamed",
    "A stream of Parquet files",
    "A stream of tar files: WebDataset",
]
WRITTEN = ("images", "shards", "tables")  # folders of data for the recipes
TABLES = {"Missing values": "table.csv", "A table in Parquet": "table.parquet"}


def titles(partial: Path) -> list[str]:
    return re.findall(TITLE, partial.read_text(), re.MULTILINE)


def tasks_of(partial: Path) -> Sequence[str]:
    name = partial.name.split(".")[0]
    return TASKS.get(name, (name,))


# Each recipe with one of its tasks: those of several tasks take turns.
TRIED = [
    (tasks[number % len(tasks)], title)
    for partial in PARTIALS
    for tasks in (tasks_of(partial),)
    for number, title in enumerate(titles(partial))
]
TUNED = [(tasks_of(partial)[0], title) for partial in FINETUNING for title in titles(partial)]
each_recipe = pytest.mark.parametrize(("task", "title"), TRIED, ids=lambda value: value)


def changed_project(title: str, project: Path, place: Path) -> Path:
    follow_recipe(title, project, place)
    for part, number in (("training", 119), ("validation", 10)):
        for i in range(number):
            file = place / "images" / part / str(i % 3) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 9), 80 * (i % 3) + i % 7, np.uint8)).save(file)
    if title in STREAMED:
        write_shards(place / "shards")
    if title in TABLES:
        write_tables(place / "tables")
    return place


def write_tables(folder: Path) -> None:
    """Write a table as CSV, with empty cells, and as Parquet."""
    folder.mkdir()
    rows = [{"a": i * 7 % 31, "b": i * 11 % 29, "progression": i % 13} for i in range(120)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "table.parquet")
    cells = (f"{row['a']},{row['b'] if i % 7 else ''},{row['progression']}\n" for i, row in enumerate(rows))
    (folder / "table.csv").write_text("a,b,progression\n" + "".join(cells))


def write_shards(folder: Path) -> None:
    """Write images of digits, their labels and texts as tar and as Parquet files of unequal sizes."""
    folder.mkdir()
    images, labels = load_digits(return_X_y=True)
    first = 0
    for part, number in (("training-0", 40), ("training-1", 3), ("training-2", 50), ("validation-0", 7)):
        rows = [
            {"pixels": (16 * images[i].clip(max=15)).astype(np.uint8), "label": int(labels[i]), "text": f"{i} " * 20}
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


@pytest.mark.parametrize("task", ALL)
def test_every_recipe_is_tried_and_listed(task: str, project: Render) -> None:
    """The list at the top says what the recipes say; their difficulty follows from the files that they change."""
    page, recipes = (project(task=task) / "RECIPES.md").read_text(), recipes_of(project(task=task))
    expected = [title for partial in [*PARTIALS, *FINETUNING] if task in tasks_of(partial) for title in titles(partial)]
    assert sorted(expected) == sorted(recipes)
    listed = re.findall(r"^\| \[(.+)\]\(#(.+)\) \| (\w+) \| (.+) \|$", page, re.MULTILINE)
    assert listed == [(title, anchor(title), each.difficulty, each.shows) for title, each in recipes.items()]
    assert {title: each.difficulty for title, each in recipes.items()} == {
        title: difficulty(each.blocks) for title, each in recipes.items()
    }
    assert {*re.findall(r"\]\(#(.+?)\)", page)} == {*map(anchor, recipes)}


def anchor(title: str) -> str:
    """Return the anchor that GitHub makes of a title."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def difficulty(blocks: Sequence[Block]) -> str:
    files = {block.file for block in blocks}
    return "Hard" if "train.py" in files or len(files) > 3 else "Medium" if len(files) > 1 else "Easy"


@pytest.mark.parametrize(("task", "title"), [*TRIED, *TUNED], ids=lambda value: value)
def test_a_recipe_edits_the_files_of_the_owner(task: str, title: str, project: Render, tmp_path: Path) -> None:
    before = read_files(project(task=task))
    new = read_files(changed_project(title, project(task=task), tmp_path / "project"))
    changed = {path for path in new if new[path] != before.get(path) and path.split("/")[0] not in WRITTEN}
    allowed = OWNERS | ({"train.py"} if title in IN_TRAIN else {"sweep.py"} if title in SWEPT else set())
    assert changed <= allowed | ({"tests/test_train.py"} if title in OPPOSED else set())
    for path in changed:
        compile(new[path][1], path, "exec")


@pytest.mark.parametrize(
    "answers", [{"amp": "none"}, {"amp": "torch"}, {"amp": "apex"}, *({"task": task} for task in ALL)], ids=str
)
def test_edits_of_train_py_fit_every_task_and_precision(
    answers: dict[str, str], project: Render, tmp_path: Path
) -> None:
    for title in IN_TRAIN:
        place = changed_project(title, project(**answers), tmp_path / title)
        compile((place / "train.py").read_text(), "train.py", "exec")
