"""The data that a project comes with."""

import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from generator.answers.questions import TEMPLATE


def test_the_digits_are_those_of_scikit_learn() -> None:
    theirs = load_digits()
    with np.load(next((TEMPLATE / "template").rglob("digits.npz"))) as digits:
        assert np.array_equal(digits["images"], theirs.images)
        assert np.array_equal(digits["labels"], theirs.target)
