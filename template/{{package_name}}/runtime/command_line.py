"""What an option can be, and how the command line is read: all options are the fields of one dataclass, Config."""

import argparse
import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from .exits import UserError

DESCRIPTION = """Train on any number of processes. README.md says how to start them.

--config FILE takes options from JSON or YAML, such as the config.json of another run; those of the command line win.

--doctor examines what a run with these options needs, instead of training, and says what to mend."""
NEWEST = "newest"
AUTO = "auto"

T = TypeVar("T")


def at_least(
    minimum: int, number: Callable[[str], float] = int, *, below: float = math.inf, or_auto: bool = False
) -> PrimitiveConstructorSpec[Any]:
    """The command-line form of a number, at least minimum and below a limit, or of the word auto."""

    def parse_number(words: list[str]) -> float | str:
        if or_auto and words[0] == AUTO:
            return AUTO
        value = number(words[0])
        if not minimum <= value < below:
            limit = f" and below {below}" if below < math.inf else ""
            raise ValueError(f"{words[0]} is not a number of at least {minimum}{limit}")
        return value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="auto|" * or_auto + number.__name__.upper(),
        instance_from_str=parse_number,
        is_instance=lambda value: isinstance(value, (int, float)) or (or_auto and value == AUTO),
        str_from_instance=lambda value: [str(value)],
    )


def path_or_newest(words: list[str]) -> str:
    """Read what follows --resume: nothing, auto or one path."""
    if len(words) > 1:
        raise ValueError(f"give one path at most, not {' '.join(words)}")
    return words[0] if words else NEWEST


Count = Annotated[int, at_least(1)]
CountOrZero = Annotated[int, at_least(0)]
CountOrAuto = Annotated[int | str, at_least(0, or_auto=True)]
Amount = Annotated[float, at_least(0, float)]
Share = Annotated[float, at_least(0, float, below=1)]
File = Annotated[str | None, tyro.conf.arg(metavar="PATH")]
Checkpoint = Annotated[
    str | None,
    PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[auto|PATH]",
        instance_from_str=path_or_newest,
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [value] if value else [],
    ),
]


def with_defaults_of_base(options: type[T]) -> type[T]:
    """Let each option that the base class has, too, keep the default that it has there; to be used below @dataclass."""
    for name in vars(options).keys() & {field.name for field in fields(cast(Any, options.__base__))}:
        setattr(options, name, getattr(options.__base__, name))
    return options


def parse(config: type[T], arguments: Sequence[str] | None = None, *, quiet: bool = False) -> T:
    """Read the options from the command line, and those before them from the file of --config, if there is one.

    --doctor is left out, and a quiet rank leaves --help to others. Raises UserError if an option is unknown or has an
    impossible value.
    """
    complaint = io.StringIO()
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument("--config", type=Path, action="append", default=[], metavar="FILE")
    files.add_argument("--doctor", action="store_true")  # read_options() looks for it
    try:
        with redirect_stderr(complaint):
            given, words = files.parse_known_args(arguments)
            words = [word for file in given.config for word in words_of(file, config)] + words
            return tyro.cli(config, description=DESCRIPTION, args=words, console_outputs=not quiet)
    except SystemExit as leaving:
        if leaving.code == 0:
            raise
        # tyro draws a box with a title: take the words out of it.
        words = re.sub("[\u2500-\u257f]", " ", complaint.getvalue().partition("\n")[2]).split()
        raise UserError(" ".join(words)) from None


def words_of(file: Path, config: Any) -> list[str]:
    """Return the options of a JSON or YAML file as words of a command line. Raises UserError if there are others.

    The config.json of a run does not name its directory, nor what it went on from: these belong to that run alone.
    """
    import yaml  # not at the top: it would take a tenth of the time of --help

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))  # JSON, too, is YAML
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise UserError(f"--config {file} cannot be read: {reason}") from None
    if not isinstance(found, dict):
        raise UserError(f"--config {file} does not hold options and their values, as config.json of a run does")
    defaults = {field.name: field.default for field in fields(config)}
    words = []
    for key, value in found.items():
        name = str(key).replace("-", "_")
        option = name.replace("_", "-")
        if name not in defaults:
            raise UserError(f"--config {file}: there is no option {key}: leave it out, or take one of --help")
        if isinstance(defaults[name], bool) != isinstance(value, bool):
            kind = "true or false" if isinstance(defaults[name], bool) else "neither true nor false"
            raise UserError(f"--config {file}: {key} must be {kind}, not {value}")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None and not (file.name == "config.json" and name in ("run_dir", "resume")):
            words += [f"--{option}", *map(str, value if isinstance(defaults[name], tuple) else [value])]
    return words


def as_plain_dict(config: Any) -> dict[str, Any]:
    """Return the options as JSON and checkpoints take them: numbers, text and lists of them."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [plain(each) for each in value]
        return str(value) if isinstance(value, Path) else value

    return {name: plain(value) for name, value in asdict(config).items()}
