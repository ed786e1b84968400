"""The reports of a check say what its verdict says, and no text that they show can do harm."""

import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from generator.answers.combinations import Combination, shaping_questions
from generator.check.results import STAGES, Failure, Outcome, Verdict, reproduce
from generator.cli.check_report import MANY, show, write_json, write_junit, write_page

HOSTILE = (
    "</script><script>window.harmed = 1</script>\n<img src=x onerror='window.harmed = 1'> {{ 7 * 7 }} [bold]&amp;\n"
    "\x1b[31mred\x1b[0m \x1b]0;title\x07nul:\0 bell:\a half:\ud800 ]]> <!-- -->"
)
CLEANED = "red nul: bell: half: ]]> <!-- -->"
NOTE = "apex is not installed"


@pytest.fixture
def verdict() -> Verdict:
    """One with failures of all stages in two combinations, notes in some, and every third from the cache."""
    rows = itertools.product(*([(each.key, choice.value) for choice in each.choices] for each in shaping_questions()))
    legal = (Combination(row) for row in rows if ("backend", "mpi") not in row or ("launcher", "mpirun") in row)
    outcomes = [
        Outcome(combination, seconds={stage: 0.25 * n for n, stage in enumerate(STAGES)}, cached=i % 3 == 0)
        for i, combination in enumerate(legal)
    ]
    made = Verdict(outcomes, stages={stage: 75.0 for stage in STAGES}, wall=4000.0, versions={"torch": "2.9"})
    first, second = made.outcomes[17], made.outcomes[99]
    first.failures += [Failure("train", HOSTILE, "/tmp/left/<b>here"), Failure("train", "and another")]
    second.failures += [Failure("types", "\na.py:1: error: no\n"), Failure("train", "Traceback (most\n x\nKeyError: 1")]
    second.weights = "0123abcd" * 8
    for outcome in made.outcomes:
        outcome.notes += [NOTE] if outcome.combination["amp"] == "apex" else []
    return made


def printed(verdict: Verdict, width: int, **reports: Path) -> str:
    show(verdict, Console(file=(output := io.StringIO()), width=width), reports)
    return output.getvalue()


@pytest.mark.parametrize("width", [60, 200])
def test_terminal_shows_the_verdict_at_any_width(verdict: Verdict, width: int) -> None:
    report = Path("/somewhere") / ("deep/" * 40) / "report.html"
    output = printed(verdict, width, page=report)
    lines = output.splitlines()
    total, cached = len(verdict.outcomes), sum(outcome.cached for outcome in verdict.outcomes)
    summary = f"{total} combinations: {total - 2} passed, 2 failed; {cached} taken from the cache; 1 h 07 min"
    assert {summary, f"page: {report}", *map(reproduce, verdict.failed)} <= {*lines}
    assert f"note: {NOTE} ({sum(bool(outcome.notes) for outcome in verdict.outcomes)} combinations)" in output
    assert output.count(NOTE) == 1
    types = next(line for line in lines if line.split()[:1] == ["types"])
    assert re.search(rf"{total - 1} +1 +1 min 15 s", types)
    assert "left in /tmp/left/<b>here" in output
    for said in ("a.py:1: error: no", "KeyError: 1", "</script><script>window.harmed = 1</script>"):
        assert width < 200 or said in output, "the line that says most"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\ud800-\udfff]", output)


@pytest.mark.parametrize("launchers", ["forked", "real"])
def test_equal_failures_become_one_when_there_are_many(verdict: Verdict, launchers: str) -> None:
    verdict.launchers = launchers
    broken, other = [one for one in verdict.outcomes if one.combination["amp"] == "apex"], verdict.outcomes[0]
    for outcome in verdict.outcomes:
        name = outcome.combination.name
        text = f"{name}: /tmp/{name[::-1]}/train.py:{len(name)}: took {len(name) / 7} s"
        outcome.failures = [Failure("train", text)] if outcome in broken else []
    other.failures = [Failure("train", "something else")]
    assert len(broken) > MANY
    assert other not in broken
    output = printed(verdict, 200)
    assert f"{len(broken)} combinations, all with amp=apex, such as {broken[0].combination.name}" in output
    commands = [line for line in output.splitlines() if line.startswith("ddp-template check")]
    assert commands == [reproduce(broken[0], launchers), reproduce(other, launchers)]


def test_junit_has_a_test_for_each_combination_and_stage_that_ran(verdict: Verdict, tmp_path: Path) -> None:
    verdict.outcomes[5].seconds = {"render": 0.5}
    path = tmp_path / "junit.xml"
    write_junit(verdict, path)
    root = ET.parse(path).getroot()
    cases = {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}
    ran = {(f"ddp-template.{stage}", one.combination.name): one for one in verdict.outcomes for stage in one.stages}
    assert cases.keys() == ran.keys()
    assert len(cases) == len(list(root.iter("testcase"))) == int(root.get("tests", 0))
    for key, outcome in ran.items():
        stage = str(key[0]).partition(".")[2]
        assert float(cases[key].get("time", -1)) == outcome.seconds.get(stage, 0.0)
        properties = {one.get("name"): one.get("value") for one in cases[key].iter("property")}
        assert properties["cached"] == str(outcome.cached).lower()
        texts = [failure.text for failure in outcome.failures if failure.stage == stage]
        assert len(cases[key].findall("failure")) == bool(texts)
    outcome = verdict.failed[0]
    failure = cases["ddp-template.train", outcome.combination.name].find("failure")
    assert failure is not None
    assert failure.get("message") == f"{HOSTILE.splitlines()[0]} (and 1 more)"
    said = str(failure.text)
    for part in (*HOSTILE.splitlines()[:2], CLEANED, "and another", "left in /tmp/left/<b>here", reproduce(outcome)):
        assert part in said
    assert "\x1b" not in path.read_text()


def test_json_holds_counts_times_and_outcomes(verdict: Verdict, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(verdict, path)
    report = json.loads(path.read_text())
    assert (report["counts"], report["wall"], report["stages"]) == (verdict.counts, verdict.wall, verdict.stages)
    for told, outcome in zip(report["combinations"], verdict.outcomes, strict=True):
        combination = Combination.of(told["answers"])
        failures = [Failure(**failure) for failure in told["failures"]]
        names = "seconds", "cached", "weights", "notes", "trained_as"
        assert Outcome(combination, failures, *(told[name] for name in names)) == outcome
        assert told["name"] == outcome.combination.name


def test_the_page_has_each_failure_and_no_text_becomes_a_script(verdict: Verdict, tmp_path: Path) -> None:
    verdict.outcomes = [*verdict.failed, *[outcome for outcome in verdict.outcomes if outcome.notes][:3]]
    path = tmp_path / "report.html"
    write_page(verdict, path)
    tags: list[tuple[str, dict[str, str]]] = []
    texts: list[str] = []
    parser: Any = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    parser.handle_data = texts.append
    parser.feed(path.read_text())
    assert {tag for tag, _ in tags}.isdisjoint({"script", "img", "iframe", "object", "link"})
    assert [name for _, names in tags for name in names if name.startswith("on") or name == "src"] == []
    failed = (*HOSTILE.splitlines()[:2], CLEANED, "and another", *map(reproduce, verdict.failed), NOTE)
    for part in (*failed, *(outcome.combination.name for outcome in verdict.outcomes)):
        assert part in "".join(texts)
