"""Images in folders and tables of numbers: what is wrong with them is said in one line, and what is right arrives."""

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from generator.check.train.records import read_csv
from tests.conftest import Package, Render
from tests.support.forked_runs import Program, run_all
from tests.support.ranks import error_in
from tests.support.training import checkpoint, differences

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}
QUICK = {"image_size": 8, "global_batch_size": 8, "epochs": 1, "warmup_steps": 0}
SAME_CLASSES = "--data: {}/train and {}/val must have the same classes,"
Modules = Callable[[str], Any]
WRONG_TABLES: dict[str, tuple[str | None, str]] = {
    "no file": (None, "{} cannot be read: No such file or directory"),
    "empty": ("", "--target: {} has no column price: it has none"),
    "no target": ("height,width\n1,2\n", "--target: {} has no column price: it has height, width"),
    "a word": ("height,width,price\n1,2,3\n\n1,wide,3\n", "{}, line 4, column width: 'wide' is no number"),
    "a missing cell": ("height,width,price\n1,2,3\n1,2\n", "{}, line 3, column price: '' is no number"),
    "not a number": ("height,width,price\n1,nan,3\n", "{}, line 2, column width: 'nan' is no number"),
    "too large": ("height,width,price\n1,1e39,3\n", "{}, line 2, column width: '1e39' is too large for float32"),
    "a column twice": ("height,height,price\n1,2,3\n", "{} has several columns height: rename all but one"),
    "steps too fine": (
        "height,width,price\n" + "".join(f"1,{1_700_000_000 + i},3\n" for i in range(60)),
        "--data: column width needs finer steps than the 128 of float32: subtract a constant",
    ),
    "too many cells": ("height,width,price\n1,5,2,3\n", "{}, line 2: it has more cells than the header"),
    "no text": ("\xff", "{} cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of images: 8 of each class to train and 2 to validate, in all forms."""
    for name, colour in COLOURS.items():
        for number in range(10):
            part, suffix = "train" if number < 8 else "val", "PNG" if number % 2 else "jpg"
            file = tmp_path / "images" / part / name / f"{number}.{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (9 + number, 30 - number), colour).save(file)
    return tmp_path / "images"


@pytest.fixture
def of_images(package: Package) -> Modules:
    return lambda module: package(module, task="images")


@pytest.fixture
def of_tables(package: Package) -> Modules:
    return lambda module: package(module, task="tabular")


def refusal(of_task: Modules, work: Callable[[], Any]) -> str:
    with pytest.raises(of_task("runtime.exits").UserError) as raised:
        work()
    return str(raised.value)


def empty(folder: Path) -> None:
    """Leave nothing in a folder but what does not count."""
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (folder / "Thumbs.db").touch()
    (folder / ".hidden.png").mkdir()


WRONG_FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "--data: {}/train cannot be read: No such file or directory"),
    "no classes": (lambda data: empty(data / "train"), "--data: {}/train has no folders of classes"),
    "no images": (lambda data: empty(data / "train/red"), "--data: {}/train/red has no images (PNG or JPEG)"),
    "no validation": (lambda data: shutil.rmtree(data / "val/red"), f"{SAME_CLASSES} and only one has red"),
    "no training": (lambda data: (data / "val/grey").mkdir(), f"{SAME_CLASSES} and only one has grey"),
}


@pytest.mark.parametrize("mistake", WRONG_FOLDERS)
def test_a_wrong_folder_of_images_is_named(mistake: str, of_images: Modules, images: Path) -> None:
    change, words = WRONG_FOLDERS[mistake]
    change(images)
    config = of_images("config").Config(data=images)
    assert refusal(of_images, lambda: of_images("data").load_data(config)) == words.format(images, images)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named_in_one_line(workers: int, own_project: Render, images: Path, tmp_path: Path) -> None:
    """By the rank that reads it, also if its worker process does."""
    file = images / "val" / "green" / "9.PNG"
    file.write_bytes(file.read_bytes()[:60])
    options = QUICK | {"data": images, "workers": workers}
    [[ended]] = run_all([[Program(own_project(task="images"), tmp_path / "run", options, world_size=1, code=2)]])
    assert error_in(ended.output).startswith(f"error: {file} is no image that can be read: ")


def test_names_of_columns_may_have_spaces_around_them(of_tables: Modules, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text('height,"two\nlines", price \n1,2,3\n')
    assert of_tables("data").read_csv(tmp_path / "table.csv")[0] == ["height", "two lines", "price"]


def test_weights_of_other_classes_or_columns_are_told(
    of_images: Modules, of_tables: Modules, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the names take as many bytes: labels and features would be others."""
    image, table = of_images("model").Network, of_tables("model").Network
    image(["apple", "blueberry"], 8, 8).load_state_dict(image(["blueberry", "grape"], 8, 8).state_dict())
    columns = torch.zeros(2, 3)
    table(["a", "b", "y"], columns).load_state_dict(table(["b", "a", "y"], columns).state_dict())
    table(["a", "b", "y"], columns).load_state_dict(table(["a", "b", "y"], columns).state_dict())
    table([], torch.zeros(0, 1)).load_state_dict(table(["b", "a", "y"], columns).state_dict())
    assert [each.getMessage() for each in caplog.records] == [
        "the weights are of the classes ['blueberry', 'grape'], and the data has ['apple', 'blueberry']",
        "the weights are of the columns ['b', 'a', 'y'], and the data has ['a', 'b', 'y']",
    ]


def test_classes_may_have_names_that_are_no_text(of_images: Modules) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert of_images("model").Network([name, "tea"], 8, 8).classes == [name, "tea"]


def test_images_of_16_bits_keep_their_grey(of_images: Modules, tmp_path: Path) -> None:
    grey = np.arange(0, 2**16, 2**10, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    read = of_images("data").read_image(tmp_path / "grey.png", 8)
    assert read.tolist() == 3 * [(grey >> 8).tolist()]


def test_images_are_found_in_the_order_of_the_alphabet(of_images: Modules, images: Path) -> None:
    (images / "train" / ".hidden").mkdir()
    (images / "train" / "blue" / "._1.png").touch()
    (images / "train" / "blue" / "notes.txt").touch()
    training, validation = of_images("data").load_data(of_images("config").Config(data=images, image_size=8))
    assert [len(training), len(validation)] == [24, 6]
    for i in range(24):
        image, label = training[i]
        assert (image.shape, label) == ((3, 8, 8), i // 8)
        assert (image.float().mean(dim=(1, 2)) - torch.tensor(COLOURS[sorted(COLOURS)[label]])).abs().max() < 5


def test_an_image_comes_as_its_largest_square_mirrored_if_asked(of_images: Modules, tmp_path: Path) -> None:
    read_image = of_images("data").read_image
    pixels = np.random.default_rng(0).integers(0, 256, (8, 20), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    Image.fromarray(pixels.T).save(tmp_path / "high.png")
    square = torch.from_numpy(pixels[:, 6:14]).expand(3, 8, 8)
    assert torch.equal(read_image(tmp_path / "wide.png", 8), square)
    assert torch.equal(read_image(tmp_path / "high.png", 8), square.transpose(1, 2))
    random = [read_image(tmp_path / "wide.png", 8, augment=True) for _ in range(9)]
    assert len({image.numpy().tobytes() for image in random}) == 9

    left = Image.new("L", (8, 8))
    left.paste(255, (0, 0, 4, 8))
    for part in ("train", "val"):
        (tmp_path / "images" / part / "left").mkdir(parents=True)
        left.save(tmp_path / "images" / part / "left" / "1.png")
    for mirror, fewest, most in ((False, 0, 0), (True, 70, 130)):
        config = of_images("config").Config(data=tmp_path / "images", image_size=8, mirror=mirror)
        training, _ = of_images("data").load_data(config)
        torch.manual_seed(0)
        seen = [training[0][0].float() for _ in range(200)]
        assert fewest <= sum(bool(image[..., 7].mean() > image[..., 0].mean()) for image in seen) <= most


def test_two_processes_write_the_digits_at_once(own_project: Render, tmp_path: Path) -> None:
    project = own_project(task="images")
    run_all([[Program(project, tmp_path / "run", QUICK | {"max_steps": 1, "workers": 0})]])  # both ranks may write
    data = project / "data" / "digits"
    assert os.listdir(data.parent) == ["digits"]
    assert (data / ".gitignore").read_text() == "*\n"
    assert [len([*(data / part).glob("?/*")]) for part in ("train", "val")] == [1437, 360]
    with np.load(project / "ddp_project" / "digits.npz") as digits:
        for i in (0, 1, 1796):
            [file] = data.glob(f"*/{digits['labels'][i]}/{i}.*")
            with Image.open(file) as image:
                small = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX), float)
            assert np.corrcoef(small.flat, digits["images"][i].flat)[0, 1] > 0.95


def test_predict_says_what_the_model_sees_in_an_image(of_images: Modules, images: Path) -> None:
    task, model = of_images("task"), of_images("model")
    torch.manual_seed(0)
    network = model.build_model(of_images("config").Config(data=images, image_size=8)).eval()
    file = images / "val" / "red" / "8.jpg"
    with torch.inference_mode():
        [found] = task.predict(network, [*task.read_inputs(network, file)])
        shares = network(of_images("data").read_image(file, 8)[None]).softmax(dim=1)[0]
    assert (found["class"], found["probability"]) == (sorted(COLOURS)[shares.argmax()], shares.max())
    renamed = model.Network(["1" * len(name) for name in sorted(COLOURS)], 32, 8)
    renamed.load_state_dict(network.state_dict())
    assert renamed.classes == sorted(COLOURS)
    (images / "nonsense.png").write_text("nonsense")
    said = refusal(of_images, lambda: [*task.read_inputs(network, images / "nonsense.png")])
    assert said.startswith(f"{images}/nonsense.png is no image that can be read: ")


def kept_for_backward(model: Callable[..., Any], inputs: torch.Tensor) -> int:
    """Compute gradients of a model, and return how many elements its forward pass kept for them."""
    tensors: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensors[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = model(inputs)
    outputs.square().sum().backward()
    return sum(tensors.values())


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointing_changes_no_gradient_of_images(compiled: bool, of_images: Modules, images: Path) -> None:
    gradients, statistics, kept = [], [], []
    for checkpointing in (False, True):
        options = of_images("config").Config(data=images, width=4, checkpointing=checkpointing, compile=compiled)
        torch.manual_seed(0)
        model = of_images("model").build_model(options)
        batches = torch.randint(0, 256, (3, 4, 3, 32, 32), generator=torch.Generator().manual_seed(1))
        step = torch.compile(model, backend="aot_eager") if compiled else model
        kept.append(max(kept_for_backward(step, batch) for batch in batches))
        gradients.append([weight.grad for weight in model.parameters()])
        statistics.append([buffer for name, buffer in model.named_buffers() if "running" in name])
    assert differences(gradients[0], gradients[1]) == []
    torch.testing.assert_close(statistics[1], statistics[0])
    assert compiled or kept[1] < kept[0] / 2, "fewer activations are kept"


def write_csv(file: Path, rows: list[Any], header: Any = ("height", "width", "price")) -> Path:
    with open(file, "w", newline="") as text:
        csv.writer(text).writerows([header, *rows])
    return file


def some_rows(number: int) -> list[list[float]]:
    height, width, noise = np.random.default_rng(0).normal(size=(3, number))
    columns = [170 + 10 * height, width / 100, 1000 + 300 * height * width + 50 * noise]
    return [*np.round(np.stack(columns, axis=1), 4).tolist()]


@pytest.mark.parametrize("mistake", WRONG_TABLES)
def test_a_wrong_table_is_named_with_its_line(mistake: str, of_tables: Modules, tmp_path: Path) -> None:
    text, words = WRONG_TABLES[mistake]
    file = tmp_path / "table.csv"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    config = of_tables("config").Config(data=file, target="price")
    assert refusal(of_tables, lambda: of_tables("data").load_data(config)) == words.format(file)


def test_the_diabetes_table_is_that_of_scikit_learn(of_tables: Modules) -> None:
    from sklearn.datasets import load_diabetes

    theirs = load_diabetes(scaled=False)
    columns, values = of_tables("data").diabetes()
    assert columns[-1] == "progression"
    assert np.array_equal(values, np.column_stack([theirs.data, theirs.target]).astype(np.float32))


def test_metrics_over_uneven_ranks_are_those_of_numpy(of_tables: Modules, own_project: Render, tmp_path: Path) -> None:
    """53 rows leave 10 to validate: 4, 3 and 3 on three ranks. What standardises does not know them."""
    data = write_csv(tmp_path / "table.csv", some_rows(53))
    options = {"data": data, "target": "price", "global_batch_size": 12, "epochs": 3, "warmup_steps": 0}
    run_all([[Program(own_project(task="tabular", logging="csv"), tmp_path / "run", options, world_size=3)]])
    config = of_tables("config").Config(data=data, target="price")
    training, validation = of_tables("data").load_data(config)
    model = of_tables("model").build_model(config).eval()
    model.load_state_dict(checkpoint(tmp_path / "run")["model"])
    with torch.inference_mode():
        predicted = model(validation.features).double().numpy()
    targets, known = validation.targets.double().numpy(), training.targets.double().numpy()
    errors = predicted - targets
    expected = {
        "mae": np.abs(errors).mean(),
        "r2": 1 - np.square(errors).mean() / targets.var(),
        "loss": np.square(errors).mean() / known.var(),
    }
    recorded = read_csv(tmp_path / "run")
    assert {name: recorded[f"epoch/validation_{name}"][-1][1] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert "epoch/validation_moments" not in recorded


def test_predict_reads_the_columns_that_the_model_knows(of_tables: Modules, tmp_path: Path) -> None:
    """In any order, beside others that need not be numbers; the weights bring along what standardises them."""
    task, rows = of_tables("task"), some_rows(40)
    tables: dict[str, list[Any]] = {"table.csv": rows, "other.csv": [[i, -i, i % 2] for i in range(20)]}
    make, build = of_tables("config").Config, of_tables("model").build_model
    torch.manual_seed(0)
    files = (write_csv(tmp_path / name, table) for name, table in tables.items())
    trained, loaded = [build(make(data=file, target="price")).eval() for file in files]
    loaded.load_state_dict(trained.state_dict())
    named = [["a", width, height] for height, width, _ in rows]
    table = write_csv(tmp_path / "new.csv", named, ["name", "width", "height"])
    with torch.inference_mode():
        found = [*task.predict(loaded, [*task.read_inputs(loaded, table)])]
        expected = trained(torch.tensor(rows)[:, :2]).tolist()
    assert [[*row] for row in found] == [["price"]] * 40
    assert [row["price"] for row in found] == pytest.approx(expected, rel=1e-5)
    lacking = write_csv(tmp_path / "lacking.csv", [[1]], ["width"])
    said = refusal(of_tables, lambda: task.read_inputs(loaded, lacking))
    assert said == f"{lacking} has no column height: it has width"


def test_the_digits_are_those_of_scikit_learn(project: Render) -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    with np.load(project() / "ddp_project" / "digits.npz") as digits:
        assert np.array_equal(digits["images"], theirs.images)
        assert np.array_equal(digits["labels"], theirs.target)
