"""What an option can be, and how the command line is read: all options are the fields of one dataclass, Config."""

import difflib
import io
import json
import math
import re
from argparse import ArgumentError, ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass, make_dataclass
from datetime import date, time, timedelta
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from .exits import UserError

DESCRIPTION = """Train on any number of processes. README.md says how to start them.
--config FILE takes options from JSON or YAML, such as config.json of another run; the command line overrides it.
--doctor examines what a run needs, and says what to mend. --help all shows the other options, too."""
PREDICT = """Predict from files with an exported model. Each prediction becomes a line of JSON, in the order of inputs.
After an interruption, the same command with --to resumes where it was. Further options are those of train.py."""
PATHS = "files, after the folder of an export (default: the newest one in runs/); @LIST: one path in each line of LIST"
OF_A_RUN = ("run_dir", "resume", "init_method")  # options
RUNS = Path("runs")
EXPORT = "export"  # a folder of the run directory
PLACE = "remote"  # a file of the run directory: the URL of its copy
ABOUT = "model.json"  # next to the weights of an export: what made them
NEWEST = "newest"
AUTO = "auto"
SEVERAL = (list, tuple, set, frozenset, Sequence)  # types of options that take several values
SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# What other programs call the options: typing one of these, or something close, gets a hint.
OTHER_NAMES = {
    "global_batch_size": "batch_size train_batch_size per_device_train_batch_size",
    "accum_steps": "gradient_accumulation_steps accumulate_grad_batches grad_accum",
    "lr": "learning_rate base_lr max_lr",
    "clip_norm": "max_grad_norm grad_clip gradient_clip_val",
    "epochs": "num_epochs max_epochs num_train_epochs",
    "precision": "fp16 bf16 amp mixed_precision dtype",
    "run_dir": "output_dir out_dir save_dir log_dir",
    "workers": "num_workers dataloader_num_workers",
    "log_every": "log_interval logging_steps",
    "eval_every": "eval_interval eval_steps",
    "save_every": "save_interval save_steps",
    "steps": "max_iters total_steps train_steps max_train_steps",
    "resume": "resume_from_checkpoint resume_from",
    "seed": "random_seed manual_seed",
    "weight_decay": "wd",
}
# What tyro says of a wrong value, and the same in fewer words.
PLAIN_WORDS = {
    "^Error parsing (--[^:]+): ": r"\1 ",
    "^Missing value for argument '(--.+)'.*": r"\1 needs a value",
    r"^invalid choice (.+) for argument '(--.+)'\. Expected one of \((.+)\)$": r"\2 must be one of \3, not \1",
}

T = TypeVar("T")


def at_least(
    minimum: int, number: Callable[[str], float] = int, *, below: float = math.inf, or_auto: bool = False
) -> PrimitiveConstructorSpec[Any]:
    """The command-line form of a number, at least minimum and below a limit, or of the word auto."""

    def parse_number(words: list[str]) -> float | str:
        if or_auto and words[0] == AUTO:
            return AUTO
        try:
            value = whole(words[0]) if number is int else number(words[0])
        except (ValueError, OverflowError):
            raise ValueError(f"needs a {'whole ' * (number is int)}number, not {words[0]!r}") from None
        if not minimum <= value < below:
            limit = f"below {below}" if value >= below else f"at least {minimum}"
            raise ValueError(f"must be {limit}, not {words[0]}")
        return value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="auto|" * or_auto + number.__name__.upper(),
        instance_from_str=parse_number,
        is_instance=lambda value: isinstance(value, (int, float)) or (or_auto and value == AUTO),
        str_from_instance=lambda value: [str(value)],
    )


def whole(text: str) -> int:
    """Return a whole number, which may be written as 1.0 or 1e3. Raises ValueError if it is none."""
    try:
        return int(text)
    except ValueError:
        if float(text).is_integer():
            return int(float(text))
        raise


def path_or_newest(words: list[str]) -> str:
    """Read what follows --resume: nothing, auto or one path."""
    if len(words) > 1:
        raise ValueError(f"takes one path, not {' and '.join(words)}")
    return words[0] if words else NEWEST


def interval(unit: str, *others: str, minimum: int = 1) -> PrimitiveConstructorSpec[Any]:
    """The command-line form of how often something is done: a number of this unit, or with a unit, such as 500steps."""
    names = {each.rstrip("s"): each for each in (unit, *others)}
    parse_number = at_least(minimum, below=2**40).instance_from_str

    def parse_interval(words: list[str]) -> int | str:
        number, name = re.findall("^(.*?) ?([a-z]{3,})?$", words[0], re.DOTALL)[0]
        if name and name.rstrip("s") not in names:
            raise ValueError(f"must be in {' or '.join(names.values())}, such as 2{unit}, not {words[0]!r}")
        value: int = parse_number([number])
        return f"{value}{names[name.rstrip('s')]}" if name else value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",  # --help tells the units
        instance_from_str=parse_interval,
        is_instance=lambda value: isinstance(value, (int, str)),
        str_from_instance=lambda value: [str(value)],
    )


PositiveInt = Annotated[int, at_least(1, below=2**40)]
NonNegativeInt = Annotated[int, at_least(0, below=2**63)]
Seconds = Annotated[int, at_least(0, below=2**31)]
NonNegativeIntOrAuto = Annotated[int | str, at_least(0, or_auto=True)]
NonNegativeFloat = Annotated[float, at_least(0, float)]
UnitFloat = Annotated[float, at_least(0, float, below=1)]
EvalInterval = Annotated[int | str, interval("epochs", "steps")]
LogInterval = Annotated[int | str, interval("steps", "epochs")]
SaveInterval = Annotated[int | str, interval("steps", "epochs", "min", minimum=0)]
OptionalPath = Annotated[str | None, tyro.conf.arg(metavar="PATH")]
ResumeFrom = Annotated[
    str | None,
    PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[auto|PATH]",
        instance_from_str=path_or_newest,
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [value] if value else [],
    ),
    tyro.conf.arg(help_behavior_hint="(default: a new run)"),
]

FIXED: Any = tyro.conf.Fixed[Any]  # type: ignore[misc]  # an option that --help does not show


def with_defaults_of(options: type) -> Callable[[type[T]], type[T]]:
    """Take from options the defaults of those that other bases of a class have, too; use it below @dataclass."""

    def decorate(config: type[T]) -> type[T]:
        others = {field.name for base in config.__bases__ if base is not options for field in fields(cast(Any, base))}
        kinds = get_type_hints(config, include_extras=True)
        for field in fields(options):
            if field.name in others:
                config.__annotations__[field.name] = kinds[field.name]
                setattr(config, field.name, copy(field))
        return config

    return decorate


def parse(config: type[T], arguments: Sequence[str] | None = None, *, quiet: bool = False) -> T:
    """Read the options from the command line, and those before them from the file of --config, if there is one.

    --doctor is left out, and a quiet rank leaves --help to others. Ends the process after --help. Raises UserError if
    an option is unknown or has an impossible value.
    """
    files = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    files.add_argument("--config", type=Path, action="append", default=[], metavar="FILE")
    files.add_argument("--doctor", action="store_true")  # read_options() looks for it
    try:
        given, words = files.parse_known_args(arguments)
    except ArgumentError as error:
        raise UserError(str(error)) from None
    if {"-h", "--help"} & {*words}:
        show_help(config, all_groups="all" in words, quiet=quiet)
    of_files: list[str] = []
    for file in given.config:
        of_file = words_of(file, config)
        try:
            parse_words(config, of_file, quiet=True)
        except UserError as error:
            raise UserError(f"--config {file}: {error}") from None
        of_files += of_file
    parsed = parse_words(config, of_files + without_values(words, config), quiet=quiet)
    check_replay(parsed, config)
    return parsed


def show_help(config: Any, *, all_groups: bool, quiet: bool) -> None:
    """Print the common options or all, in groups that are the bases of their class, and end the process."""
    shown: set[str] = set()
    defaults, groups = defaults_of(config), []
    for base in (*config.__bases__, config):  # you may have added options to the class itself
        names = {field.name for field in fields(base) if field.init}
        repeated = [(name, FIXED, None) for name in names & shown]
        group = make_dataclass(base.__name__, repeated, bases=(base,), frozen=True, kw_only=True)
        group.__doc__ = ""  # it would take two lines
        if names - shown and (all_groups or base in (*config.COMMON, config)):
            values = group(**{name: defaults[name] for name in names - shown})
            groups.append((base.__name__.lower().replace("options", "task"), group, values))
        shown |= names
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)
    help_of = make_dataclass("Config", groups)
    tyro.cli(help_of, description=DESCRIPTION, args=["--help"], console_outputs=not quiet, config=markers)


def defaults_of(config: Any) -> dict[str, Any]:
    """Return the default of each option; tyro.MISSING for options that must be given."""
    found = {}
    for field in fields(config):
        default = tyro.MISSING if field.default is MISSING else field.default
        found[field.name] = default if field.default_factory is MISSING else field.default_factory()
    return found


def parse_words(config: type[T], arguments: Sequence[str], *, quiet: bool) -> T:
    """Read the words of a command line. Raises UserError, which says what is wrong with them."""
    refuse_empty(arguments, config)
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(config, description=DESCRIPTION, args=arguments, console_outputs=not quiet)
    except SystemExit as leaving:
        if leaving.code == 0:
            raise
        # tyro draws a box with a title: take the words out of it.
        raise UserError(in_one_sentence(complaint.getvalue(), config)) from None


def without_values(words: Sequence[str], config: Any) -> list[str]:
    """Return the words with --name or --no-name for a switch that has a value, as in --name=true and --name false."""
    kinds, waiting, found = get_type_hints(config), [*words], []
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        is_switch = name.startswith("--") and kinds.get(name[2:].replace("-", "_")) is bool
        if is_switch and not equals and waiting and waiting[0].lower() in SWITCH:
            value = waiting.pop(0)
        if is_switch and value.lower() in SWITCH:
            word = name if SWITCH[value.lower()] else f"--no-{name[2:]}"
        found.append(word)
    return found


def refuse_empty(words: Sequence[str], config: Any) -> None:
    """Raise UserError if a path is empty, as that of a shell variable that is not set: it would be this folder."""
    kinds = get_type_hints(config, include_extras=True)
    texts = (OptionalPath, ResumeFrom)  # which are also paths
    paths = {name for name, kind in kinds.items() if kind in texts or Path in (kind, *get_args(kind))}
    for word, following in pairwise([*words, "--"]):
        option, equals, value = word.partition("=")
        is_path = option.startswith("--") and option[2:].replace("-", "_") in paths
        if is_path and not (value if equals else following):
            raise UserError(f"{option} is empty: give a value, or leave the option out")


def check_replay(parsed: Any, config: Any) -> None:
    """Raise UserError if an option could not be read again from config.json, and would be lost at the next start."""
    options = as_plain_dict(parsed)

    def is_replayed(names: Iterable[str]) -> bool:
        try:
            again = parse_words(config, words_from({name: options[name] for name in names}, config), quiet=True)
        except UserError:
            return False
        return all(repr(as_plain_dict(again)[name]) == repr(options[name]) for name in names)

    if not is_replayed(options):
        wrong = next((name for name in options if is_replayed(options.keys() - {name})), [*options][-1])
        kinds = "text, a number, a path, a date, an Enum, or tuples and dicts of them"
        raise UserError(f"--{wrong.replace('_', '-')} cannot be read again from config.json: let it be {kinds}")


def changed_from_defaults(config: Any) -> list[str]:
    """Return the options whose values are not their defaults, but for the places of the run."""
    defaults = defaults_of(type(config)) | {"run_dir": config.run_dir, "resume": config.resume}
    return [name for name, value in values_of(config).items() if value != defaults[name]]


def in_one_sentence(complaint: str, config: Any) -> str:
    """Return what tyro says of a wrong option, without its box, colours and help, and with a hint."""
    text = re.sub("[\u2500-\u257f]", " ", re.sub(r"\x1b\[[\d;]*m", "", complaint.partition("\n")[2]))
    text = re.split("Argument helptext:|Perhaps you meant:|Arguments similar to|For full help", text)[0]
    text = " ".join(text.split()).removesuffix(".")
    for pattern, words in PLAIN_WORDS.items():
        text = re.sub(pattern, words, text)
    if text.startswith("Missing from "):
        return f"give {' and '.join(re.findall(r'(--[a-z][^ ]*) [^a-z]', text))}: there is no default"
    if not (unknown := re.match("Unrecognized options: (.*)", text)):
        return text
    parts = [part.partition("=")[0] for part in unknown[1].split(", ")]
    options = [part for part in parts if re.match("-+[A-Za-z]", part)] or parts  # the others are values
    hints = [f"--{hint.replace('_', '-')}" for option in options if (hint := similar_option(option.strip("-"), config))]
    advice = f"did you mean {', '.join(hints)}?" if hints else "see --help"
    return f"there is no option {', '.join(options)}: {advice}"


def similar_option(name: str, config: Any) -> str | None:
    """Return the option that is closest to an unknown name."""
    options = [field.name for field in fields(config)]
    meant = {other: option for option in options for other in OTHER_NAMES.get(option, "").split()}
    meant |= {option: option for option in (*options, "config", "doctor")}
    close = difflib.get_close_matches(name.lower().replace("-", "_").removeprefix("no_"), meant, n=1, cutoff=0.66)
    return meant[close[0]] if close else None


def words_of(file: Path, config: Any) -> list[str]:
    """Return the options of a JSON or YAML file as words of a command line. Raises UserError if there are others.

    The config.json of a run does not name its directory, what it went on from and where its ranks met: these belong to
    that run alone. Nor does the file of an export say how many processes to start, and for how long.
    """
    try:
        found = load(file.read_text(encoding="utf-8-sig"), is_json=file.suffix == ".json")
    except (OSError, ValueError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise UserError(f"--config {file} cannot be read: {reason}") from None
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise UserError(f"--config {file} does not hold options and their values, as config.json of a run does")
    if file.name == ABOUT:  # of another version, which may have had other options
        found = {name: value for name, value in found.get("options", {}).items() if name in defaults_of(config)}
    own = {"config.json": OF_A_RUN, ABOUT: (*OF_A_RUN, "nproc", "max_hours")}.get(file.name, ())
    try:
        return words_from({key: value for key, value in found.items() if key not in own}, config)
    except UserError as error:
        raise UserError(f"--config {file}: {error}") from None


def words_of_run(words: Sequence[str]) -> list[str]:
    """Return the options of a run, with its weights as those to begin with, and then the other words.

    The first word is its folder, or a checkpoint in it, unless it is an option: then it is the newest run.
    """
    if {"-h", "--help"} & {*words}:
        return [*words]
    if words and not words[0].startswith("-"):
        from .remote import here  # not at the top: most programs do without it

        path, words = here(Path(words[0])), words[1:]
    else:
        from .checkpoint import newest_run  # not at the top: it imports torch

        path = newest_run() or RUNS
    run_dir, weights = (path.parent.parent, path) if path.is_file() else (path, path / "checkpoints" / "best.pt")
    return [f"--config={run_dir / 'config.json'}", *words, f"--init-from={weights}"]


@dataclass
class PredictArguments:
    """What predict.py is asked for."""

    folder: Path = Path()  # of an export
    files: Sequence[Path] = ()
    to: Path | None = None  # None: the screen
    batch_size: int = 64

    def read(self, words: Sequence[str]) -> list[str]:
        """Take what is asked for from the words of a command line.

        Returns words for train.py: the options that the model was trained with, and those that are left. Raises
        UserError if something is missing.
        """
        parser = PredictParser(description=PREDICT, fromfile_prefix_chars="@", allow_abbrev=False)
        number = f"inputs that a rank predicts at once (default: {self.batch_size})"
        parser.add_argument("files", nargs="+", type=Path, metavar="PATH", help=PATHS)
        parser.add_argument("--to", type=Path, metavar="FILE", help="write to this file, not to the screen")
        parser.add_argument("--batch-size", type=int, default=self.batch_size, metavar="N", help=number)
        _, others = parser.parse_known_args(words, namespace=self)
        if others:  # of an option of train.py, the value would be taken for a file
            try:
                parser.parse_known_args(words[: words.index(others[0])])
            except UserError as error:
                raise UserError(f"name the files before {others[0]}") from error
        if self.batch_size < 1:
            raise UserError(f"--batch-size must be at least 1, not {self.batch_size}")
        named = self.files[0].is_dir()
        self.folder, self.files = self.files[0] if named else newest_export(), self.files[named:]
        if not self.files:
            raise UserError(f"name files behind {self.folder}, to predict from")
        if not (about := self.folder / ABOUT).is_file():
            raise UserError(f"{self.folder} does not hold {ABOUT}: name a folder that export.py has written")
        return [f"--config={about}", *others]


class PredictParser(ArgumentParser):
    """Reads the command line of predict.py."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Return the word of a line of a list; an empty line has none."""
        return [arg_line] if arg_line.strip() else []

    def error(self, message: str) -> NoReturn:
        """Leave it to the caller to say what is wrong."""
        raise UserError(f"{message}: see --help")


def newest_export() -> Path:
    """Return the folder of the newest export in runs/. Raises UserError if there is none."""
    found = sorted(RUNS.glob(f"*/{EXPORT}/{ABOUT}"), key=lambda file: file.stat().st_mtime_ns)
    if not found:
        raise UserError(f"there is no export in {RUNS.absolute()}: export.py writes one, or name its folder first")
    return found[-1].parent


def remote_place(run_dir: Path) -> str | None:
    """Return the URL that --run-dir names, such as s3://bucket/run; None if it is a folder of this machine."""
    found = re.fullmatch("([A-Za-z][A-Za-z0-9+]+):/(.+)", str(run_dir))  # a path has no double slashes
    return found and f"{found[1].lower()}://{'/' * (found[1].lower() == 'file')}{found[2]}"


def local_run_dir(run_dir: Path) -> Path:
    """Return the folder of this machine for --run-dir."""
    url = remote_place(run_dir)
    return RUNS / url.partition("://")[2].strip("/").replace("/", "-") if url else run_dir


def copied_to(run_dir: Path) -> str | None:
    """Return the URL to which a run is copied, if it is; not for a copy of the run directory."""
    place = run_dir / PLACE
    url = place.read_text() if place.is_file() else ""
    return url if url and local_run_dir(Path(url)).resolve() == run_dir.resolve() else None


def words_from(found: Mapping[Any, Any], config: Any) -> list[str]:
    """Return options and their values as words of a command line. Raises UserError if there are others."""
    defaults = defaults_of(config)
    computed = {field.name for field in fields(config) if not field.init}
    kinds, words = get_type_hints(config), {}
    for key, value in found.items():
        name = str(key).replace("-", "_")
        if name not in defaults:
            hint = similar_option(name, config)
            advice = f"did you mean {hint}?" if hint and hint != name else "leave it out, or take one of --help"
            raise UserError(f"there is no option {key}: {advice}")
        if name in words:
            raise UserError(f"{key} is there twice")
        try:
            words[name] = words_for(name.replace("_", "-"), value, kinds[name], defaults[name])
        except ValueError as error:
            raise UserError(f"{key} {error}") from None
    return [word for name, parts in words.items() if name not in computed for word in parts]


def load(text: str, *, is_json: bool) -> Any:
    """Read JSON, or else YAML whose values stay the text that one sees: 0123 is no 83. Raises ValueError."""

    def mapping(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{key} is there twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError:
        if is_json:
            raise
    import yaml  # not at the top: it would take a tenth of the time of --help

    class Loader(yaml.SafeLoader):
        # Besides text, YAML has nothing here but null, and << that merges.
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, form) for tag, form in resolvers if tag.endswith((":null", ":merge"))]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping((str(key.value), value) for key, value in node.value)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def words_for(option: str, value: Any, kind: Any, default: Any) -> list[str]:
    """Return an option and its value as words of the command line. Raises ValueError if it cannot be of this kind."""
    kinds = {kind, *get_args(kind)}
    if isinstance(value, dict) and ((isinstance(default, dict) and default) or is_dataclass(kind)):
        inner = get_type_hints(kind) if is_dataclass(kind) else dict.fromkeys(value, (get_args(kind) or [str])[-1])
        return [word for key in value for word in words_for(f"{option}.{key}", value[key], inner.get(key), MISSING)]
    if value is None and default is None:
        return []
    if value is None and type(None) not in kinds:
        raise ValueError("has no value")
    several = any((get_origin(each) or each) in (*SEVERAL, dict) for each in kinds)
    if isinstance(value, list | dict) and not several:
        raise ValueError(f"must be one value, not {value}")
    texts = [text_for(each, kinds) for each in flat(value)]
    if kind is bool and texts == ["False"]:
        return ["--" + re.sub(r"([^.]*)$", r"no-\1", option, count=1)]
    if kind is bool:
        return [f"--{option}"]
    return [f"--{option}={texts[0]}"] if len(texts) == 1 else [f"--{option}", *texts]


def text_for(value: Any, kinds: set[Any]) -> str:
    """Return a value of a file as the command line takes it for these kinds. Raises ValueError if it is of no such."""
    text = str(value)
    if bool in kinds and text.lower() in SWITCH:
        return str(SWITCH[text.lower()])
    if kinds == {bool}:
        raise ValueError(f"must be true or false, not {value}")
    if isinstance(value, bool):
        raise ValueError(f"must be neither true nor false, not {value}")
    if int in kinds and not kinds & {float, str} and not text.lstrip("+-").isdigit():
        with suppress(ValueError, OverflowError):
            return str(whole(text))
    return text


def flat(value: Any) -> list[Any]:
    """Return the values of nested lists, and the keys and values of a mapping, one after the other."""
    if isinstance(value, dict):
        value = [each for pair in value.items() for each in pair]
    return [inner for each in value for inner in flat(each)] if isinstance(value, list) else [value]


def values_of(options: Any) -> dict[str, Any]:
    """Return the options by their names, as they are."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def as_plain_dict(config: Any) -> dict[str, Any]:
    """Return the options as JSON, checkpoints and --config take them. Raises UserError if a value cannot be so."""

    def as_json(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value  # of NumPy
        if isinstance(value, Enum):
            return value.name
        value = values_of(value) if is_dataclass(value) else value
        if isinstance(value, dict):
            return {as_json(key): as_json(each) for key, each in value.items()}
        if isinstance(value, tuple | list | set | frozenset):
            return [as_json(each) for each in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
        if isinstance(value, Path | date | time):
            return str(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        for kind in (bool, int, float, str):  # also of their subclasses, which torch.load() refuses
            if isinstance(value, kind):
                return kind(value)
        if value is None:
            return None
        raise TypeError(type(value).__name__)

    found = {}
    for name, value in values_of(config).items():
        try:
            found[name] = as_json(value)
        except TypeError as error:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is of type {error}, which config.json cannot hold: make it text") from None
    return found
