"""The slices of the nightly tests have each file once, and about as much to do; what makes no sense is refused."""

import pytest

from tests.folders import files_in
from tests.schedule import Slice, read_slice, seconds_of

SECONDS = {"a.py": 300.0, "b.py": 200.0, "c.py": 110.0, "d.py": 90.0, "e.py": 60.0, "f.py": 40.0}


@pytest.mark.parametrize("slices", [1, 2, 3, 6, 9])
def test_every_file_is_in_one_slice(slices: int) -> None:
    parts = [Slice(number, slices).files(SECONDS) for number in range(1, slices + 1)]
    assert sorted(name for part in parts for name in part) == sorted(SECONDS)


def test_slices_have_about_as_much_to_do() -> None:
    loads = [sum(SECONDS[name] for name in Slice(number, 2).files(SECONDS)) for number in (1, 2)]
    assert sorted(loads) == [390, 410]


def test_a_file_that_was_never_measured_is_in_a_slice_too() -> None:
    seconds = seconds_of([*files_in("nightly"), "nightly/test_new.py"])
    assert sum("nightly/test_new.py" in Slice(number, 5).files(seconds) for number in range(1, 6)) == 1
    assert all(value > 0 for value in seconds.values())


def test_a_slice_is_read() -> None:
    assert read_slice("2/5", SECONDS) == Slice(2, 5)
    assert "scripts/test.sh --slice I/5" in Slice(2, 5).words


@pytest.mark.parametrize("text", ["", "2", "0/5", "6/5", "1/0", "-1/5", "a/b", "2/5/7"])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="give auto, or I/N such as 2/5"):
        read_slice(text, SECONDS)
