"""Every recipe of RECIPES.md works: it edits the owner's files, or train.py, and a run of it can be stopped."""

import io
import re
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from generator.answers.questions import TEMPLATE
from generator.check.train.samples import samples_of
from generator.render.project import read_files
from tests.conftest import Render
from tests.core.exact.test_resume import assert_stops_in_turn_change_nothing
from tests.support.forked_runs import Program, run_all
from tests.support.projects.instructions import ALTERNATING, follow_recipe, recipes_of
from website.recipes import TITLE, Block

OWNERS = {*(f"ddp_project/{name}.py" for name in ("task", "model", "data", "options")), "tests/task.py"}
ALL = ("digits", "images", "language", "tabular")
# Of the recipes in a partial; the others are those of one task.
TASKS = {"classes": ("digits", "images"), "any": ALL, "train": ALL}
PARTIALS = sorted((TEMPLATE / "partials" / "recipes").glob("*.md.jinja"))
# They need packages of tests/finetuning.txt: tests/nightly/test_finetuning.py trains them.
FINETUNING = sorted((TEMPLATE / "partials" / "recipes" / "finetuning").glob("*.md.jinja"))
CONTRASTIVE = "A contrastive loss over all ranks"
DISTILLATION = "Distillation from an export"
EACH_FILE = "An evaluation of each file"
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
TABLES = {"Missing values": "table.csv", "A table in Parquet": "table.parquet"}
OPTIONS = {"global_batch_size": 24, "accum_steps": 2, "epochs": 2, "warmup_steps": 2, "log_every": 3, "clip_norm": 1}
SMALL: dict[str, dict[str, object]] = {
    "images": {"image_size": 16, "width": 4},
    "language": {"width": 32, "data": textwrap.__file__},
}


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


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return samples_of({*ALL}, tmp_path_factory.mktemp("samples"))


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


@each_recipe
def test_a_recipe_is_followed_trained_stopped_and_resumed(
    task: str, title: str, project: Render, small: Render, samples: Mapping[str, Path], tmp_path: Path
) -> None:
    before = small(logging="csv") if task == "digits" else project(task=task, logging="csv")
    changed = changed_project(title, before, tmp_path / "project")
    old, new = read_files(before), read_files(changed)
    allowed = OWNERS | ({"train.py"} if title in IN_TRAIN else {"sweep.py"} if title in SWEPT else set())
    allowed |= {"tests/test_train.py"} if title in OPPOSED else set()
    assert {
        path for path in new if new[path] != old.get(path) and not path.startswith(("images/", "shards/", "tables/"))
    } <= allowed
    options = OPTIONS | SMALL.get(task, {}) | ({"accum_steps": 1} if title == CONTRASTIVE else {})
    options |= {"data": samples[task]} if task == "images" else {}
    # Each dataset of Hugging Face needs shared memory, which ranks that may write no file do not get.
    options |= {"steps": 10, "workers": 0} if title in STREAMED else {}
    options |= {"data": changed / "tables" / TABLES[title]} if title in TABLES else {}
    options |= {"teacher": export_of(Program(before, tmp_path / "teacher", options))} if title == DISTILLATION else {}
    options |= {"validation": textwrap.__file__} if title == EACH_FILE else {}
    assert_stops_in_turn_change_nothing(Program(changed, tmp_path / "whole", options), 3, 7)


@pytest.mark.parametrize("partial", FINETUNING, ids=lambda partial: partial.name)
def test_a_recipe_that_fine_tunes_edits_the_files_of_the_owner(partial: Path, project: Render, tmp_path: Path) -> None:
    [task] = tasks_of(partial)
    before = read_files(project(task=task))
    for title in titles(partial):
        new = read_files(follow_recipe(title, project(task=task), tmp_path / title))
        changed = {path for path in new if new[path] != before.get(path)}
        assert changed <= OWNERS
        for path in changed:
            compile(new[path][1], path, "exec")


def export_of(program: Program) -> Path:
    run_all([[program]])
    subprocess.run([sys.executable, "export.py", program.run_dir], cwd=program.project, check=True)
    return program.run_dir / "export"


@pytest.mark.parametrize(
    "answers", [{"amp": "none"}, {"amp": "torch"}, {"amp": "apex"}, *({"task": task} for task in ALL)], ids=str
)
def test_edits_of_train_py_fit_every_task_and_precision(
    answers: dict[str, str], project: Render, tmp_path: Path
) -> None:
    for title in IN_TRAIN:
        place = changed_project(title, project(**answers), tmp_path / title)
        compile((place / "train.py").read_text(), "train.py", "exec")


@pytest.mark.parametrize(
    ("title", "answers", "options"),
    [
        *((title, {"task": "language"}, {}) for title in WITH_STATE),
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
