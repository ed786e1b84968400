"""The page of a check in a real browser: what it shows, how it is used, and that no text on it can do harm."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from generator.check.reports.page import arrange, write_page
from generator.check.results import Verdict, reproduce
from tests.support.browser import CONTRAST, opened_page
from tests.support.reports import CLEANED, HOSTILE, failed_verdict, make_question, make_verdict


@pytest.fixture
def verdict() -> Verdict:
    """A verdict with failures and notes."""
    return failed_verdict()


@pytest.fixture
def opened(browser: Browser, verdict: Verdict, tmp_path: Path) -> Iterator[Page]:
    """The page of the verdict, in the browser."""
    path = tmp_path / "report.html"
    write_page(verdict, path)
    with opened_page(browser, path) as page:
        yield page


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
    second = arrange(verdict.questions, verdict.outcomes).panels[0].rows[0][1]
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
