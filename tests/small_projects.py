"""The process that ranks are forked from, and projects with little data."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from generator.check.train.forking import forking
from tests import plain_loop as plain
from tests.conftest import Render
from tests.launching import module_of
from tests.programs import EXCERPT
from tools.rewriting import extend


@pytest.fixture(scope="package", autouse=True)
def forking_process() -> Iterator[None]:
    """One process imports torch; every rank of these tests is forked from it."""
    with forking(all_data=True) as name_modules:
        name_modules(["numpy", "torch.utils.data"])
        yield


@pytest.fixture(scope="package")
def small(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """Return the project of some answers with an excerpt of its data and more appended to data.py. Do not change it."""
    made: dict[str, Path] = {}

    def get(more: str = "", **answers: object) -> Path:
        key = repr((more, sorted(answers.items())))
        if key not in made:
            made[key] = shutil.copytree(project(**answers), tmp_path_factory.mktemp("small") / "project")
            imports = "from typing import Any\n\nfrom torch.utils.data import Subset\n"
            extend(made[key] / "ddp_project" / "data.py", EXCERPT + more, imports=imports)
        return made[key]

    return get


@pytest.fixture(scope="package")
def plain_project(project: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with logging=csv, and with an owner's model and data."""
    place = shutil.copytree(project(logging="csv"), tmp_path_factory.mktemp("plain") / "project")
    (place / "ddp_project" / "data.py").write_text(plain.DATA)
    (place / "ddp_project" / "model.py").write_text(plain.MODEL)
    return place


@pytest.fixture(scope="package")
def batch_norm_project(plain_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a model that has BatchNorm."""
    place = shutil.copytree(plain_project, tmp_path_factory.mktemp("batch-norm") / "project")
    (place / "ddp_project" / "model.py").write_text(plain.BATCH_NORM_MODEL)
    return place


@pytest.fixture(scope="package")
def orders(project: Render) -> list[list[int]]:
    """The order of each epoch; test_permutation.py tells what it is worth."""
    permutation: ModuleType = module_of(project() / "ddp_project" / "runtime" / "permutation.py")
    return [
        permutation.Permutation(plain.SAMPLES, 0, epoch)[np.arange(plain.SAMPLES)].tolist()
        for epoch in range(plain.EPOCHS)
    ]
