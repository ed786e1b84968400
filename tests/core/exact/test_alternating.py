"""Two networks that are trained in turn arrive where a plain loop that alternates does."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import Render
from tests.core.exact.test_processes import CLIP_NORM, OPTIONS, largest_difference, recipe
from tests.support import reference
from tests.support.forked_runs import Program, run_all
from tests.support.projects.instructions import ALTERNATING, follow_recipe

DATA = reference.DATA.replace("TensorDataset(images, labels)", "TensorDataset(images, images[:, :2].flip(0))")
MODEL = """
from torch import nn


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 5))
        self.critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def build_model(config: object) -> nn.Module:
    return Pair()
"""


@pytest.fixture
def alternating(project: Render, tmp_path: Path) -> Path:
    """Return a project after the recipe, with the data and two small networks of these tests."""
    place = follow_recipe(ALTERNATING, project(logging="csv"), tmp_path / "project")
    (place / "ddp_project" / "data.py").write_text(DATA)
    (place / "ddp_project" / "model.py").write_text(MODEL)
    return place


def loss_of(generator: nn.Module, critic: nn.Module, samples: Tensor, *, fool: bool) -> Tensor:
    images, _ = reference.data()
    fakes = critic(generator(images[:, :2].flip(0)[samples]))
    if fool:
        return F.binary_cross_entropy_with_logits(fakes, torch.ones_like(fakes))
    real = critic(images[samples])
    both = torch.cat([real, fakes]), torch.cat([torch.ones_like(real), torch.zeros_like(fakes)])
    return 2 * F.binary_cross_entropy_with_logits(*both)


def trained_plainly(accum_steps: int, orders: list[list[int]]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights after each step."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 5))
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    of_generator = torch.optim.AdamW(generator.parameters())
    of_critic = torch.optim.SGD(critic.parameters(), momentum=0.9)
    for step, (samples, lr) in enumerate(reference.windows(recipe(accum_steps), orders)):
        own, optimizer = (generator, of_generator) if step % 3 == 2 else (critic, of_critic)
        loss = loss_of(generator, critic, torch.tensor(samples), fool=own is generator)
        loss.backward(inputs=[*own.parameters()])
        reference.take_step(own, optimizer, lr, CLIP_NORM)
        yield dict(nn.ModuleDict({"generator": generator, "critic": critic}).state_dict())


@pytest.mark.parametrize("accum_steps", [1, 3])
def test_networks_in_turn_arrive_where_a_plain_loop_does(
    accum_steps: int, alternating: Path, orders: list[list[int]], tmp_path: Path
) -> None:
    """After the last step, and after a few: the network whose turn it is not stays, with its momentum."""
    expected = [
        {name: weight.clone() for name, weight in weights.items()} for weights in trained_plainly(accum_steps, orders)
    ]
    options = OPTIONS | {"accum_steps": accum_steps}
    for steps in (4, len(expected)):
        sizes = {size: Program(alternating, tmp_path / f"{steps}-{size}", options, size) for size in (1, 2)}
        programs = [*sizes.values()]
        for program in programs:
            program.options["max_steps"] = steps
        run_all([[program] for program in programs])
        for program in programs:
            assert largest_difference(program, expected[steps - 1]) <= 1e-6, f"{program.world_size} processes"
