"""Where no test may skip, one that does has failed, unless its reason is allowed."""

import pytest

from tests.conftest import pytest_runtest_makereport


def outcome(reason: str) -> str:
    """Return how a test ends that skips for a reason."""
    place = ("test_it.py", 1, f"Skipped: {reason}")
    report = pytest.TestReport("test_it", ("test_it.py", 1, "test_it"), {}, "skipped", place, "setup")
    hook = pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    return report.outcome


def test_a_skip_has_failed_unless_its_reason_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_SKIPS", "1")
    assert outcome("there is no GPU") == "skipped"
    assert outcome("there is no kubectl: install it") == "failed"


def test_elsewhere_tests_may_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SKIPS", raising=False)
    assert outcome("there is no kubectl: install it") == "skipped"
