"""predict.py writes a line for each input, once and in order, on any number of ranks and over any number of starts."""

import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import Package, Render
from tests.support.processes import wait_until
from tests.support.ranks import Rank, error_in, kill_all, start_ranks, train_on_ranks
from tests.support.training import ON_CPU
from tools.rewriting import extend

TASK = Path("ddp_project", "task.py")
# The answer to each input is the input. A file has the inputs that were asked, with repetitions. Each takes 5 ms; those
# after 60 take longer while there is a file "slowly", so that a test sees them pass on a busy machine too.
SLOW = """

def predict(model, inputs):
    import os
    import time
    for number in inputs:
        time.sleep(0.25 if number > 60 and os.path.exists("slowly") else 0.005)
        with open("asked", "a") as file:
            file.write(f"{number}\\n")
        yield {"number": number}


def read_inputs(model, file):
    numbers = file.read_text().split()
    return [*map(int, numbers)] if file.suffix == ".txt" else (int(number) for number in numbers)
"""
# Reads a number when its turn comes.
LAZY = """

class Numbers:
    def __init__(self, file):
        self.file, self.words = file, file.read_text().split()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        if self.words[index] == "wrong":
            raise UserError(f"{self.file} holds no number: wrong")
        return int(self.words[index])


def read_inputs(model, file):
    return Numbers(file)
"""
DRAWING = """

def predict(model, inputs):
    import random
    for number in inputs:
        yield {"number": number, "drawn": [random.random(), torch.rand(()).item()], "none": float("nan")}
"""
OF_FILES = """

del read_inputs


def predict(model, file):
    for number in file.read_text().split():
        yield {"number": int(number)}
"""
WRONG = {
    " lacks def predict(model: nn.Module, inputs: list[Any])": "del predict, read_inputs",
    ": predict() yields 1 predictions for 2 inputs: let it yield one for each": "predict = lambda model, inputs: [{}]",
    ": predict() must yield dicts, not int": "predict = lambda model, inputs: inputs",
    ": read_inputs() must return a list of inputs, not dict": "read_inputs = lambda model, file: {}",
    ": predict() yields 0 predictions for 2 inputs": "predict = lambda model, inputs: None",
    ": predict() yields what JSON does not have": 'predict = lambda model, inputs: [{"it": 1j}, {}]',
    ": predict(): OSError no font": 'def predict(model, inputs):\n    raise OSError("no font")',
}


def run_predict(words: Sequence[str]) -> None:
    sys.argv = ["predict.py", *words, *ON_CPU]
    runpy.run_path(os.path.abspath("predict.py"), run_name="__main__")


def start(project: Path, folder: Path, *words: object, processes: int) -> list[Rank]:
    return start_ranks(
        project, folder / "run", processes=processes, entry=partial(run_predict, [*map(str, words)]), outputs=folder
    )


@pytest.fixture
def predicted(tmp_path: Path) -> Callable[..., list[str]]:
    """Run predict.py on ranks, and return what they print."""

    def get(project: Path, *words: object, processes: int = 1, code: int = 0) -> list[str]:
        return [rank.ends_with(code, 60) for rank in start(project, tmp_path, *words, processes=processes)]

    return get


@pytest.fixture(scope="module")
def exported(project: Render, tmp_path_factory: pytest.TempPathFactory, package: Package) -> Path:
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    train_on_ranks(project(), run_dir, "--max-steps", "2", processes=1)
    return Path(package("runtime.export").export(run_dir))


@pytest.fixture
def slow(own_project: Render) -> Path:
    project = own_project()
    extend(project / TASK, SLOW)
    (project / "slowly").touch()
    return project


def some_numbers(folder: Path, *sizes: int) -> list[Path]:
    """Write files of numbers; that of the last one is read as it comes."""
    files, first = [folder / f"{place}.txt" for place in range(len(sizes) - 1)] + [folder / "last.stream"], 0
    for file, size in zip(files, sizes, strict=True):
        file.write_text(" ".join(map(str, range(first, first + size))))
        first += size
    return files


def numbers_in(file: Path) -> list[int]:
    return [json.loads(line)["number"] for line in file.read_text().splitlines()]


def test_any_number_of_ranks_writes_the_same_lines_in_the_order_of_the_inputs(
    project: Render, exported: Path, predicted: Any, package: Package, tmp_path: Path
) -> None:
    with np.load(project() / "ddp_project" / "digits.npz") as digits:
        images = digits["images"]
    files = [tmp_path / f"{name}.npy" for name in ("many", "none", "few")]
    for file, part in zip(files, (images[:300], images[:0], images[300:307]), strict=True):
        np.save(file, part)
    (tmp_path / "list").write_text("\n".join(map(str, files)))
    written = []
    for ranks in (1, 3):
        predicted(project(), exported, f"@{tmp_path}/list", "--to", tmp_path / str(ranks), processes=ranks)
        written.append((tmp_path / str(ranks)).read_text())
    assert written[0] == written[1]
    found = [json.loads(line) for line in written[0].splitlines()]
    assert [each["file"] for each in found] == [str(files[0])] * 300 + [str(files[2])] * 7
    with torch.inference_mode():
        model = package("runtime.export").load_model(exported)
        scores = model(torch.from_numpy(images[:307]).float()[:, None] / 16)
    assert [each["digit"] for each in found] == scores.argmax(dim=1).tolist()
    assert [file.name for file in tmp_path.glob("*.part*")] == []


def test_after_a_kill_and_a_stop_it_goes_on_where_it_was(slow: Path, exported: Path, tmp_path: Path) -> None:
    """On another number of ranks, and with batches of another size."""
    files, to = some_numbers(tmp_path, 50, 0, 170, 280), tmp_path / "numbers"
    part, place = tmp_path / "numbers.part", tmp_path / "numbers.part.json"

    def started(processes: int, batch_size: int) -> list[Rank]:
        words = (exported, *files, "--to", to, "--batch-size", batch_size)
        return start(slow, tmp_path, *words, processes=processes)

    def noted() -> int:
        return json.loads(place.read_text())["inputs"] if place.exists() else 0

    def end_of(ranks: list[Rank], code: int) -> str:
        return "".join(rank.ends_with(code, 60) for rank in ranks)

    killed = started(2, 4)
    wait_until(lambda: noted() > 30, told=killed[0].output.read_text)
    kill_all(killed)
    reached = noted()
    assert numbers_in(part)[:reached] == [*range(reached)]
    stopped = started(3, 3)
    wait_until(lambda: noted() > reached, told=stopped[0].output.read_text)
    os.kill(stopped[1].process.pid or 0, signal.SIGTERM)
    printed = end_of(stopped, 75)
    assert f"ends after {noted()} of 500 inputs" in printed
    before = noted()
    assert not to.exists()
    asked = len((slow / "asked").read_text().split())
    (slow / "slowly").unlink()
    printed = end_of(started(1, 64), 0)
    assert f"going on after {before} of 500 inputs" in printed
    assert len((slow / "asked").read_text().split()) - asked == 500 - before
    assert numbers_in(to) == [*range(500)]
    assert not part.exists()
    assert not place.exists()


def test_what_is_written_stays_until_what_it_is_for_changes(
    slow: Path, exported: Path, predicted: Any, tmp_path: Path
) -> None:
    """A damaged file ends all ranks in one line; once it is mended, the files before it are not predicted again."""
    files, to = some_numbers(tmp_path, 22, 2), tmp_path / "numbers"
    extend(slow / TASK, LAZY)
    words = (exported, *files, "--to", to, "--batch-size", 2)
    files[1].write_text("22 wrong")
    printed = predicted(slow, *words, processes=3, code=2)
    assert error_in(printed) == f"error: rank 2: {files[1]} holds no number: wrong"
    files[1].write_text("22 23")
    assert "going on after 22 of 24 inputs" in predicted(slow, *words)[0]
    assert numbers_in(to) == [*range(24)]


def test_lines_of_another_code_are_not_mixed_with_those_of_now(
    slow: Path, exported: Path, predicted: Any, tmp_path: Path
) -> None:
    """Edited while it predicts, the task begins anew, and says so; random numbers do not depend on the ranks."""
    files, to = some_numbers(tmp_path, 60, 600), tmp_path / "numbers"
    ranks = start(slow, tmp_path, exported, *files, "--to", to, "--batch-size", 4, processes=2)
    place = tmp_path / "numbers.part.json"
    wait_until(lambda: place.exists() and json.loads(place.read_text())["inputs"] > 8, told=ranks[0].output.read_text)
    extend(slow / TASK, DRAWING)
    kill_all(ranks)
    [printed] = predicted(slow, exported, *files, "--to", to, "--batch-size", 4)
    assert f"{to}.part is of other files, options, code or another model: it begins anew" in printed
    alone = to.read_text()
    predicted(slow, exported, *files, "--to", to, "--batch-size", 4, processes=3)
    assert to.read_text() == alone
    assert {json.loads(line)["none"] for line in alone.splitlines()} == {None}


def test_a_task_may_predict_from_whole_files(
    own_project: Render, exported: Path, predicted: Any, tmp_path: Path
) -> None:
    """As predict() of version 2.0 did, which yields any number of predictions for each."""
    project = own_project()
    extend(project / TASK, OF_FILES)
    files = some_numbers(tmp_path, 3, 0, 2)
    predicted(project, exported, *files, "--to", tmp_path / "numbers", processes=2)
    assert numbers_in(tmp_path / "numbers") == [*range(5)]


@pytest.mark.parametrize("said", WRONG)
def test_what_predict_must_not_do_is_named(
    said: str, slow: Path, exported: Path, predicted: Any, tmp_path: Path
) -> None:
    extend(slow / TASK, f"\n\n{WRONG[said]}\n")
    printed = predicted(slow, exported, *some_numbers(tmp_path, 2), "--to", tmp_path / "numbers", code=2)
    assert f"task.py{said}" in error_in(printed)
    assert not (tmp_path / "numbers").exists()


def test_what_cannot_be_predicted_is_named(
    project: Render, exported: Path, predicted: Any, package: Package, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.npy", tmp_path / "bad"
    (bad / "folder.npy").mkdir(parents=True)
    for name, array in {"flat": np.zeros((2, 64)), "bright": np.full((2, 8, 8), 255), "words": np.array("a")}.items():
        np.save(bad / f"{name}.npy", array)
    np.savez(bad / "other.npz", labels=np.zeros((2, 8, 8)))
    np.savez_compressed(bad / "cut.npz", images=np.arange(128.0).reshape(2, 8, 8) / 8)
    (bad / "cut.npz").write_bytes((bad / "cut.npz").read_bytes()[:200])
    (bad / "text.npy").write_text("digits\n")
    (bad / "empty.npy").touch()
    np.save(good, np.zeros((2, 8, 8)))
    error = package("runtime.exits").UserError
    for path in (*bad.iterdir(), tmp_path / "missing.npy"):
        words = "does not hold images" if path.name in ("flat.npy", "bright.npy") else "cannot be read as images"
        with pytest.raises(error, match=f"{path} {words}"):
            package("task").read_inputs(None, path)
    printed = predicted(project(), exported, good, tmp_path / "gone", "--to", tmp_path / "to", processes=2, code=2)
    assert f"rank 0: {tmp_path}/gone cannot be read: No such file or directory" in error_in(printed)
    printed = predicted(project(), exported, good, "--to", bad, code=2)
    assert f"--to {bad} is a folder: name a file" in error_in(printed)
    before, part = good.read_bytes(), tmp_path / "out.part"
    shutil.copy(good, part)
    for file, to in ((good, good), (part, part.with_suffix(""))):
        printed = predicted(project(), exported, file, "--to", to, code=2)
        assert f"--to {to} would replace one of the inputs: name another file" in error_in(printed)
    victim = Path(shutil.copy(good, tmp_path / "victim"))
    part.unlink()
    part.symlink_to(victim)  # of somebody who may write to the folder, too
    printed = predicted(project(), exported, good, "--to", part.with_suffix(""), code=2)
    assert f"another program writes to {part}" in error_in(printed)
    assert good.read_bytes() == victim.read_bytes() == before
    printed = predicted(project(), exported, good, "--to", tmp_path / "nowhere" / "to", code=2)
    assert f"{tmp_path}/nowhere/to.part could not be written: No such file or directory" in error_in(printed)
    assert not [*tmp_path.glob("to*")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["EXPORT"], "name files behind EXPORT, to predict from"),
        (["FOLDER", "a.npy"], "FOLDER does not hold model.json"),
        (["a.npy"], "there is no export in FOLDER/runs: export.py writes one, or name its folder first"),
        (["--to", "b"], "the following arguments are required: PATH: see --help"),
        (["--workers", "2"], "name the files before --workers"),
        (["--to", "out", "--device", "cpu", "FILE"], "name the files before --device"),
        (["EXPORT", "a.npy", "--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["@nowhere"], "[Errno 2] No such file or directory: 'nowhere': see --help"),
        (["EXPORT", "@list", "--workers", "x"], "--workers needs a whole number, not 'x'"),
        (["EXPORT", "a.npy", "--lrr", "2"], "there is no option --lrr: did you mean --lr?"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    words: list[str],
    said: str,
    exported: Path,
    package: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text("-x.npz\n--foo\n@list\n")
    places = {"EXPORT": str(exported), "FOLDER": str(tmp_path)}
    given = ["predict.py", *(places.get(word, word) for word in words)]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit, match="2"):
        package("runtime.launcher").read_options(package("runtime.cli").PredictArguments().read)
    for name, place in places.items():
        said = said.replace(name, place)
    out, printed = capfd.readouterr()
    assert (out, printed.count("\n")) == ("", 1)
    assert printed.startswith(f"error: {said}")
