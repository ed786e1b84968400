"""The reports for programs: JSON with all that was found out, and JUnit XML as GitHub, GitLab and Jenkins read it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from junitparser import Failure as JunitFailure
from junitparser import JUnitXml, Properties, Property, TestCase, TestSuite

from generator.check.reports.summary import headline, plain, stage_summaries, stages_of
from generator.check.results import Outcome, Verdict, reproduce


def write_json(verdict: Verdict, path: Path) -> None:
    """Write the verdict as one object, whose keys are named as in Verdict. Raises OSError if that is not possible."""
    report = {
        "format": 1,  # grows when a key goes or changes its meaning, not when one comes
        "passed": verdict.passed,
        "counts": verdict.counts,
        "started": verdict.started.isoformat(),  # with its offset from UTC
        "wall": verdict.wall,  # seconds, as all times
        "selection": verdict.selection,
        "launchers": verdict.launchers,
        "versions": verdict.versions,
        "stages": verdict.stages,  # those that ran, with their times
        "questions": [asdict(question) for question in verdict.questions],
        "combinations": [outcome_as_json(outcome, verdict.launchers) for outcome in verdict.outcomes],
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def outcome_as_json(outcome: Outcome, launchers: str) -> dict[str, Any]:
    """Return what was found out about one combination."""
    return {
        "name": outcome.combination.name,
        "answers": dict(outcome.combination.answers),
        "passed": outcome.passed,
        "cached": outcome.cached,
        "seconds": outcome.seconds,
        "weights": outcome.weights,
        "notes": outcome.notes,
        "trained_as": outcome.trained_as,
        "failures": [asdict(failure) for failure in outcome.failures],
        "reproduce": reproduce(outcome, launchers),
    }


def write_junit(verdict: Verdict, path: Path) -> None:
    """Write a suite for each stage, with a test for each combination on which it ran. Raises OSError.

    The times are those that the stage spent on the combination, in an earlier check where the property cached is true.
    """
    report = JUnitXml("ddp-template check")
    for row in stage_summaries(verdict):
        suite = TestSuite(row.stage)
        suite.timestamp = verdict.started.isoformat(timespec="seconds")
        for key, value in {"selection": verdict.selection, "launchers": verdict.launchers, **verdict.versions}.items():
            suite.add_property(key, plain(value))
        ran = [outcome for outcome in verdict.outcomes if row.stage in stages_of(outcome)]
        suite.add_testcases([test_case(outcome, row.stage, verdict.launchers) for outcome in ran])
        report.add_testsuite(suite)
    report.update_statistics()
    report.write(str(path))


def test_case(outcome: Outcome, stage: str, launchers: str) -> TestCase:
    """Make the test of one combination in one stage."""
    case = TestCase(plain(outcome.combination.name), f"ddp-template.{stage}", round(outcome.seconds.get(stage, 0.0), 3))
    properties = Properties()
    for name, value in [("cached", str(outcome.cached).lower()), *(("note", note) for note in outcome.notes)]:
        properties.add_property(Property(name, plain(value)))
    case.append(properties)
    failures = [failure for failure in outcome.failures if failure.stage == stage]
    if failures:
        # One for all of them: viewers show only the first one of a test.
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        case.result = [JunitFailure(headline(failures[0].text) + more, "failure")]
        parts = [failure.text + (f"\nleft in {failure.folder}" if failure.folder else "") for failure in failures]
        case.result[0].text = plain("\n\n".join([*parts, f"To see it again: {reproduce(outcome, launchers)}"]))
    return case
