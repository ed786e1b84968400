"""Where no test may skip, one that does has failed, unless its reason is allowed."""

import pytest

from tests.conftest import pytest_runtest_makereport


@pytest.mark.parametrize(
    ("no_skips", "reason", "ends"),
    [
        ("1", "there is no GPU", "skipped"),
        ("1", "there is no kubectl: install it", "failed"),
        ("", "there is no kubectl: install it", "skipped"),
    ],
)
def test_a_skip_has_failed_unless_its_reason_is_allowed(
    no_skips: str, reason: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_SKIPS", no_skips)
    place = ("test_it.py", 1, f"Skipped: {reason}")
    report = pytest.TestReport("test_it", ("test_it.py", 1, "test_it"), {}, "skipped", place, "setup")
    hook = pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    assert report.outcome == ends
