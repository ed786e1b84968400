"""What owners do to their projects: edits of any version of the template that has the lines that they go between."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.versions import replace
from tools.rewriting import Rewrite, extend

MODEL = '''"""A perceptron."""

from torch import Tensor, nn


class Perceptron(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, 1, 6, 6) to (batch, 4)."""
        logits: Tensor = self.head(self.body(images))
        return logits


def build_model() -> nn.Module:
    """Give a network with random weights."""
    model = Perceptron()
    model.body[1] = nn.Linear(36, 32)
    return model
'''

DATA = '''"""Bright quarters of small images."""

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


def quarters(samples: int, seed: int) -> TensorDataset:
    """Give images (samples, 1, 6, 6) and which of their quarters is bright."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (samples,), generator=draw)
    images: Tensor = torch.rand(samples, 1, 6, 6, generator=draw) / 2
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 3 * (label // 2), 3 * (label % 2)
        image[:, row : row + 3, column : column + 3] += 0.5
    return TensorDataset(images, labels)


def load_data(config: object) -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the validation set."""
    return quarters(400, seed=1), quarters(100, seed=2)
'''


def another_model(project: Path) -> None:
    (project / "ddp_project" / "model.py").write_text(MODEL)


def another_data_set(project: Path) -> None:
    (project / "ddp_project" / "data.py").write_text(DATA)
    (project / "ddp_project" / "digits.npz").unlink(missing_ok=True)


AVERAGED_WEIGHTS = (
    Rewrite("import torch", "{}\nfrom torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn"),
    Rewrite(
        "self.optimizer = task.build_optimizer($$$A)",
        "{}\nself.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))",
        "Run.__init__",
    ),
    Rewrite("$M.Checkpoints($$$PARTS)", "$M.Checkpoints($$$PARTS, average=self.average)", "Run.__init__"),
    Rewrite("run.update.zero_grad()", "{}\nrun.average.update_parameters(run.model)", "train_step"),
)


def averaged_weights(project: Path) -> None:
    for edit in AVERAGED_WEIGHTS:
        edit.apply(project / "train.py")


def new_option(project: Path) -> None:
    option = (
        'label_smoothing: NonNegativeFloat = 0.0\n"""Share of each label that is spread over all classes (fraction)."""'
    )
    file = project / "ddp_project" / "config.py"
    extend(file, "    " + option.replace("\n", "\n    ") + "\n")


def added_metric(project: Path) -> None:
    error = '{},\n"error": Mean((logits.argmax(dim=1) != labels).sum(), len(labels))'
    Rewrite('"accuracy": $X', error, "compute").apply(project / "ddp_project" / "task.py")


def early_end(project: Path) -> None:
    Rewrite(
        "run.progress.start_next_epoch()",
        "if run.progress.is_best() and run.progress.best > 0.999:\n    logging.info('good enough')\n{}",
        "finish_step",
    ).apply(project / "train.py")


def added_dependency(project: Path) -> None:
    replace(project / "pyproject.toml", '    "tyro>=1.0",\n', '    "tyro>=1.0",\n    "einops>=0.8",\n')


def renamed_readme(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "README.md").rename(project / "docs" / "training.md")


def own_file(project: Path) -> None:
    (project / "notes.md").write_text("# What I tried\n")
    replace(project / ".gitignore", "runs/\n", "runs/\nscratch/\n")


EDITS: Mapping[str, Callable[[Path], None]] = {
    edit.__name__: edit
    for edit in (
        another_model,
        another_data_set,
        averaged_weights,
        new_option,
        added_metric,
        early_end,
        added_dependency,
        renamed_readme,
        own_file,
    )
}
