"""With NO_SKIPS=1, as on GitHub, a test that skips has failed, unless what it needs cannot be had there."""

import os
import re
from collections.abc import Generator

import pytest

# Of the reasons to skip. APEX_SOURCE: apex cannot be cloned; a quota takes root.
ALLOWED = re.compile("no GPU|APEX_SOURCE|no quota of CPUs")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip for another reason into a failure."""
    report = yield
    if os.environ.get("NO_SKIPS") and report.skipped and isinstance(report.longrepr, tuple):  # an xfail has no tuple
        reason = report.longrepr[2]
        if not ALLOWED.search(reason):
            report.outcome, report.longrepr = "failed", f"{reason} (NO_SKIPS is set, and tests/skips.py allows others)"
    return report
