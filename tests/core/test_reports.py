"""The reports of a check say what its verdict says, and no text that they show can do harm."""

import io
import itertools
import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

from generator.combinations import Combination, shaping_questions
from generator.questions import Choice, Question
from generator.reports.grid import arrange
from generator.reports.jsonfile import write_json
from generator.reports.junit import write_junit
from generator.reports.page import write_page
from generator.reports.summary import MANY, stages_of
from generator.reports.terminal import show
from generator.results import STAGES, Failure, Outcome, Verdict, reproduce

HOSTILE = (
    "</script><script>window.harmed = 1</script>\n<img src=x onerror='window.harmed = 1'> {{ 7 * 7 }} [bold]&amp;\n"
    "\x1b[31mred\x1b[0m \x1b]0;title\x07nul:\0 bell:\a half:\ud800 ]]> <!-- -->"
)
CLEANED = "red nul: bell: half: ]]> <!-- -->"
BROWSERS = ["chromium", "google-chrome"]
NOTE = "apex is not installed"


def make_question(key: str, size: int) -> Question:
    """A question with so many choices."""
    return Question(key, f"Which {key}", f"{key}0", tuple(Choice(f"{key}{i}", f"{i}", False) for i in range(size)))


def make_verdict(questions: list[Question], legal: Callable[[Combination], bool] = lambda _: True) -> Verdict:
    """A verdict in which every stage ran on every legal combination, and nothing failed; every third was cached."""
    rows = itertools.product(*([(question.key, choice.value) for choice in question.choices] for question in questions))
    outcomes = [
        Outcome(combination, seconds={stage: 0.25 * n for n, stage in enumerate(STAGES)}, cached=i % 3 == 0)
        for i, combination in enumerate(filter(legal, map(Combination, rows)))
    ]
    return Verdict(
        outcomes, questions, stages={stage: 75.0 for stage in STAGES}, wall=4000.0, versions={"torch": "2.9"}
    )


@pytest.fixture
def verdict() -> Verdict:
    """A verdict on all questions of the template: three failures in two combinations, and a note in some."""
    made = make_verdict(shaping_questions(), lambda one: one["backend"] != "mpi" or one["launcher"] == "mpirun")
    first, second = made.outcomes[17], made.outcomes[99]
    first.failures += [Failure("train", HOSTILE, "/tmp/left/<b>here"), Failure("train", "and another")]
    second.failures += [
        Failure("types", "\ntrain.py:12: error: no\n"),
        Failure("train", "Traceback (most\n  x\nKeyError: 1"),
    ]
    second.weights = "0123abcd" * 8
    for outcome in made.outcomes:
        outcome.notes += [NOTE] if outcome.combination["amp"] == "apex" else []
    return made


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
        widths = {len(row.cells) for row in panel.rows}
        assert widths == {sum(heading.span for heading in headings) for _, headings in grid.columns} or not grid.columns
        spans = sum(heading.span for row in panel.rows for heading in row.headings)
        assert spans == len(panel.rows) * len(grid.row_questions)
    shown = [key for key, _ in (*grid.fixed, *grid.columns, *grid.panels[0].answers)] + grid.row_questions
    assert sorted(shown) == sorted(question.key for question in questions)


def hash_of(combination: Combination) -> int:
    """A number that looks random, the same in every run."""
    return sum(ord(letter) * (place + 1) ** 2 for place, letter in enumerate(combination.name))


def test_a_cell_of_the_grid_stands_under_its_answers(verdict: Verdict) -> None:
    grid = arrange(verdict.questions, verdict.outcomes)
    assert grid.panels[0].rows[0].cells[0] == 0, "the first choice comes first"
    for panel in grid.panels:
        side: dict[str, str] = {}
        for row in panel.rows:
            begun = grid.row_questions[len(grid.row_questions) - len(row.headings) :]
            side |= dict(zip(begun, [heading.word for heading in row.headings], strict=True))
            for column, number in enumerate(row.cells):
                top = {
                    key: [heading.word for heading in headings for _ in range(heading.span)][column]
                    for key, headings in grid.columns
                }
                if number is not None:
                    answers = {**dict(grid.fixed), **dict(panel.answers), **side, **top}
                    filters = verdict.outcomes[number].combination.as_filters
                    assert {f"{key}={word}" for key, word in answers.items()} == set(filters.split())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser without a window."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip("no Chromium here: tests/clusters/install.sh installs it")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # root has no sandbox


@pytest.fixture
def opened(browser: Browser, verdict: Verdict, tmp_path: Path) -> Iterator[Page]:
    """The page of the verdict, in the browser. Fails where a script of it does, or it asks for anything else."""
    path = tmp_path / "report.html"
    write_page(verdict, path)
    page = browser.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    harmed = page.evaluate("window.harmed")
    page.close()
    assert problems == []
    assert set(asked) == {path.as_uri()}
    assert harmed is None


def test_the_page_shows_each_combination(opened: Page, verdict: Verdict) -> None:
    assert opened.locator(".grid .cell.fail").count() == len(verdict.failed)
    assert opened.locator(".grid .cell.pass").count() == len(verdict.outcomes) - len(verdict.failed)
    assert opened.locator(".grid .cell.cached").count() == sum(outcome.cached for outcome in verdict.outcomes)
    asked = [len(question.choices) for question in verdict.questions]
    places = opened.locator(".grid td").count()
    assert places == math.prod(asked)
    assert opened.locator(".grid .absent").count() == places - len(verdict.outcomes)
    marks = opened.locator(".grid .cell.fail, .grid .cell.pass").evaluate_all(
        "cells => cells.map(cell => [cell.classList.contains('fail'), getComputedStyle(cell, '::before').content])"
    )
    assert {(failed, mark) for failed, mark in marks} == {(True, '"✕"'), (False, '"✓"')}
    assert f"{len(verdict.failed)} of {len(verdict.outcomes)}" in opened.locator("h1").inner_text()


def test_a_click_opens_what_failed_and_hostile_text_is_inert(opened: Page, verdict: Verdict) -> None:
    outcome = verdict.failed[0]
    dialog = opened.get_by_role("dialog")
    assert not dialog.is_visible()
    opened.get_by_title(re.compile(re.escape(outcome.combination.name) + ":")).click()
    assert dialog.get_by_role("heading").first.inner_text() == outcome.combination.name
    texts = dialog.locator("pre").all_inner_texts()
    assert texts == ["\n".join([*HOSTILE.splitlines()[:2], CLEANED]), "and another"]
    assert dialog.locator(".command code").inner_text() == reproduce(outcome)
    assert "/tmp/left/<b>here" in dialog.inner_text()
    listed = opened.locator(".failures pre").first
    assert listed.inner_text() == texts[0]
    assert opened.locator("img").count() == 0
    opened.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_keyboard_goes_through_the_grid_and_opens_a_cell(opened: Page, verdict: Verdict) -> None:
    first = opened.locator(".grid .cell").first
    first.focus()
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowUp")
    assert first.get_attribute("tabindex") == "-1"
    second = arrange(verdict.questions, verdict.outcomes).panels[0].rows[0].cells[1]
    assert second is not None
    opened.keyboard.press("Enter")
    name = verdict.outcomes[second].combination.name
    assert opened.get_by_role("dialog").get_by_role("heading").first.inner_text() == name
    opened.reload()
    assert opened.get_by_role("dialog").is_visible(), "the address names the combination"


def test_the_filter_leaves_what_has_all_words(opened: Page, verdict: Verdict) -> None:
    amp = verdict.failed[0].combination["amp"]
    opened.fill("#filter", f"AMP={amp} failed")
    expected = [one for one in verdict.failed if one.combination["amp"] == amp]
    other = [one for one in verdict.failed if one not in expected]
    assert expected
    assert other
    assert opened.locator("#matches").inner_text() == f"{len(expected)} of {len(verdict.outcomes)}"
    assert opened.locator(".grid .cell:not(.out)").count() == len(expected)
    assert opened.locator(".failure:visible").count() == sum(len(one.failures) for one in expected)
    opened.fill("#filter", verdict.failed[0].failures[1].text)
    assert opened.locator("#matching button").all_inner_texts() == [f"✕ {verdict.failed[0].combination.name}"]
    opened.fill("#filter", "")
    assert opened.locator(".grid .cell.out").count() == 0
    assert opened.locator(".failure:visible").count() == sum(len(one.failures) for one in [*expected, *other])


def test_the_command_can_be_copied(opened: Page, verdict: Verdict) -> None:
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.locator(".failures .copy").first.click()
    opened.get_by_text("copied").wait_for()
    assert opened.evaluate("navigator.clipboard.readText()") == reproduce(verdict.failed[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_in_both_schemes(opened: Page, scheme: str) -> None:
    opened.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    opened.set_viewport_size({"width": 400, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    for panel in opened.locator(".panel").all():
        assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth"), "a table has to be scrolled"
    for chosen in (".grid .pass", ".grid .fail", "h1", ".failures pre", ".stages td", ".legend li"):
        assert opened.locator(chosen).first.evaluate(CONTRAST) >= 4.5, f"{chosen} is hard to read"


# The contrast of an element's text with what is behind it, as WCAG defines it.
CONTRAST = """element => {
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(value => value / 255)
      .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const pair = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@pytest.mark.parametrize("sizes", [(), (1,), (5,), (5, 4), (2,) * 6], ids=str)
def test_any_number_of_questions_makes_a_page(browser: Browser, sizes: tuple[int, ...], tmp_path: Path) -> None:
    verdict = make_verdict([make_question(f"q{number}", size) for number, size in enumerate(sizes)])
    path = tmp_path / "report.html"
    write_page(verdict, path)
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.locator(".grid .cell.pass").count() == len(verdict.outcomes)
    assert page.locator(".failures").count() == 0
    page.locator(".grid .cell").last.click()
    assert page.get_by_role("dialog").is_visible()
    page.close()
