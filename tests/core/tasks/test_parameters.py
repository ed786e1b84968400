"""What DistributedDataParallel cannot train is refused in one line, at the start or before the ranks would part."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Render
from tests.support.forked_runs import Program, ends_of, run_all
from tests.support.ranks import errors_in
from tools.rewriting import extend

OPTIONS = {"global_batch_size": 24, "epochs": 1, "log_every": 2, "save_every": 2}
UNUSED: dict[str, Any] = {"find_unused_parameters": None}
ACCUMULATED: dict[str, Any] = {"accum_steps": 2, "epochs": 3}
RANK = "torch.distributed.get_rank()"

# Appended to task.py, which imports torch: it changes the model, the optimizer, and both after two steps.
CHANGED = '''

def changed_model(config: Config, build: Any = model_py.build_model) -> nn.Module:
    network: Any = build(config)
    {model}
    return network


def changed_optimizer(model: Any, config: Config, build: Any = build_optimizer) -> Any:
    built.update(model=model, optimizer={optimizer})
    return built["optimizer"]


def later(step: int, total_steps: int, config: Config, lr_at: Any = lr_at) -> float:
    if step == 2:
        model, optimizer = built["model"], built["optimizer"]
        {later}
    return float(lr_at(step, total_steps, config))


class Sharp(AdamW):
    """An optimizer that needs a closure, and does not say so by its signature."""

    def step(self, closure: Any = None) -> None:
        assert closure is not None, "Sharpness Aware Minimization requires closure, but it was not provided"


built: dict[str, Any] = {{}}
model_py.build_model, build_optimizer, lr_at = changed_model, changed_optimizer, later
'''
IMPORTS = "from . import model as model_py\nfrom .runtime.optimizer_step import Optimizers\n\n"
SOMETIMES = f"""network.sometimes = nn.Linear(10, 10)
    network.classifier.register_forward_hook(lambda _, __, x: network.sometimes(x) if {RANK} == 1 else x)"""
SPARSE = """table = network.table = nn.Parameter(torch.ones(3, 10))
    network.register_forward_hook(lambda _, __, out: out + F.embedding(out.argmax(1) % 3, table, sparse=True))"""
COMPLEX = """network.phase = nn.Parameter(torch.ones(10) * 1j)
    network.register_forward_hook(lambda _, __, out: out + network.phase.abs())"""
TOO_MANY = "AdamW([*model.parameters(), nn.Parameter(torch.ones(3))])"
OTHERWISE, NO_PART = "parameters are trained otherwise than at the start: ", "parameters took no part in a step: "
AT_THE_START = {  # by what is wrong: the model, the optimizer, and the error
    "lazy layers": ("network.classifier[2] = nn.LazyLinear(10)", "", "model.py: build_model() must give param"),
    "no values": ("network.classifier[2].to('meta')", "", "model.py: build_model() must give parameters values"),
    "a sparse layer": ("network.table = nn.Embedding(3, 3, sparse=True)", "", "model.py: table has sparse gradients"),
    "sparse bags": ("network.table = nn.EmbeddingBag(3, 3, sparse=True)", "", "model.py: table has sparse gradients"),
    "rows that are scaled": ("network.table = nn.Embedding(3, 3, max_norm=1.0)", "", "model.py: table has max_norm"),
    "complex weights": (COMPLEX, "", "task.py: leave out fused=True"),
    "a sparse function": (SPARSE, "", "sparse gradients are not averaged: leave out sparse=True"),
    "another model": (f"network.more = nn.Linear(3, 3 + {RANK})", "", "model.py: build_model() must return the same"),
    "all is frozen": ("network.requires_grad_(False)", "", "task.py: build_optimizer() must take parameters that"),
    "no parameters": ("pass", "AdamW([])", "task.py: build_optimizer() finds no parameters"),
    "a pair": ("pass", "(build(model, config), None)", "task.py: build_optimizer() must return an optimizer"),
    "a closure": ("pass", "torch.optim.LBFGS(model.parameters())", "task.py: LBFGS needs a closure"),
    "a closure within": ("pass", "Optimizers(torch.optim.LBFGS(model.parameters()))", "task.py: LBFGS needs a closure"),
    "a closure unsaid": ("pass", "Sharp(model.parameters())", "task.py: the optimizer needs a closure"),
    "SparseAdam": ("pass", "torch.optim.SparseAdam(model.parameters())", "task.py: SparseAdam needs sparse gradients"),
    "an unused layer": ("network.unused = nn.Linear(3, 3)", "", f"{NO_PART}unused.weight, unused.bias"),
    "twice": ("pass", "Optimizers(build(model, config), AdamW(model.features.parameters()))", "task.py: build_optim"),
    "of the task": ("pass", TOO_MANY, "task.py: the optimizer steps what build_model() did not make, so is not"),
}
FROZEN, FREEZE = "network.features[0].requires_grad_(False)", "model.classifier[2].requires_grad_(False)"
UNFREEZE = "model.features[0].requires_grad_(True)"
TRAINED = "AdamW([each for each in model.parameters() if each.requires_grad])"
ADD = "optimizer.add_param_group({'params': [*model.features[0].parameters()]})"
WEIGHT = "model.classifier[2].weight"
REPLACE = f"{WEIGHT} = optimizer.param_groups[0]['params'][-2] = nn.Parameter({WEIGHT}.detach().clone())"
SWAP_ALIKE = "model.features[0][0].weight.requires_grad_(True); model.features[0][1].weight.requires_grad_(False)"
ONE_FROZEN = "network.features[0][0].weight.requires_grad_(False)"
# The model, the optimizer, what changes after two steps, options, and the error.
LATER: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "unfrozen": (FROZEN, "", UNFREEZE, {}, f"{OTHERWISE}features.0.0.weight, features.0.1.weight"),
    "unfrozen in micro-batches": (FROZEN, "", UNFREEZE, ACCUMULATED, f"{OTHERWISE}features.0.0.weight"),
    "unfrozen on one rank": (FROZEN, "", f"if {RANK}: {UNFREEZE}", {}, f"{OTHERWISE}features.0.0.weight"),
    "added": (FROZEN, TRAINED, f"{UNFREEZE}; {ADD}", {}, f"{OTHERWISE}features.0.0.weight"),
    "removed": ("pass", "", "optimizer.param_groups[0]['params'].pop()", {}, f"{OTHERWISE}classifier.2.bias"),
    "replaced": ("pass", "", REPLACE, UNUSED, f"{OTHERWISE}classifier.2.weight, one of shape (10, 256)"),
    "swapped": (ONE_FROZEN, "", SWAP_ALIKE, UNUSED, f"{OTHERWISE}features.0.0.weight;"),
    "frozen": ("pass", "", FREEZE, {}, f"{NO_PART}classifier.2.weight, classifier.2.bias"),
    "frozen in micro-batches": ("pass", "", FREEZE, ACCUMULATED, f"{NO_PART}classifier.2.weight, classifier.2.bias"),
}


def changed(project: Path, place: Path, model: str = "pass", optimizer: str = "", later: str = "pass") -> Path:
    shutil.copytree(project, place)
    code = CHANGED.format(model=model, optimizer=optimizer or "build(model, config)", later=later)
    extend(place / "ddp_project" / "task.py", code, imports=IMPORTS)
    return place


def refusal(program: Program) -> str:
    """Run a program on two ranks, and return the one error that it must end with; a rank that waits may repeat it."""
    [[ended]] = ends_of([[program]])
    assert set(ended.codes) <= {2, 69}, "of the rank that notices, and of one that waits for it"
    assert 2 in ended.codes
    first, *others = sorted(errors_in(ended.output), key=lambda line: " has ended: " in line)
    assert all(" has ended: " in line for line in others)
    return first


@pytest.mark.parametrize("what", AT_THE_START)
def test_it_is_refused_at_the_start(what: str, small: Render, tmp_path: Path) -> None:
    model, optimizer, words = AT_THE_START[what]
    project = changed(small(), tmp_path / "project", model, optimizer)
    assert words in refusal(Program(project, tmp_path / "run", OPTIONS))
    assert not [*(tmp_path / "run").glob("checkpoints/*.pt")]


def test_a_warning_names_rates_of_groups_that_are_replaced(small: Render, tmp_path: Path) -> None:
    parts = ("features", 0.5), ("classifier", 0.25)
    groups = ", ".join(f'{{"params": model.{part}.parameters(), "lr": {rate}}}' for part, rate in parts)
    project = changed(small(), tmp_path / "project", optimizer=f"AdamW([{groups}])")
    [[ended]] = run_all([[Program(project, tmp_path / "run", OPTIONS)]])
    assert "lr_at() replaces the learning rates of groups, [0.25, 0.5]: give lr_scale" in "".join(ended.output)


def test_a_layer_that_one_rank_alone_uses_is_named(small: Render, tmp_path: Path) -> None:
    """By each rank that notices; another one waits for it."""
    [[ended]] = ends_of([[Program(changed(small(), tmp_path / "project", SOMETIMES), tmp_path / "run", OPTIONS)]])
    assert set(ended.codes) <= {2, 69}
    [error] = [line for line in errors_in(ended.output) if line.startswith("error: parameters")]
    assert error.startswith(f"error: {NO_PART}sometimes.weight")


@pytest.mark.parametrize("what", LATER)
def test_it_is_refused_before_the_step_that_would_part_the_ranks(what: str, small: Render, tmp_path: Path) -> None:
    model, optimizer, later, options, words = LATER[what]
    project = changed(small(), tmp_path / "project", model, optimizer, later)
    assert words in refusal(Program(project, tmp_path / "run", OPTIONS | options))
    assert [file.name for file in (tmp_path / "run").glob("checkpoints/step-*.pt")] == ["step-00000002.pt"]


@pytest.mark.parametrize("options", [ACCUMULATED, ACCUMULATED | UNUSED], ids=["refused", "allowed"])
def test_a_layer_that_the_last_micro_batch_leaves_out(options: dict[str, Any], small: Render, tmp_path: Path) -> None:
    """Its gradients are those of the first one, and are averaged with --find-unused-parameters alone."""
    leave_out = """network.more, network.batches = nn.Linear(10, 10), 0
    def forward(_: Any, __: Any, logits: Any) -> Any:
        network.batches += network.training
        return network.more(logits) if network.batches % 2 or not network.training else logits
    network.register_forward_hook(forward)"""
    project = changed(small(), tmp_path / "project", leave_out)
    program = Program(project, tmp_path / "run", OPTIONS | options | {"epochs": 1})
    if "find_unused_parameters" in options:
        run_all([[program]])
    else:
        error = refusal(program)
        assert f"{NO_PART}more.weight, more.bias" in error
        assert "--find-unused-parameters" in error


def test_parameters_may_wait_for_their_time_in_a_group_without_a_rate(small: Render, tmp_path: Path) -> None:
    groups = "{'params': model.classifier.parameters()}, {'params': model.features.parameters(), 'lr_scale': 0}"
    later = "optimizer.param_groups[1]['lr_scale'] = 1.0"
    project = changed(small(), tmp_path / "project", "pass", f"AdamW([{groups}])", later)
    run_all([[Program(project, tmp_path / "run", OPTIONS)]])
