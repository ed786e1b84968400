"""What the tests of the nemesis share: how much time there is, and where the numbers of faults are noted."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import Measured
from tests.support.processes import scaled

Note = Callable[[str, Counter[str]], None]


def slowness() -> float:
    """Return how much longer things may take on this machine, as busy as it is."""
    return scaled(2)


@pytest.fixture
def note(measured: Measured) -> Note:
    """Note how often each kind of fault happened to something."""

    def note(to: str, happened: Counter[str]) -> None:
        for kind, times in sorted(happened.items()):
            measured("chaos", f"{to}: {kind}", times)

    return note
