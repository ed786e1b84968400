"""--config takes options from a file: a run is replayed from its config.json, and what cannot be read is refused."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from generator.answers.questions import read_questions
from tests.conftest import Package, Render
from tests.support.processes import output_of
from tests.support.ranks import assert_same_state, train_on_ranks
from tests.support.training import checkpoint

Parse = Callable[..., Any]
Refused = Callable[..., str]
READ_BACK = """
import json, sys
from pathlib import Path
from ddp_project.config import Config
from ddp_project.runtime.cli import as_plain_dict, parse
from ddp_project.runtime.export import config_of

given = parse(Config, sys.argv[1:])
Path("config.json").write_text(json.dumps(as_plain_dict(given)))
assert config_of(json.loads(Path("config.json").read_text())) == given, "export.py reads it, too"
assert parse(Config, ["--config", "config.json"]) == given, as_plain_dict(given)
"""
NOT_READ = "cannot be read again from config.json: let it be text, a number, a path, a date, an Enum, or tuples"
READ_OR_REFUSED = f"""
from ddp_project.runtime.exits import UserError
try:
    {READ_BACK.strip().replace(chr(10), chr(10) + "    ")}
except UserError as error:
    print(error)
"""
WRONG_FILES = [
    ("x: 3", "there is no option x: leave it out, or take one of --help"),
    ("learning-rate: 3", r"there is no option learning-rate: did you mean lr\?"),
    ("epochs: -3", "--epochs must be at least 1, not -3"),
    ("ema_decay: 1", "--ema-decay must be below 1, not 1"),
    ("epochs: yes", "--epochs needs a whole number, not "),
    ('{"epochs": true}', "epochs must be neither true nor false, not True"),
    ("seed: 0x10", "--seed needs a whole number, not "),
    ("seed:", "seed has no value"),
    ('{"lr": NaN}', "--lr must be at least 0, not nan"),
    ("lr: 1\nlr: 2", "lr is there twice"),
    ("accum-steps: 1\naccum_steps: 2", "accum_steps is there twice"),
    ("lr: {a: 1}", "lr must be one value, not {'a': '1'}"),
    ("compile: 3", "compile must be true or false, not 3"),
    ("- epochs", "does not hold options and their values"),
    ("a: [", "cannot be read: while parsing"),
    ("a: \xff", "cannot be read: 'utf-8' codec"),
    ("run-dir: ''", "--run-dir is empty: give a value"),
    ("device: gpu", "--device must be one of .*, not 'gpu'"),
    ("lr: x", r"--config \S+/options.yaml: --lr needs a number, not 'x'"),
    ("", "cannot be read: No such file or directory"),
]
NOT_KEPT = [
    ("unit: complex = 1j", "", "is of type complex, which config.json cannot hold: make it text"),
    ("stages: tuple[Blocks, ...] = (Blocks(),)", "", NOT_READ),
    ("stage: Blocks | None = None", "stage:blocks --stage.width 3", NOT_READ),
    ("limit: int | str = 1", "--limit 1e3", ""),  # which the next run reads as the same value
]
SHOWN = [
    ('{\n\t"epochs": 1.0,\n\t"lr": 1e-3\n}', "epochs", 1),  # YAML knows no tabs
    ("lr: 1e-3", "lr", 1e-3),
    ("seed: 0123", "seed", 123),
    ("seed: 9007199254740993", "seed", 9007199254740993),
    ("workers: 2.0", "workers", 2),
    ("deterministic: off", "deterministic", False),
    ("run_dir: no", "run_dir", Path("no")),
    ("run_dir: 1.10", "run_dir", Path("1.10")),
    ("<<: {seed: 3}\nlr: 1", "seed", 3),
]


@pytest.fixture
def parse(package: Package) -> Parse:
    cli, config = package("runtime.cli"), package("config")
    return lambda *words: cli.parse(config.Config, [*map(str, words)])


@pytest.fixture
def refused(parse: Parse, package: Package) -> Refused:
    def get(*words: object) -> str:
        with pytest.raises(package("runtime.exits").UserError) as error:
            parse(*words)
        return str(error.value)

    return get


@pytest.fixture
def sigpipe() -> Iterator[None]:
    """Restore the handler of SIGPIPE, which --help leaves to the system: it would end the process of other tests."""
    handler = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, handler)


TASKS = [choice.value for question in read_questions() if question.key == "task" for choice in question.choices]


@pytest.mark.parametrize("task", TASKS)
def test_help_shows_the_common_options_on_a_screen_or_two_and_all_if_asked(
    task: str, package: Package, capsys: pytest.CaptureFixture[str], sigpipe: None
) -> None:
    """With the defaults of options.py; an option of these that must be given has none."""
    cli, config = package("runtime.cli", task=task), package("config", task=task)
    shown = {}
    for words in (["--help"], ["--epochs", "3", "-h", "all"]):
        with pytest.raises(SystemExit, match=r"^0$"):
            cli.parse(config.Config, words)
        shown[len(words)] = capsys.readouterr().out
    assert len(shown[1].splitlines()) <= 80
    names = [f"--{field.name.replace('_', '-')}" for field in fields(config.Config)]
    assert [name for name in names if not re.search(rf"^. {name}\b", shown[4], re.MULTILINE)] == []
    own = [f"--{field.name.replace('_', '-')}" for field in fields(package("options", task=task).Options)]
    assert [name for name in own if name not in shown[1]] == []
    [epochs] = re.findall(r" --epochs INT [^(]*\(epochs\)\. \(default: (\d+)\)", re.sub(r"[\s│]+", " ", shown[1]))
    assert int(epochs) == config.Config().epochs


def test_a_run_is_replayed_from_its_config(project: Render, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    options = ("--max-steps", "3", "--lr", "1e-5", "--no-compile", "--accum-steps", "2")
    train_on_ranks(project(), first, *options, "--resume", "auto")
    again = ("--config", str(first / "config.json"))
    train_on_ranks(project(), second, *again)
    assert_same_state(checkpoint(first), checkpoint(second))
    configs = [json.loads((folder / "config.json").read_text()) for folder in (first, second)]
    own = {"run_dir": None, "resume": None}
    assert configs[0] | own == configs[1] | own
    assert [config["resume"] for config in configs] == ["auto", None]
    source = str(first / "checkpoints" / "last.pt")
    printed, _ = train_on_ranks(project(), tmp_path / "third", *again, "--resume", source)
    assert "resumed from" in printed
    assert "other options" not in printed


def test_options_of_the_command_line_come_before_those_of_yaml(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("epochs: 3\nglobal-batch-size: 8\ndeterministic: yes\nresume: null\n")
    found = parse("--epochs", 5, "--config", file, "--no-deterministic")
    assert (found.epochs, found.global_batch_size, found.deterministic, found.resume) == (5, 8, False, None)
    assert parse("--config", file).deterministic
    file.write_text("# nothing\n")
    assert parse("--config", file) == parse()


@pytest.mark.parametrize(("text", "option", "value"), SHOWN)
def test_a_file_means_what_it_shows(text: str, option: str, value: object, parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text(text)
    found = getattr(parse("--config", file), option)
    assert (found, type(found)) == (value, type(value) if not isinstance(value, Path) else type(Path()))


OPTIONS = """
from dataclasses import field as default_of
from datetime import date, datetime, timedelta
from enum import Enum, IntEnum
from pathlib import Path
from typing import Literal

Pooling = Enum("Pooling", ["MEAN", "MAX"])
Level = IntEnum("Level", ["LOW", "HIGH"])


@dataclass(frozen=True)
class Blocks:
    width: int = 8
    pooling: Pooling = Pooling.MEAN
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Options:
    pooling: Pooling = Pooling.MEAN
    poolings: tuple[Pooling, ...] = (Pooling.MEAN,)
    level: Level = Level.LOW
    kind: Literal[1, "a"] = 1
    files: list[Path] = default_of(default_factory=lambda: [Path("a")])
    pair: tuple[int, str] = (1, "a")
    pairs: tuple[tuple[int, int], ...] = ((1, 2),)
    scale: dict[str, float] = default_of(default_factory=lambda: {"a": 1.0})
    tags: frozenset[str] = frozenset({"x"})
    day: date = date(2026, 1, 1)
    at: datetime = datetime(2026, 1, 1, 3)
    pause: timedelta = timedelta(1)
    depth: int | None = 3
    deep: bool | None = None
    blocks: Blocks = Blocks()
"""
GIVEN = (
    "--pooling MAX --poolings MAX MEAN --level HIGH --kind a --files b c --pair 3 x --pairs 1 2 3 4 --scale.a 2 "
    "--tags y z --day 2026-02-03 --at 2026-02-03T04:00 --pause 30 --depth None --deep True --blocks.wide "
    "--blocks.pooling MAX"
)


def with_options(project: Path, options: str) -> Path:
    file = project / "ddp_project" / "options.py"
    file.write_text(file.read_text().partition("@dataclass")[0] + options)
    return project


def test_every_type_of_option_is_written_and_read_back(own_project: Render, tmp_path: Path) -> None:
    place, run_dir = with_options(own_project(), OPTIONS), tmp_path / "run"
    for words in ([], GIVEN.split()):
        output_of([sys.executable, "-c", READ_BACK, *words], place, os.environ)
    train_on_ranks(place, run_dir, "--max-steps", "2", "--pooling", "MAX", processes=1)
    assert checkpoint(run_dir)["config"]["pooling"] == "MAX"
    again = ("--config", str(run_dir / "config.json"), "--resume", "--max-steps", "3", "--pooling", "MEAN")
    [printed] = train_on_ranks(place, run_dir, *again, processes=1)
    assert "other options than before: --pooling MEAN (was MAX), --max-steps 3 (was 2)" in printed


@pytest.mark.parametrize(("option", "words", "reason"), NOT_KEPT)
def test_an_option_that_cannot_be_read_again_is_refused_at_once(
    option: str, words: str, reason: str, own_project: Render
) -> None:
    place = with_options(own_project(), f"{OPTIONS}    {option}\n")
    printed = output_of([sys.executable, "-c", READ_OR_REFUSED, *words.split()], place, os.environ)
    assert printed.startswith(f"--{option.partition(':')[0]} {reason}" if reason else "")
    assert printed.count("\n") == bool(reason)


def test_a_switch_takes_a_value_too(parse: Parse) -> None:
    assert parse("--deterministic", "true").deterministic
    assert parse("--compile=True", "--deterministic=yes", "--lr", 1).compile
    assert not parse("--deterministic", "--deterministic", "false", "--epochs", 1).deterministic


def test_options_that_must_be_given_are_named(package: Package) -> None:
    needed = [("table", Path), ("fold", int)]
    needy = make_dataclass("Needy", needed, bases=(package("config").Config,), frozen=True, kw_only=True)
    with pytest.raises(package("runtime.exits").UserError, match=r"^give --table and --fold: there is no default$"):
        package("runtime.cli").parse(needy, ["--lr", "1"])


@pytest.mark.parametrize("option", ["seed", "bucket-mib", "timeout", "epochs"])
def test_a_number_too_large_is_refused(option: str, refused: Refused) -> None:
    assert re.fullmatch(rf"--{option} must be below \d+, not {2**64}", refused(f"--{option}", 2**64))


@pytest.mark.parametrize("words", [["--run-dir", ""], ["--run-dir="], ["--resume", "", "--lr", "1"], ["--init-from="]])
def test_an_empty_value_is_refused(words: list[str], refused: Refused) -> None:
    """As of a shell variable that is not set: a run would write among the project's own files."""
    assert refused(*words) == f"{words[0].rstrip('=')} is empty: give a value, or leave the option out"


def test_a_refusal_is_whole_on_any_terminal(project: Render) -> None:
    """One without letters of Unicode, or one that is narrow; tyro's own box would break words."""
    long = f"/some/{'very/' * 20}long/path"
    for words, said in {
        ("--lr", long): f"--lr needs a number, not '{long}'",
        ("--lrr", "3"): "there is no option --lrr: did you mean --lr?",
        ("--device", "gpu"): "--device must be one of 'auto',",
    }.items():
        for more in ({"PYTHONIOENCODING": "ascii"}, {"COLUMNS": "30"}):
            printed = output_of([sys.executable, "train.py", *words], project(), {**os.environ, **more}, code=2)
            assert printed.startswith(f"error: {said}"), printed
            assert printed.count("\n") == 1


def test_a_file_of_the_name_of_an_exports_is_one_of_options(parse: Parse, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"lr": 0.5}')
    assert parse("--config", tmp_path / "model.json").lr == 0.5


def test_a_text_may_be_empty(package: Package) -> None:
    noted = [("note", str | None, field(default="")), ("title", str, field(default="x"))]
    config = make_dataclass("Noted", noted, bases=(package("config").Config,), frozen=True, kw_only=True)
    assert package("runtime.cli").parse(config, ["--title", ""]).title == ""
    assert package("runtime.cli").parse(config, ["--note="]).note == ""


FOREIGN = {  # by what is meant: what is typed
    "--lr": ("--learning-rate -3", "lr=3"),
    "--epochs": ("--num-epochs 1", "--epoch 1", "--no-epochs"),
    "--precision": ("--bf16",),
    "--accum-steps": ("--gradient-accumulation-steps 2",),
    "--global-batch-size": ("--batch-size=32",),
    "--seed": ("--sed 1",),
}


@pytest.mark.parametrize(("meant", "words"), [(meant, words) for meant, typed in FOREIGN.items() for words in typed])
def test_a_foreign_option_gets_its_name(words: str, meant: str, refused: Refused, package: Package) -> None:
    """And no other name of an option is an option itself."""
    said = refused(*words.split())
    assert said.endswith(f": did you mean {meant}?")
    assert said.startswith(f"there is no option {re.split('[ =]', words)[0]}: ")
    known = {field.name for field in fields(package("config").Config)}
    named = package("runtime.cli").OTHER_NAMES
    assert named.keys() <= known
    assert not {other for names in named.values() for other in names.split()} & known


@pytest.mark.parametrize(("text", "words"), WRONG_FILES)
def test_what_is_no_option_is_refused_in_one_line(text: str, words: str, refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    if text:
        file.write_bytes(text.encode("latin-1"))
    said = refused("--config", file, "--workers", 3)
    assert re.search(words, said)
    assert "\n" not in said
