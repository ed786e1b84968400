"""The report for CI systems: JUnit's XML, in the form that GitHub's actions, GitLab and Jenkins read."""

from collections.abc import Sequence
from pathlib import Path

from junitparser import Failure as JunitFailure
from junitparser import JUnitXml, Properties, Property, TestCase, TestSuite

from generator.check.reports.summary import headline, plain, stage_summaries, stages_of
from generator.check.results import Failure, Outcome, Verdict, reproduce


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
        suite.add_testcases(
            [
                test_case(outcome, row.stage, verdict.launchers)
                for outcome in verdict.outcomes
                if row.stage in stages_of(outcome)
            ]
        )
        report.add_testsuite(suite)
    report.update_statistics()
    report.write(str(path))


def test_case(outcome: Outcome, stage: str, launchers: str) -> TestCase:
    """Make the test of one combination in one stage."""
    case = TestCase(plain(outcome.combination.name), f"ddp-template.{stage}", round(outcome.seconds.get(stage, 0.0), 3))
    properties = Properties()
    properties.add_property(Property("cached", "true" if outcome.cached else "false"))
    for note in outcome.notes:
        properties.add_property(Property("note", plain(note)))
    case.append(properties)
    failures = [failure for failure in outcome.failures if failure.stage == stage]
    if failures:
        case.result = [merged(failures, reproduce(outcome, launchers))]
    return case


def merged(failures: Sequence[Failure], command: str) -> JunitFailure:
    """Make one failure of all that one stage found: viewers show only the first one of a test."""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    result = JunitFailure(headline(failures[0].text) + more, "failure")
    parts = [failure.text + (f"\nleft in {failure.folder}" if failure.folder else "") for failure in failures]
    result.text = plain("\n\n".join([*parts, f"To see it again: {command}"]))
    return result
