"""Parameters and optimizers that DistributedDataParallel cannot train are refused in one line, and ranks never part."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.programs import Program, ends_of
from tools.rewriting import Rewrite, extend

OPTIONS = {"global_batch_size": 24, "epochs": 1, "log_every": 2, "save_every": 2}

# Appended to model.py.
WRAPPED = '''

def changed(build: Any = build_model) -> nn.Module:
    """Change the network."""
    network: Any = build()
    {change}
    return network


build_model = changed
'''
# Appended to task.py.
BUILT = '''

def changed(model: Any, config: Config, build: Any = build_optimizer) -> Any:
    """Change the optimizer."""
    {change}


build_optimizer = changed
'''
# Appended to train.py's task: from the third step on, something else is trained.
LATER = '''

def later(step: int, total_steps: int, config: Config, lr_at: Any = lr_at) -> float:
    """Change what is trained."""
    if step == 2:
        {change}
    return float(lr_at(step, total_steps, config))


def remembered(model: Any, config: Config, build: Any = build_optimizer) -> Any:
    """Remember both."""
    built.update(model=model, optimizer=build(model, config))
    return built["optimizer"]


built: Any = {{}}
build_optimizer, lr_at = remembered, later
'''
FREEZE = "network.classifier[0].requires_grad_(False)"
BEFORE = {  # by what is wrong: the change of the model, that of the optimizer, and the error
    "lazy": ("network.classifier[2] = nn.LazyLinear(10)", "", "model.py: classifier.2.weight has no shape yet"),
    "lazy buffers": ("network.features.append(nn.LazyBatchNorm2d(affine=False))", "", "model.py: features.9.running_mean"),
    "no values": ("network.classifier[2].to('meta')", "", "model.py: classifier.2.weight has no values"),
    "sparse": ("network.table = nn.Embedding(3, 3, sparse=True)", "", "model.py: table gives sparse gradients"),
    "sparse bag": ("network.table = nn.EmbeddingBag(3, 3, sparse=True)", "", "model.py: table gives sparse gradients"),
    "nothing": ("network.requires_grad_(False)", "", "model.py: no parameter of the model requires gradients"),
    "closure": ("", "return torch.optim.LBFGS(model.parameters())", "task.py: LBFGS needs a closure"),
    "SparseAdam": ("", "return torch.optim.SparseAdam(model.parameters())", "task.py: SparseAdam needs sparse"),
    "in another": ("", "return Optimizers(torch.optim.LBFGS(model.parameters()))", "task.py: LBFGS needs a closure"),
    "a tuple": ("", "return build(model, config), None", "task.py: build_optimizer() must return an optimizer"),
    "twice": ("", "return Optimizers(build(model, config), AdamW(model.features.parameters()))", "several times: features.0.weight"),
    "foreign": ("", "return AdamW([*model.parameters(), nn.Parameter(torch.ones(3))])", "task.py: build_optimizer() takes parameters that are not the model's"),
    "frozen alone": (FREEZE, "return AdamW(model.classifier[0].parameters())", "task.py: build_optimizer() takes no parameter that"),
    "empty": ("", "return AdamW([])", "x"),
    "complex": ("network.phase = nn.Parameter(__import__('torch').ones(3, dtype=__import__('torch').complex64))", "", "x"),
    "other ranks": ("network.extra = nn.Linear(3, 3) if __import__('torch').distributed.get_rank() else nn.Identity()", "", "x"),
    "other shapes": ("network.extra = nn.Linear(3, 3 + __import__('torch').distributed.get_rank())", "", "x"),
    "functional sparse": ("network.table = nn.Parameter(__import__('torch').ones(3, 10)); network.register_forward_hook(lambda _, __, out: out + nn.functional.embedding(out.argmax(1) % 3, network.table, sparse=True))", "", "x"),
    "SAM": ("", "optimizer = build(model, config); optimizer.step = sam; return optimizer", "x"),
}
