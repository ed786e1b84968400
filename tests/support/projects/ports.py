"""What owners do to make a project theirs, honestly: its own tests must pass after each of these edits."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.processes import hang_timeout
from tools.rewriting import Rewrite, extend

PACKAGE = "ddp_project"

# Every option with another default than the template's, but for those of a launcher. Some would end a run at once, or
# need what this machine lacks.
OTHER_DEFAULTS: dict[str, object] = {
    "epochs": 1,
    "max_steps": 3,
    "global_batch_size": 2,
    "accum_steps": 3,
    "lr": 1e-4,
    "warmup_steps": 1000,
    "weight_decay": 0.5,
    "clip_norm": 0.01,
    "ema_decay": 0.99,
    "seed": 123_456,
    "deterministic": True,
    "workers": 1,
    "log_every": 7,
    "eval_every": 3,
    "patience": 1,
    "save_every": 1,
    "async_saves": True,
    "max_hours": 1e-9,
    "max_bad_steps": 1,
    "keep": 1,
    "run_dir": Path("elsewhere"),
    "resume": "auto",
    "init_from": "pretrained.safetensors",
    "device": "cuda",
    "precision": "tf32",
    "backend": "nccl",
    "find_unused_parameters": True,
    "static_graph": False,  # which does not go with unused parameters
    "bucket_mib": 1,
    "bf16_gradients": True,
    "timeout": 1,
    "profile": True,
    "channels_last": True,
    "compile": True,
}


def failures(project: Path, *tests: str) -> str:
    """Run tests of a project, or all, and return what they say if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=hang_timeout(120))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def options(project: Path, defaults: Mapping[str, object]) -> None:
    """Give options other defaults, in the documented way."""
    imports = "from pathlib import Path\n" if any(isinstance(value, Path) for value in defaults.values()) else ""
    lines = "".join(f"    {name}: object = {value!r}\n" for name, value in defaults.items())
    extend(project / PACKAGE / "options.py", f"\n{lines}".replace("PosixPath", "Path"), imports=imports)


def other_defaults(project: Path) -> None:
    save_file({"features.0.1.bias": torch.zeros(32)}, project / str(OTHER_DEFAULTS["init_from"]))
    options(project, OTHER_DEFAULTS)


def static_graph(project: Path) -> None:
    options(project, {"static_graph": True})


def in_compute(project: Path, pattern: str, replacement: str) -> None:
    Rewrite(pattern, replacement, "compute").apply(project / PACKAGE / "task.py")


def in_small_task(project: Path, code: str, *, imports: str = "") -> None:
    """Replace functions of tests/task.py: the last definition of a name counts."""
    extend(project / "tests" / "task.py", f"\n\n{code}", imports=imports)


def smoothing_in_training(project: Path) -> None:
    """Smooth the labels while the model trains, and only then."""
    smoothing = "label_smoothing=0.1 * model.training"
    in_compute(project, "F.cross_entropy($$$A, reduction=$X)", f'F.cross_entropy($$$A, reduction="sum", {smoothing})')
    plain = Rewrite("F.cross_entropy($$$A)", f"F.cross_entropy($$$A, {smoothing})", "plain_loss")
    plain.apply(project / "tests" / "task.py")


def metric_without_samples(project: Path) -> None:
    """Record a metric that has no samples in training, and so is NaN there; and sums instead of means."""
    more = """{},
"hard": Mean(0.0, 0) if model.training else Mean(len(labels), len(labels)),
"unknown": Mean(torch.tensor(float("nan")), len(labels)),
"labels": Mean(torch.bincount(labels, minlength=10), len(labels))"""
    in_compute(project, '"accuracy": $X', more)
    summarize = """

def summarize(means):
    return means | {"labels": float(means["labels"].sum())}
"""
    extend(project / PACKAGE / "task.py", summarize)


def another_best(project: Path) -> None:
    """Let the loss decide, and predict nothing."""
    file = project / PACKAGE / "task.py"
    Rewrite("BEST = $X", 'BEST = "loss"').apply(file)
    Rewrite("HIGHER_IS_BETTER = $X", "HIGHER_IS_BETTER = False").apply(file)
    extend(file, "\n\ndel predict\n")


def asks_for_the_rank(project: Path) -> None:
    """Use the process group in compute()."""
    in_compute(project, '"accuracy": $X', '{},\n"ranks": Mean(float(torch.distributed.get_rank() >= 0), 1)')


CYCLE = """torch.optim.lr_scheduler.OneCycleLR(
    self.optimizer, max_lr=config.lr, total_steps=1000, base_momentum=0.5, pct_start=0.01
)"""


def scheduler(project: Path) -> None:
    """Follow a scheduler of PyTorch, which changes more than the learning rate, and delete lr_at()."""
    train = project / "train.py"
    Rewrite("self.optimizer = $X", f"{{}}\nself.scheduler = {CYCLE}", "Run.__init__").apply(train)
    Rewrite(
        "$M.Checkpoints($$$PARTS, optimizer=$X, $$$REST)",
        "$M.Checkpoints($$$PARTS, optimizer=$X, scheduler=self.scheduler, $$$REST)",
    ).apply(train)
    Rewrite("lr = float(task.lr_at($$$A))", "lr = run.scheduler.get_last_lr()[0]").apply(train)
    Rewrite('for group in run.optimizer.param_groups:\n    group["lr"] = $X', "").apply(train)
    Rewrite("run.progress.advance($$$A)", "{}\nrun.scheduler.step()", "train_step").apply(train)
    extend(project / PACKAGE / "task.py", "\n\ndel lr_at\n")


def renamed_schedule(project: Path) -> None:
    """Compute the learning rate by another function, from the epoch."""
    extend(
        project / PACKAGE / "task.py",
        "\n\ndel lr_at\n\n\ndef lr_of_epoch(epoch, config):\n    return config.lr / 2**epoch\n",
    )
    lr = "lr = task.lr_of_epoch(progress.epoch, config)"
    Rewrite("lr = float(task.lr_at($$$A))", lr).apply(project / "train.py")


DATA = """
import torch
from torch.utils.data import Dataset


class Sentences(Dataset):
    \"\"\"Sentences of different lengths, which become a batch here alone.\"\"\"

    classes = ("few", "many")
    position = 0
    temperature = 1.0

    def __init__(self, samples):
        draw = torch.Generator().manual_seed(samples)
        lengths = torch.randint(1, 9, (samples,), generator=draw).tolist()
        self.sentences = [torch.rand(length, generator=draw) for length in lengths]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]

    def __getitems__(self, indices):
        chosen = [self[index] for index in indices]
        padded = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        padded = torch.nn.functional.pad(padded, (0, 8 - padded.shape[1]))
        return {"sentences": padded, "lengths": torch.tensor([len(each) for each in chosen])}

    def set_epoch(self, epoch):
        self.position = epoch
"""
LOAD_SENTENCES = """

def load_data(config):
    return Sentences(40), Sentences(10)
"""
SENTENCE_MODEL = """
from torch import nn


def build_model():
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
"""
SENTENCE_LOSS = """

def compute(model, batch):
    labels = (batch["lengths"] > 4).long()
    logits = model(batch["sentences"])
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return {"loss": Mean(loss, len(labels)), "accuracy": Mean((logits.argmax(1) == labels).sum(), len(labels))}
"""
SMALL_SENTENCES = """def small_model():
    return nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 2))


def small_data(samples):
    from ddp_project.data import Sentences

    return Sentences(samples)


def plain_loss(model, batch):
    return F.cross_entropy(model(batch["sentences"]), (batch["lengths"] > 4).long())
"""


def uneven_samples(project: Path) -> None:
    """Bring few samples of different sizes, in dicts, from datasets of which the loop uses more than the samples."""
    (project / PACKAGE / "data.py").write_text(DATA + LOAD_SENTENCES)
    (project / PACKAGE / "model.py").write_text(SENTENCE_MODEL)
    options(project, {"global_batch_size": 8})
    extend(project / PACKAGE / "task.py", SENTENCE_LOSS)
    in_small_task(project, SMALL_SENTENCES)
    own = """sentences = run.training.dataset.dataset
sentences.set_epoch(progress.epoch)
sentences.temperature *= 0.5
assert sentences.position == progress.epoch and len(sentences.classes) == 2
{}"""
    Rewrite("train_step(run, micro_batches)", own, "main").apply(project / "train.py")


LISTS = """

def load_data(config, load=load_data):
    training, validation = load(config)
    images = training.images[..., 1:9, 1:9]
    return [(images[i], training.labels[i]) for i in range(200)], [validation[i] for i in range(50)]
"""


def plain_lists(project: Path) -> None:
    extend(project / PACKAGE / "data.py", LISTS)


LIST_OF_DICTS = """

class Rows(Dataset):
    \"\"\"Whole batches as lists of dicts.\"\"\"

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def load_data(config, load=load_data):
    return [Rows(each.images[..., -8:, -8:], each.labels) for each in load(config)]
"""
SMALL_ROWS = """def small_data(samples):
    from ddp_project.data import Rows

    rng = torch.Generator().manual_seed(0)
    return Rows(torch.randn(samples, 5, generator=rng), torch.randint(0, 3, (samples,), generator=rng))


def plain_loss(model, batch):
    return F.cross_entropy(model(batch["image"]), batch["label"])
"""


def rows_of_dicts(project: Path) -> None:
    """Bring a dataset that returns lists of dicts, as those of Hugging Face do."""
    extend(project / PACKAGE / "data.py", LIST_OF_DICTS)
    in_compute(project, "images, labels = batch", 'images, labels = batch["image"], batch["label"]')
    in_small_task(project, SMALL_ROWS)


ATTENTION = """class Attention(nn.Module):
    \"\"\"Has a bias whose gradient is zero but for rounding, and many buffers.\"\"\"

    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(1, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.outputs = nn.Linear(8, 3)
        for i in range(5):
            self.register_buffer(f"scale_{i}", torch.full((2,), float(i)))
        self.register_buffer("mask", torch.zeros(5, 5), persistent=False)

    def forward(self, numbers):
        tokens = self.inputs(numbers[:, :, None])
        found, _ = self.attention(tokens, tokens, tokens, attn_mask=self.mask)
        return self.outputs(found.mean(dim=1))


def small_model():
    return Attention()
"""


def attention(project: Path) -> None:
    in_small_task(project, ATTENTION)


def optimizer(project: Path, code: str) -> None:
    Rewrite("return AdamW($$$A)", f"return {code}", "build_optimizer").apply(project / PACKAGE / "task.py")


def sgd(project: Path) -> None:
    optimizer(project, "torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, nesterov=True)")


def adafactor(project: Path) -> None:
    optimizer(project, "torch.optim.Adafactor(model.parameters(), lr=config.lr)")


def several_optimizers(project: Path) -> None:
    """Train by one optimizer for matrices, and by another one for the rest, with a rate of its own."""
    file = project / PACKAGE / "task.py"
    extend(file, imports=f"from {PACKAGE}.runtime.update import Optimizers\n")
    parts = "[each for each in model.parameters() if each.dim() {} 1]"
    slow = f'{{"params": {parts.format("<=")}, "lr_scale": 0.1}}'
    optimizer(project, f"Optimizers(AdamW({parts.format('>')}), torch.optim.SGD([{slow}], momentum=0.9))")


def double(project: Path) -> None:
    in_compute(project, "images, labels = batch", "{}\nimages = images.double()")
    Rewrite("return $X", "return ($X).double()", "build_model").apply(project / PACKAGE / "model.py")
    small = project / "tests" / "task.py"
    Rewrite("return nn.Sequential($$$A)", "return nn.Sequential($$$A).double()", "small_model").apply(small)
    Rewrite("images, labels = batch", "{}\nimages = images.double()", "plain_loss").apply(small)


# Edits that go together, so that few runs try all.
TOGETHER = (
    (other_defaults, smoothing_in_training, metric_without_samples, scheduler, plain_lists),
    (uneven_samples, another_best, renamed_schedule, sgd),
    (rows_of_dicts, asks_for_the_rank, attention, several_optimizers, static_graph),
    (adafactor, double),
)
PORTS: dict[str, Callable[[Path], None]] = {port.__name__: port for ports in TOGETHER for port in ports}
