"""What predict.py does: the ranks share the inputs, and rank 0 writes all predictions, in order, as they come."""

import json
import os
import signal
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

from .. import task
from ..config import Config
from .cli import ABOUT, OF_A_RUN, as_plain_dict
from .collectives import gather, on_all_ranks, on_rank_zero, raise_first
from .data_loading import EvaluationLoader
from .exits import ExitCode, StopSignals, UserError, in_one_line, raise_if_out_of_memory
from .launcher import DistEnv
from .sampling import Batch
from .seeding import code_digests, seed_generators
from .storage import atomic_write, lock, sha256_of_json
from .task_functions import optional

TOLD_EVERY = 60.0  # seconds between two lines that say how far it is
# Options that change no prediction, or only how it is rounded.
OF_THE_MACHINE = (*OF_A_RUN, "nproc", "workers", "timeout", "max_hours", "device", "backend")
SHARE = 0.05  # of the time, at most, that noting the place on the disk may take


class Inputs(Dataset[tuple[str, Any]]):
    """The inputs of all files, each with its file: what read_inputs() of task.py returns, or else the files."""

    def __init__(self, model: nn.Module, files: Sequence[Path], export: Path, config: Config) -> None:
        """Find the inputs for the model of an export.

        Raises UserError if a file cannot be read, or if task.py has no predict().
        """
        if optional("predict") is None:
            signature = "def predict(model: nn.Module, inputs: list[Any]) -> Iterator[dict[str, Any]]"
            raise UserError(f"{task.__file__} lacks {signature}: add it, to yield the prediction for each input")
        self.forms = [form_of(file) for file in files]  # as they are now: somebody may change them meanwhile
        self.parts = [inputs_of(model, file) for file in files]
        options = {name: value for name, value in as_plain_dict(config).items() if name not in OF_THE_MACHINE}
        self.model_sha256 = json.loads((export / ABOUT).read_text()).get("sha256")
        self.rules = [self.model_sha256, code_digests(), options]
        self.ends = [*accumulate(map(len, self.parts))]
        self.in_memory = all(isinstance(part, Tensor | np.ndarray | list) for part in self.parts)

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> tuple[str, Any]:
        which = bisect_right(self.ends, index)
        part = self.parts[which]
        return self.forms[which][0], part[index - self.ends[which] + len(part)]

    def digest(self, first: int) -> str:
        """Return a digest of what decides the first predictions: their files, the model, the code and the options."""
        return sha256_of_json([self.forms[: bisect_left(self.ends, first) + 1], self.rules])


def form_of(file: Path) -> tuple[str, int, int]:
    """Return the name of a file, its size and its time. Raises UserError if there is no such file."""
    try:
        found = file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    return str(file), found.st_size, found.st_mtime_ns


def inputs_of(model: nn.Module, file: Path) -> Any:
    """Return the inputs of a file as something with a length. Raises UserError if there are none to be read."""
    read = optional("read_inputs")
    try:
        found = [file] if read is None else read(model, file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    if found is None or isinstance(found, Mapping) or getattr(found, "ndim", 1) == 0:
        raise UserError(f"task.py: read_inputs() must return a list of inputs, not {type(found).__name__}")
    return found if hasattr(found, "__len__") and hasattr(found, "__getitem__") else [*found]


def inputs_on_all_ranks(model: nn.Module, files: Sequence[Path], export: Path, config: Config) -> Inputs:
    """Return the inputs of files. Raises UserError on every rank if one cannot read them, or finds others."""
    inputs = on_all_ranks(lambda: Inputs(model, files, export, config))
    lengths, models = zip(*gather((sha256_of_json(inputs.ends), inputs.model_sha256)), strict=True)
    if len({*models}) > 1:
        raise UserError(f"ranks have different models in {export}: name the folder of an export that all nodes share")
    if len({*lengths}) > 1:
        raise UserError("ranks find different numbers of inputs: give each node the same files")
    return inputs


class InputSampler(Sampler[Batch]):
    """Deals inputs out to the ranks in their order, from some place on: batch i of rank k of r is batch i*r + k of all.

    So any number of ranks computes the same batches. A rank that has none left gets the last input, which does not
    count.
    """

    def __init__(self, start: int, inputs: int, batch_size: int, env: DistEnv, seed: int) -> None:
        self.starts = range(start, inputs, batch_size)
        self.inputs, self.batch_size, self.env, self.seed = inputs, batch_size, env, seed

    def __len__(self) -> int:
        """Batches of each rank."""
        return -(-len(self.starts) // self.env.world_size)

    def __iter__(self) -> Iterator[Batch]:
        for i in range(self.env.rank, len(self) * self.env.world_size, self.env.world_size):
            counts = i < len(self.starts)
            first = self.starts[i] if counts else self.inputs - 1
            yield Batch([*range(first, min(first + self.batch_size, self.inputs))], (self.seed, first), counts)


class InputLoader(EvaluationLoader):
    """This rank's batches of the inputs from some place on: lists of pairs, the file and the input."""

    phase = "predicting"

    def __init__(
        self, inputs: Inputs, start: int, batch_size: int, config: Config, env: DistEnv, device: torch.device
    ) -> None:
        super().__init__(inputs, InputSampler(start, len(inputs), batch_size, env, config.seed), config, device, list)


class Step(NamedTuple):
    """What a rank has of one batch."""

    lines: bytes = b""
    inputs: int = 0  # that the lines are for
    problem: str | None = None
    stops: bool = False  # a signal asks to


class PredictionFile:
    """Lines on the screen or in FILE.part, which gets the name FILE when it is complete. Rank 0 writes it.

    FILE.part.json says how many inputs have their lines, so that the next start goes on there: if the files of these
    inputs, the model, the code and the options are still the same.
    """

    def __init__(self, to: Path | None, inputs: Inputs) -> None:
        """Go on with a file of the same inputs and model, or begin one. Raises UserError if it cannot be written."""
        self.to, self.whole, self.digest = to and to.resolve(), len(inputs), inputs.digest
        self.files = {Path(name).resolve() for name, *_ in inputs.forms}
        self.inputs = self.bytes = 0  # that are written
        self.stream: BinaryIO | None = None if dist.get_rank() else sys.stdout.buffer
        self.noted, self.took = time.monotonic(), 0.0  # when the place was noted, and how long that took
        self.told = self.noted
        if self.to is None:
            if dist.get_world_size() == 1:
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end in silence if head has seen enough
            return
        name = f"{self.to.name}.part"
        self.part, self.place = self.to.with_name(name), self.to.with_name(f"{name}.json")
        self.inputs = on_rank_zero(self._open)

    def _open(self) -> int:
        """Open the file at the place up to which it is good, and return the inputs that have their lines."""
        assert self.to is not None
        if self.to in self.files:
            raise UserError(f"--to {self.to} is one of the inputs: name another file")
        if self.to.exists() and not self.to.is_file():
            raise UserError(f"--to {self.to} is {'a folder' if self.to.is_dir() else 'no file'}: name a file")
        try:
            self.stream = open(self.part, "ab")  # noqa: SIM115
            if not lock(self.stream.fileno()) or not os.path.samestat(os.fstat(self.stream.fileno()), self.part.stat()):
                raise UserError(f"another program writes to {self.part}: wait for it, or give another --to")
            with suppress(FileNotFoundError, ValueError, LookupError, TypeError):  # another file is no place
                said = json.loads(self.place.read_text())
                if said["digest"] == self.digest(said["inputs"]) and said["bytes"] <= self.part.stat().st_size:
                    self.inputs, self.bytes = said["inputs"], said["bytes"]
            if not self.inputs and self.part.stat().st_size:
                print(f"{self.part} is of other files, options, code or another model: it begins anew", file=sys.stderr)
            self.stream.truncate(self.bytes)
        except OSError as error:
            raise self._unwritten(error) from error
        if self.inputs:
            print(f"going on after {self.inputs} of {self.whole} inputs", file=sys.stderr)
        return self.inputs

    def add(self, steps: Sequence[Step]) -> None:
        """Write the lines of all ranks, up to one that has none; rank 0 does. Raises UserError if the disk is full."""
        if self.stream is None:
            return
        good = [*takewhile(lambda step: step.problem is None, steps)]
        lines = b"".join(step.lines for step in good)
        try:
            self.stream.write(lines)
            self.stream.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        self.inputs, self.bytes = self.inputs + sum(step.inputs for step in good), self.bytes + len(lines)
        now = time.monotonic()
        if self.to and now - self.noted > self.took / SHARE:
            self.note()
        if self.to and now - self.told > TOLD_EVERY:
            print(f"{self.inputs} of {self.whole} inputs", file=sys.stderr)
            self.told = now

    def note(self) -> None:
        """Note the place, once the disk has the lines. Raises UserError if it does not take them."""
        began = time.monotonic()
        assert self.stream is not None
        try:
            os.fsync(self.stream.fileno())
        except OSError as error:
            raise self._unwritten(error) from error
        said = {"inputs": self.inputs, "bytes": self.bytes, "digest": self.digest(self.inputs)}
        with atomic_write(self.place) as file:
            file.write((json.dumps(said) + "\n").encode())
        self.noted = time.monotonic()
        self.took = self.noted - began

    def finish(self) -> bool:
        """Give the file its name, if it is complete, and return whether it is. Raises UserError if it cannot be."""
        is_complete = self.inputs == self.whole
        if not is_complete:
            advice = "; the same command goes on from here" if self.to else ""
            print(f"ends after {self.inputs} of {self.whole} inputs{advice}", file=sys.stderr)
        if self.to is None:
            return is_complete
        self.note()
        if not is_complete:
            return False
        try:
            os.replace(self.part, self.to)
            self.place.unlink()
        except OSError as error:
            raise self._unwritten(error) from error
        return True

    def _unwritten(self, error: OSError) -> UserError:
        return UserError(f"{self.part if self.to else 'the screen'} could not be written: {error.strerror}")


def predict(model: nn.Module, batches: InputLoader, file: PredictionFile, signals: StopSignals) -> ExitCode:
    """Write the predictions for all batches, in the order of the inputs, or until a signal asks to stop.

    Raises UserError on every rank if one cannot load its inputs, or if rank 0 cannot write. The lines until then stay.
    """
    of_rank, steps = iter(batches), [Step()]
    for batch in batches.sampler:
        own = Step()
        try:
            file.add(steps)
            seed_generators(hash(batch.rng_key))  # so predict() draws the same numbers on any number of ranks
            lines, inputs = lines_of(model, *next(of_rank))
            own = Step(lines, inputs)
        except UserError as error:
            own = Step(problem=str(error))
        except OSError as error:  # of a predict() that reads files
            unread = f"{error.filename} cannot be read: {error.strerror}"
            own = Step(problem=unread if error.filename else f"task.py: predict(): {in_one_line(error)}")
        except Exception as error:
            raise_if_out_of_memory(error, dist.get_rank(), "lower --batch-size")
            raise
        steps = gather(own._replace(stops=signals.received))
        if any(step.stops or step.problem for step in steps):
            break
    on_rank_zero(lambda: file.add(steps))
    is_complete = on_rank_zero(file.finish)
    raise_first(step.problem for step in steps)
    return ExitCode.DONE if is_complete else ExitCode.STOPPED


def lines_of(model: nn.Module, batch: list[tuple[str, Any]], counts: bool) -> tuple[bytes, int]:
    """Return a line of JSON for each prediction, and the number of inputs. Raises UserError if predict() is wrong."""
    ask = optional("predict")
    assert ask is not None
    if optional("read_inputs") is None:
        found = [(file, each) for file, input in batch for each in ask(model, input)]
    else:
        files, inputs = zip(*batch, strict=True)
        answers = [*(ask(model, [*inputs]) or ())]
        if len(answers) != len(files):
            wrong = f"yields {len(answers)} predictions for {len(files)} inputs"
            raise UserError(f"task.py: predict() {wrong}: let it yield one for each")
        found = [*zip(files, answers, strict=True)]
    lines = "".join(line_of(file, answer) for file, answer in found)
    return (lines.encode(), len(batch)) if counts else (b"", 0)


def as_list(value: Any) -> Any:
    """Return values of NumPy and torch as lists and numbers. Raises TypeError for others."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")


AS_JSON = json.JSONEncoder(allow_nan=False, default=as_list)


def line_of(file: str, answer: Any) -> str:
    """Return a prediction as a line of JSON. Raises UserError if it cannot be one."""
    if not isinstance(answer, Mapping):
        raise UserError(f"task.py: predict() must yield dicts, not {type(answer).__name__}")
    try:
        try:
            return AS_JSON.encode({"file": file, **answer}) + "\n"
        except ValueError:  # a number is not finite, which JSON does not have
            plain = json.loads(json.dumps(answer, default=as_list), parse_constant=lambda name: None)
            return AS_JSON.encode({"file": file, **plain}) + "\n"
    except (TypeError, ValueError) as error:
        raise UserError(f"task.py: predict() yields what JSON does not have: {error}") from error
