"""What owners do to make a project theirs, honestly: its own tests must pass after each of these edits."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.support.processes import hang_timeout
from tests.support.projects import other_tasks
from tools.rewriting import Rewrite, extend

DATA, MODEL, TASK, OPTIONS = (f"ddp_project/{name}.py" for name in ("data", "model", "task", "options"))
SMALL = "tests/task.py"  # the last definition of a name counts there

# Every option with another default than the template's, but for those of a launcher. Some would end a run at once, or
# need what this machine lacks.
OTHER_DEFAULTS: dict[str, object] = {"epochs": 1, "steps": 9, "max_steps": 3, "global_batch_size": 2, "accum_steps": 3}
OTHER_DEFAULTS |= {"lr": 1e-4, "warmup_steps": 1000, "weight_decay": 0.5, "clip_norm": 0.01, "ema_decay": 0.99}
OTHER_DEFAULTS |= {"seed": 123_456, "deterministic": True, "log_every": 7, "eval_every": 3, "patience": 1, "keep": 1}
OTHER_DEFAULTS |= {"save_every": 1, "async_saves": True, "max_hours": 1e-9, "max_bad_steps": 1, "resume": "auto"}
OTHER_DEFAULTS |= {"run_dir": Path("elsewhere"), "init_from": "pretrained.safetensors", "timeout": 1, "profile": True}
OTHER_DEFAULTS |= {"device": "cuda", "precision": "tf32", "backend": "nccl", "bucket_mib": 1, "bf16_gradients": True}
OTHER_DEFAULTS |= {"channels_last": True, "compile": True, "workers": 1}
OTHER_DEFAULTS |= {"find_unused_parameters": True, "static_graph": False}  # which do not go together
CYCLE = """torch.optim.lr_scheduler.OneCycleLR(
    self.optimizer, max_lr=config.lr, total_steps=1000, base_momentum=0.5, pct_start=0.01
)"""
ATTENTION = """

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.outputs = nn.Linear(1, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("mask", torch.zeros(5, 5), persistent=False)

    def forward(self, numbers):
        tokens = self.inputs(numbers[:, :, None])
        return self.outputs(self.attention(tokens, tokens, tokens, attn_mask=self.mask)[0].mean(dim=1))


def small_model():
    return Attention()
"""


def failures(project: Path, *tests: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=hang_timeout(120))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def options(project: Path, defaults: Mapping[str, object]) -> None:
    imports = "from pathlib import Path\n" if any(isinstance(value, Path) for value in defaults.values()) else ""
    lines = "".join(f"    {name}: object = {value!r}\n" for name, value in defaults.items())
    extend(project / OPTIONS, f"\n{lines}".replace("PosixPath", "Path"), imports=imports)


def other_defaults(project: Path) -> None:
    save_file({"features.0.1.bias": torch.zeros(32)}, project / str(OTHER_DEFAULTS["init_from"]))
    options(project, OTHER_DEFAULTS)


def smoothing_in_training(project: Path) -> None:
    smoothing = "label_smoothing=0.1 * model.training"
    loss = f'F.cross_entropy($$$A, reduction="sum", {smoothing})'
    Rewrite("F.cross_entropy($$$A, reduction=$X)", loss, "compute").apply(project / TASK)
    Rewrite("F.cross_entropy($$$A)", f"F.cross_entropy($$$A, {smoothing})", "plain_loss").apply(project / SMALL)


def metric_without_samples(project: Path) -> None:
    """Record a metric that has no samples in training, and so is NaN there; and sums instead of means."""
    more = """{},
"hard": Mean(0.0, 0) if model.training else Mean(len(labels), len(labels)),
"unknown": Mean(torch.tensor(float("nan")), len(labels)),
"labels": Mean(torch.bincount(labels, minlength=10), len(labels))"""
    Rewrite('"accuracy": $X', more, "compute").apply(project / TASK)
    sums = 'def summarize(means):\n    return means | {"labels": float(means["labels"].sum())}\n'
    extend(project / TASK, f"\n\n{sums}")


def another_best(project: Path) -> None:
    Rewrite("BEST = $X", 'BEST = "loss"').apply(project / TASK)
    Rewrite("HIGHER_IS_BETTER = $X", "HIGHER_IS_BETTER = False").apply(project / TASK)
    extend(project / TASK, "\n\ndel predict\n")


def asks_for_the_rank(project: Path) -> None:
    ranks = '{},\n"ranks": Mean(float(torch.distributed.get_rank() >= 0), 1)'
    Rewrite('"accuracy": $X', ranks, "compute").apply(project / TASK)


def scheduler(project: Path) -> None:
    """Follow a scheduler of PyTorch, which changes more than the learning rate, and delete lr_at()."""
    saved = "$M.Checkpoints($$$PARTS, optimizer=$X, {}$$$REST)"
    for edit in (
        Rewrite("self.optimizer = $X", f"{{}}\nself.scheduler = {CYCLE}", "Run.__init__"),
        Rewrite(saved.format(""), saved.format("scheduler=self.scheduler, ")),
        Rewrite("lr = float(task.lr_at($$$A))", "lr = run.scheduler.get_last_lr()[0]"),
        Rewrite("run.update.set_lr(lr)", ""),
        Rewrite("run.progress.advance($$$A)", "{}\nrun.scheduler.step()", "train_step"),
    ):
        edit.apply(project / "train.py")
    extend(project / TASK, "\n\ndel lr_at\n")


ROWS = """

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
    return [Rows(each.images[:40, ..., -8:, -8:], each.labels[:40]) for each in load(config)]
"""
SMALL_ROWS = """

def small_data(samples):
    from ddp_project.data import Rows

    rng = torch.Generator().manual_seed(0)
    return Rows(torch.randn(samples, 5, generator=rng), torch.randint(0, 3, (samples,), generator=rng))


def plain_loss(model, batch):
    return F.cross_entropy(model(batch["image"]), batch["label"])
"""


def rows_of_dicts(project: Path) -> None:
    """Train on few samples, from a dataset that returns lists of dicts, as Hugging Face datasets do."""
    options(project, {"global_batch_size": 8, "static_graph": True})
    extend(project / DATA, ROWS)
    unpacked = 'images, labels = batch["image"], batch["label"]'
    Rewrite("images, labels = batch", unpacked, "compute").apply(project / TASK)
    extend(project / SMALL, SMALL_ROWS)


def attention(project: Path) -> None:
    """Test with a network that has a bias whose gradient is zero, except for rounding."""
    extend(project / SMALL, ATTENTION)


def optimizer(project: Path, code: str) -> None:
    Rewrite("return AdamW($$$A)", f"return {code}", "build_optimizer").apply(project / TASK)


def adafactor(project: Path) -> None:
    optimizer(project, "torch.optim.Adafactor(model.parameters(), lr=config.lr)")


def several_optimizers(project: Path) -> None:
    """Train with one optimizer for matrices, and another one with a separate learning rate for the rest."""
    extend(project / TASK, imports="from ddp_project.runtime.optimizer_step import Optimizers\n")
    parts = "[each for each in model.parameters() if each.dim() {} 1]"
    slow = f'{{"params": {parts.format("<=")}, "lr_scale": 0.1}}'
    optimizer(project, f"Optimizers(AdamW({parts.format('>')}), torch.optim.SGD([{slow}], momentum=0.9))")


def double(project: Path) -> None:
    for place, function in ((TASK, "compute"), (SMALL, "plain_loss")):
        Rewrite("images, labels = batch", "{}\nimages = images.double()", function).apply(project / place)
    for place, function in ((MODEL, "build_model"), (SMALL, "small_model")):
        Rewrite("return $X", "return ($X).double()", function).apply(project / place)


def write(project: Path, code: Mapping[str, str], imports: Mapping[str, str]) -> None:
    for file, text in code.items():
        extend(project / file, text, imports=imports.get(file, ""))


def packed_sequences(project: Path) -> None:
    write(project, other_tasks.PACKED_SEQUENCES, other_tasks.IMPORTS_OF_PACKED_SEQUENCES)


def sets_with_state(project: Path) -> None:
    write(project, other_tasks.SETS_WITH_STATE, other_tasks.IMPORTS_OF_SETS_WITH_STATE)


# Edits that one project can have together.
TOGETHER = (other_defaults, smoothing_in_training, metric_without_samples, scheduler, attention)
OTHERS = (
    rows_of_dicts,
    asks_for_the_rank,
    several_optimizers,
    another_best,
    adafactor,
    double,
    packed_sequences,
    sets_with_state,
)
PORTS: dict[str, Callable[[Path], None]] = {port.__name__: port for port in (*TOGETHER, *OTHERS)}
