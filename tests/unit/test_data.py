"""The data that a project comes with."""

import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from tests.conftest import Render


def test_the_digits_are_those_of_scikit_learn(project: Render) -> None:
    theirs = load_digits()
    with np.load(project() / "ddp_project" / "digits.npz") as digits:
        assert np.array_equal(digits["images"], theirs.images)
        assert np.array_equal(digits["labels"], theirs.target)
