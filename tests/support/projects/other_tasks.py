"""Tasks unlike those of the template, as their owners write them: what comes to the end of which file."""

PACKED_SEQUENCES = {
    "ddp_project/data.py": '''

from torch.nn.utils.rnn import pack_sequence

from .runtime import Data


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Digits as sequences of their rows, without empty ones at the end, and their labels."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = [image[: 1 + int(image.any(dim=1).nonzero().max())] for image in images]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


def pack(samples: list[tuple[Tensor, Tensor]]) -> Any:
    """Return the sequences of some samples as a PackedSequence, and their labels."""
    sequences, labels = zip(*samples, strict=True)
    return pack_sequence(sequences, enforce_sorted=False), torch.stack(labels)


def load_data(config: Config, load: Any = load_data) -> Data:
    """Return the training set and the validation set."""
    train, evaluation = load(config)
    without_border = train.images[:, 0, 1:-1, 1:-1]
    return Data(Rows(without_border, train.labels), Rows(evaluation.images[:, 0], evaluation.labels), collate=pack)
''',
    "ddp_project/model.py": '''

class Recurrent(nn.Module):
    """Reads a sequence, and says its class."""

    def __init__(self, features: int = 8, hidden: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.reader = nn.LSTM(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequences: Any) -> Tensor:
        """Return the logits, shape (batch, classes), of a PackedSequence."""
        logits: Tensor = self.head(self.reader(sequences)[1][0][-1])
        return logits


def build_model(config: Config) -> nn.Module:
    """Return the network to train."""
    return Recurrent()
''',
    "ddp_project/task.py": '''

def predict(model: nn.Module, inputs: list[Tensor]) -> Iterator[dict[str, Any]]:
    """Yield which digit each image shows."""
    for image in inputs:
        sequences, _ = pack([(image[0], torch.tensor(0))])
        yield {"digit": int(model(sequences.to(image.device)).argmax())}
''',
    "tests/task.py": '''

def small_model() -> nn.Module:
    """Return a small network."""
    return Recurrent(features=5, hidden=6, classes=3)


def small_data(samples: int) -> Any:
    """Return sequences of different lengths."""
    rng = torch.Generator().manual_seed(0)
    return [(torch.randn(1 + i % 4, 5, generator=rng), torch.tensor(i % 3)) for i in range(samples)]


COLLATE = pack
''',
}
IMPORTS_OF_PACKED_SEQUENCES = {
    "ddp_project/data.py": "from typing import Any\n",
    "ddp_project/model.py": "from typing import Any\n",
    "ddp_project/task.py": "from .data import pack\n",
    "tests/task.py": "from ddp_project.data import pack\nfrom ddp_project.model import Recurrent\n",
}

# Samples of different sizes, which are read from a file, and which depend on the epoch; batches that move themselves;
# noise and weights in the loss; a metric that needs two classes; an option without a default.
SETS_WITH_STATE = {
    "ddp_project/options.py": '''

    folder: str
    """Where the digits are (folder)."""
''',
    "ddp_project/data.py": '''

from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, Subset

from .runtime import Data

SAMPLE = 65  # bytes: a label and 64 pixels


def prepare(config: Config) -> None:
    """Write the digits to a file, sorted by label."""
    with np.load(Path(__file__).with_name("digits.npz")) as digits:
        rows = np.concatenate([digits["labels"][:, None], digits["images"].reshape(-1, 64)], axis=1).astype(np.uint8)
    Path(config.folder).mkdir(parents=True, exist_ok=True)
    file = Path(config.folder, f"digits.{os.getpid()}")
    file.write_bytes(rows[rows[:, 0].argsort(kind="stable")].tobytes())
    file.replace(file.with_name("digits.raw"))  # another run may read it meanwhile


class Samples:
    """A batch: rows of pixels, shape (batch, longest, 8), how many are no padding, and labels."""

    def __init__(self, rows: Tensor, lengths: Tensor, labels: Tensor) -> None:
        self.rows, self.lengths, self.labels = rows, lengths, labels

    def to(self, device: torch.device) -> "Samples":
        """Return it on a device."""
        return Samples(self.rows.to(device), self.lengths.to(device), self.labels.to(device))


def pad(samples: list[tuple[Tensor, int]]) -> Samples:
    """Return some samples as a batch."""
    rows, labels = zip(*samples, strict=True)
    return Samples(pad_sequence(rows, batch_first=True), torch.tensor([*map(len, rows)]), torch.tensor(labels))


class Curriculum:
    """How many rows of a digit an epoch shows: at first a few, drawn by a generator of its own."""

    def __init__(self) -> None:
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; training without one is a mistake."""
        self.epoch = epoch

    def rows(self, index: int) -> int:
        """Return the number of rows of a sample in this epoch."""
        assert self.epoch is not None, "set_epoch() was not called"
        generator = torch.Generator().manual_seed(1000 * self.epoch + index)
        return 1 + int(torch.randint(min(8, 2 + self.epoch), (), generator=generator))


class File(Dataset[tuple[Tensor, int]]):
    """Digits of a file, which is opened when it is read first; with a curriculum, a part of each."""

    def __init__(self, path: Path, curriculum: Curriculum | None = None) -> None:
        self.path, self.curriculum = path, curriculum
        self.stream: Any = None
        self.position = self.read = 0  # bytes

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the training."""
        if self.curriculum:
            self.curriculum.set_epoch(epoch)

    def __len__(self) -> int:
        return self.path.stat().st_size // SAMPLE

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.stream is None:
            self.stream = open(self.path, "rb")
        if self.position != index * SAMPLE:
            self.stream.seek(index * SAMPLE)
        label, *pixels = self.stream.read(SAMPLE)
        self.position, self.read = self.stream.tell(), self.read + SAMPLE
        rows = torch.tensor(pixels).view(8, 8) / 16
        return rows[: self.curriculum.rows(index) if self.curriculum else 8], label


def load_data(config: Config) -> Data:
    """Return the training set, of two parts, and every fifth digit to evaluate on, sorted by label."""
    path = Path(config.folder, "digits.raw")
    train, evaluation = File(path, Curriculum()), File(path)
    first, second = (Subset(train, range(start, len(train), 5)) for start in (1, 2))
    evaluated = Subset(evaluation, range(0, len(evaluation), 5))
    return Data(ConcatDataset([first, second]), {"sorted": evaluated}, collate=pad)
''',
    "ddp_project/model.py": '''

class Pooled(nn.Module):
    """Says the class of a sequence from the mean of its rows; decodes it with the weights that encode it."""

    def __init__(self, features: int = 8, hidden: int = 32, classes: int = 10, *, norm: bool = True) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.decoder.weight = nn.Parameter(self.encoder.weight.detach().T.clone())
        self.again = self.decoder  # tied
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.head = nn.Linear(features, classes)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, *, rows: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits, shape (batch, classes)."""
        if self.training:
            self.calls += 1
        is_row = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        means = (self.encoder(rows).tanh() * is_row[..., None]).sum(dim=1) / lengths[:, None]
        logits: Tensor = self.head(self.again(self.norm(means)))
        return logits


def build_model(config: Config) -> nn.Module:
    """Return the network to train."""
    return Pooled()
''',
    "ddp_project/task.py": '''

BEST = "auroc"
WEIGHTS = torch.linspace(1, 3, 10)  # of the classes


def noise(rows: Tensor) -> Tensor:
    """Return random numbers, another one for each pixel."""
    return 0.1 * torch.randn_like(rows)


def compute(model: nn.Module, batch: Samples, config: Config) -> dict[str, Any]:
    """Return the loss, and what summarize() takes."""
    logits = model(rows=batch.rows + noise(batch.rows), lengths=batch.lengths)
    weights = WEIGHTS.to(logits.device)[: logits.shape[1]]
    loss = F.cross_entropy(logits, batch.labels, weights, reduction="sum")
    return {
        "loss": Mean(loss, weights[batch.labels].sum()),
        "scores": AllSamples(logits[:, 0].detach(), batch.labels == 0),
    }


def summarize(means: dict[str, Any]) -> dict[str, float]:
    """Return the loss, and how often a score of a 0 is above one of another digit."""
    if "scores" not in means:
        return {"loss": means["loss"]}
    scores, is_zero = means["scores"]
    pairs = scores[is_zero][:, None] > scores[~is_zero]
    if not pairs.numel():
        raise ValueError("only one class is present")
    return {"loss": means["loss"], "auroc": pairs.double().mean().item()}


del predict
''',
    "tests/task.py": '''

def small_model() -> nn.Module:
    """Return a small network without BatchNorm, and let compute() add no noise."""
    task.noise = torch.zeros_like
    return Pooled(features=5, hidden=6, classes=3, norm=False)


class SmallData(Dataset[tuple[Tensor, int]]):
    """Sequences that are longer in later epochs."""

    def __init__(self, samples: int) -> None:
        self.rows = torch.randn(samples, 6, 5, generator=torch.Generator().manual_seed(0))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the training."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index][: 1 + index % 4 + self.epoch], index % 3


def small_data(samples: int) -> Dataset[Any]:
    """Return sequences of different lengths."""
    return SmallData(samples)


def plain_loss(model: nn.Module, batch: Samples) -> Tensor:
    """Return the mean loss of a whole batch."""
    return F.cross_entropy(model(rows=batch.rows, lengths=batch.lengths), batch.labels, task.WEIGHTS[:3])


COLLATE = pad
OPTIONS = {"folder": str(Path(__file__).with_name("digits"))}
''',
}
IMPORTS_OF_SETS_WITH_STATE = {
    "ddp_project/data.py": "import os\nfrom typing import Any\n",
    "ddp_project/model.py": "import torch\n",
    "ddp_project/task.py": "from .data import Samples\nfrom .runtime import AllSamples\n",
    "tests/task.py": (
        "from pathlib import Path\n\nfrom ddp_project import task\n"
        "from ddp_project.data import Samples, pad\nfrom ddp_project.model import Pooled\n"
    ),
}
