"""--config takes options from a file: a run is replayed from its config.json, and what cannot be read is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.launching import checkpoint
from tests.ranks import assert_same_state, train_on_ranks


@pytest.fixture
def parse(package: Callable[..., Any]) -> Callable[..., Any]:
    """Reads a command line of the default project."""
    command_line, config = package("runtime.command_line"), package("config")
    return lambda *words: command_line.parse(config.Config, [*map(str, words)])


def test_a_run_is_replayed_from_its_config(project: Render, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    options = ("--max-steps", "3", "--lr", "1e-5", "--no-compile", "--accum-steps", "2")
    train_on_ranks(project(), first, *options, "--resume", "auto")
    train_on_ranks(project(), second, "--config", str(first / "config.json"))
    assert_same_state(checkpoint(first), checkpoint(second))
    train_on_ranks(project(), third, "--config", str(first / "config.json"), "--max-steps", "2")
    assert checkpoint(third)["progress"]["step"] == 2
    configs = [json.loads((folder / "config.json").read_text()) for folder in (first, second)]
    again = ("--config", str(first / "config.json"), "--resume", str(first / "checkpoints" / "last.pt"))
    printed = train_on_ranks(project(), tmp_path / "fourth", *again)
    assert "resumed from" in printed[0]
    assert "other options" not in printed[0]
    own = {"run_dir": None, "resume": None}
    assert configs[0] | own == configs[1] | own
    assert [config["resume"] for config in configs] == ["auto", None]


def test_options_of_yaml_come_before_those_of_the_command_line(parse: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("epochs: 3\nlr: 1e-05\nglobal-batch-size: 8\ndeterministic: yes\nrun_dir: a folder\nresume: null\n")
    found = parse("--epochs", 5, "--config", file, "--no-deterministic")
    assert (found.epochs, found.lr, found.global_batch_size, found.deterministic) == (5, 1e-5, 8, False)
    assert (found.run_dir, found.resume) == (Path("a folder"), None)
    assert parse("--config", file).deterministic


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch: 3", "there is no option epoch: leave it out, or take one of --help"),
        ("epochs: -3", "--epochs: -3 is not a number of at least 1"),
        ("ema_decay: 1", "--ema-decay: 1 is not a number of at least 0 and below 1"),
        ("epochs: true", "epochs must be neither true nor false, not True"),
        ("compile: 3", "compile must be true or false, not 3"),
        ("lr: [1, 2]", r"--lr: could not convert string to float: .\[1, 2\]"),
        ("- epochs", "does not hold options and their values"),
        ("a: [", "cannot be read: while parsing"),
        ("a: \xff", "cannot be read: 'utf-8' codec"),
    ],
)
def test_what_is_no_option_is_refused_in_one_line(
    text: str, words: str, parse: Callable[..., Any], package: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_bytes(text.encode("latin-1"))
    error = package("runtime.exits").UserError
    with pytest.raises(error, match=words) as refused:
        parse("--config", file)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(
    parse: Callable[..., Any], package: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(package("runtime.exits").UserError, match="cannot be read: No such file or directory"):
        parse("--config", tmp_path / "options.yaml")
