"""The reports of a check say what its verdict says, and no text that they show can do harm."""

import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from generator.answers.combinations import Combination
from generator.answers.questions import Choice, Question
from generator.check.reports.json_and_junit import write_json, write_junit
from generator.check.reports.page import arrange
from generator.check.reports.summary import MANY, stages_of
from generator.check.reports.terminal import show
from generator.check.results import Failure, Outcome, Verdict, reproduce
from tests.support.reports import CLEANED, HOSTILE, NOTE, failed_verdict, make_question, make_verdict


@pytest.fixture
def verdict() -> Verdict:
    """A verdict with failures and notes."""
    return failed_verdict()


def printed(verdict: Verdict, width: int, reports: dict[str, Path] | None = None) -> str:
    """What the terminal shows."""
    console = Console(file=io.StringIO(), width=width)
    show(verdict, console, reports or {})
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_terminal_shows_the_verdict_at_any_width(verdict: Verdict, width: int) -> None:
    report = Path("/somewhere") / ("deep/" * 40) / "report.html"
    output = printed(verdict, width, {"page": report})
    lines = output.splitlines()
    for outcome in verdict.failed:
        assert reproduce(outcome) in lines
    assert f"page: {report}" in lines
    total, cached = len(verdict.outcomes), sum(outcome.cached for outcome in verdict.outcomes)
    summary = f"{total} combinations: {total - 2} passed, 2 failed; {cached} taken from the cache; 1 h 07 min"
    assert summary in lines
    noted = sum(bool(outcome.notes) for outcome in verdict.outcomes)
    assert f"note: {NOTE} ({noted} combinations)" in output
    assert output.count(NOTE) == 1
    types = next(line for line in lines if line.split()[:1] == ["types"])
    assert re.search(rf"{total - 1} +1 +1 min 15 s", types)
    assert "left in /tmp/left/<b>here" in output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800-\udfff]", output)


def test_terminal_names_the_line_that_says_most(verdict: Verdict) -> None:
    output = printed(verdict, 200)
    for said in ("train.py:12: error: no", "KeyError: 1", "</script><script>window.harmed = 1</script>"):
        assert said in output


@pytest.mark.parametrize("launchers", ["forked", "real"])
def test_equal_failures_become_one_when_there_are_many(verdict: Verdict, launchers: str) -> None:
    verdict.launchers = launchers
    for outcome in verdict.outcomes:
        name = outcome.combination.name
        outcome.failures = []
        if outcome.combination["amp"] == "apex":
            seconds = len(name) / 7
            outcome.failures = [Failure("train", f"{name}: /tmp/{name[::-1]}/train.py:{len(name)}: took {seconds} s")]
    other = verdict.outcomes[0]
    assert other.passed
    other.failures = [Failure("train", "something else")]
    broken = [outcome for outcome in verdict.failed if outcome is not other]
    assert len(broken) > MANY
    output = printed(verdict, 200)
    assert f"{len(broken)} combinations, all with amp=apex, such as {broken[0].combination.name}" in output
    commands = [line for line in output.splitlines() if line.startswith("ddp-template check")]
    assert commands == [reproduce(broken[0], launchers), reproduce(other, launchers)]


def test_few_failures_are_shown_one_by_one(verdict: Verdict) -> None:
    for outcome in verdict.outcomes:
        outcome.failures = []
    for outcome in verdict.outcomes[:MANY]:
        outcome.failures = [Failure("lint", "the same")]
    commands = [line for line in printed(verdict, 80).splitlines() if line.startswith("ddp-template check")]
    assert commands == [reproduce(outcome) for outcome in verdict.outcomes[:MANY]]


def test_the_terminal_says_how_many_kinds_of_failure_it_leaves_out(verdict: Verdict) -> None:
    for number, outcome in enumerate(verdict.outcomes):
        outcome.failures = [Failure("lint", "x" * (number + 1))]
    output = printed(verdict, 80)
    shown = output.count("ddp-template check")
    assert 0 < shown < len(verdict.outcomes)
    assert f"and {len(verdict.outcomes) - shown} more kinds of failure" in output


def test_a_check_without_failures_prints_no_command(verdict: Verdict) -> None:
    verdict.outcomes = [outcome for outcome in verdict.outcomes if outcome.passed]
    assert "ddp-template check" not in printed(verdict, 80)


def test_junit_has_a_test_for_each_combination_and_stage_that_ran(verdict: Verdict, tmp_path: Path) -> None:
    verdict.outcomes[5].seconds = {"render": 0.5}
    path = tmp_path / "junit.xml"
    write_junit(verdict, path)
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites"
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    ran = {(f"ddp-template.{stage}", one.combination.name): one for one in verdict.outcomes for stage in stages_of(one)}
    assert cases.keys() == ran.keys()
    assert len(cases) == len(list(root.iter("testcase"))) == int(root.get("tests", 0))
    for key, outcome in ran.items():
        stage = str(key[0]).partition(".")[2]
        assert float(cases[key].get("time", -1)) == outcome.seconds.get(stage, 0.0)
        properties = {one.get("name"): one.get("value") for one in cases[key].iter("property")}
        assert properties["cached"] == str(outcome.cached).lower()
        texts = [failure.text for failure in outcome.failures if failure.stage == stage]
        assert len(cases[key].findall("failure")) == bool(texts)
    for suite in root.iter("testsuite"):
        assert int(suite.get("tests", -1)) == len(suite.findall("testcase"))
        assert int(suite.get("failures", -1)) == len(suite.findall("testcase/failure"))


def test_junit_failures_have_text_and_no_forbidden_characters(verdict: Verdict, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    write_junit(verdict, path)
    outcome = verdict.failed[0]
    name = outcome.combination.name
    failure = ET.parse(path).getroot().find(f".//testcase[@name='{name}'][@classname='ddp-template.train']/failure")
    assert failure is not None
    assert failure.get("message") == f"{HOSTILE.splitlines()[0]} (and 1 more)"
    said = str(failure.text)
    for part in (*HOSTILE.splitlines()[:2], CLEANED, "and another", "left in /tmp/left/<b>here", reproduce(outcome)):
        assert part in said
    assert "\x1b" not in path.read_text()


def test_json_holds_the_whole_verdict(verdict: Verdict, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(verdict, path)
    data = json.loads(path.read_text())
    outcomes = [
        Outcome(
            Combination.of(one["answers"]),
            [Failure(**failure) for failure in one["failures"]],
            one["seconds"],
            one["cached"],
            one["weights"],
            one["notes"],
        )
        for one in data["combinations"]
    ]
    questions = [
        Question(one["key"], one["help"], one["default"], tuple(Choice(**choice) for choice in one["choices"]))
        for one in data["questions"]
    ]
    started = datetime.fromisoformat(data["started"])
    same = {key: data[key] for key in ("stages", "wall", "selection", "launchers", "versions")}
    assert Verdict(outcomes, questions, started=started, **same) == verdict
    assert data["passed"] is verdict.passed
    assert data["counts"]["failed"] == len(verdict.failed)
    assert [one["reproduce"] for one in data["combinations"]] == [reproduce(outcome) for outcome in verdict.outcomes]


@pytest.mark.parametrize(
    "sizes", [(), (1,), (5,), (40,), (5, 4), (5, 4, 3, 2, 5), (30, 30), (2,) * 10, (3, 1, 7, 1, 3)], ids=str
)
def test_the_grid_has_a_place_for_each_combination(sizes: tuple[int, ...]) -> None:
    questions = [make_question(f"q{number}", size) for number, size in enumerate(sizes)]
    verdict = make_verdict(questions, lambda one: len(one.answers) < 2 or hash_of(one) % 3 > 0)
    grid = arrange(questions, verdict.outcomes)
    places = Counter(number for panel in grid.panels for number in panel.numbers)
    assert places == Counter(range(len(verdict.outcomes)))
    for panel in grid.panels:
        widths = {len(row) for row in panel.rows}
        assert widths == {len(question.words) * question.span for question in grid.columns} or not grid.columns
        heights = {len(question.words) * question.span for question in grid.rows}
        assert heights == {len(panel.rows)} or not grid.rows
    shown = [key for key, _ in (*grid.fixed, *grid.panels[0].answers)]
    shown += [question.key for question in (*grid.rows, *grid.columns)]
    assert sorted(shown) == sorted(question.key for question in questions)


def hash_of(combination: Combination) -> int:
    """A number that looks random, the same in every run."""
    return sum(ord(letter) * (place + 1) ** 2 for place, letter in enumerate(combination.name))


def test_a_cell_of_the_grid_stands_under_its_answers(verdict: Verdict) -> None:
    grid = arrange(verdict.questions, verdict.outcomes)
    assert grid.panels[0].rows[0][0] == 0, "the first choice comes first"
    for panel in grid.panels:
        for row, cells in enumerate(panel.rows):
            side = {question.key: question.words[row // question.span] for question in grid.rows}
            for column, number in enumerate(cells):
                top = {question.key: question.words[column // question.span] for question in grid.columns}
                if number is not None:
                    answers = {**dict(grid.fixed), **dict(panel.answers), **side, **top}
                    filters = verdict.outcomes[number].combination.as_filters
                    assert {f"{key}={word}" for key, word in answers.items()} == set(filters.split())


# The contrast of an element's text with what is behind it, as WCAG defines it.
