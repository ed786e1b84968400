"""The report to look at: one HTML file that needs nothing else, neither a server nor a network."""

import base64
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ..results import Outcome, Verdict, reproduce
from .grid import arrange, occurring_answers
from .plain import duration, headline, plain
from .summary import counts, failure_groups, grouped_notes, stage_summaries, stages_of, words

HERE = Path(__file__).parent
DENSE = 1500  # with more combinations than this, the cells are smaller
LONGEST = 40_000  # characters of one failure's text; what is in the middle of a longer one is left out


def write_page(verdict: Verdict, path: Path) -> None:
    """Write the page. Raises OSError where that is not possible."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"duration": duration, "headline": headline, "shown": shown}
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    page = environment.get_template("page.html.jinja").render(
        verdict=verdict,
        style=Markup(style),
        script=Markup(script),
        # A browser runs this script and no other, even if some text should get around the escaping.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        counts=counts(verdict),
        cached=sum(outcome.cached for outcome in verdict.outcomes),
        stages=stage_summaries(verdict),
        grid=arrange(verdict.questions, verdict.outcomes),
        failures_in=lambda panel: sum(not verdict.outcomes[number].passed for number in panel.numbers),
        dense=len(verdict.outcomes) > DENSE,
        kinds=[cell_kind(outcome) for outcome in verdict.outcomes],
        groups=group_views(verdict),
        suspects=suspects(verdict) if len(verdict.failed) > 1 else [],
        notes=grouped_notes(verdict),
        data=[details(outcome, verdict.launchers) for outcome in verdict.outcomes],
    )
    path.write_text(page, encoding="utf-8")


def shown(text: str) -> str:
    """Give what is shown of a failure's text: all of it, but of a very long one the beginning and the end."""
    cleaned = plain(text).strip("\n")
    left_out = len(cleaned) - LONGEST
    if left_out <= 0:
        return cleaned
    half = LONGEST // 2
    return f"{cleaned[:half]}\n\n[... {left_out} characters left out; the JSON report has all ...]\n\n{cleaned[-half:]}"


def cell_kind(outcome: Outcome) -> str:
    """Give the CSS classes of an outcome's cell."""
    kinds = ["pass" if outcome.passed else "fail"]
    return " ".join([*kinds, *["cached"] * outcome.cached, *["noted"] * bool(outcome.notes)])


def in_words(outcome: Outcome) -> str:
    """Say how a combination did, such as: failed in train, resume; from the cache."""
    failed = list(dict.fromkeys(failure.stage for failure in outcome.failures))
    result = f"failed in {', '.join(failed)}" if failed else "passed"
    return result + ("; from the cache" if outcome.cached else "") + ("; see notes" if outcome.notes else "")


def group_views(verdict: Verdict) -> list[dict[str, Any]]:
    """Give each group of failures, with the numbers of its outcomes and the command for the first."""
    numbers = {outcome.combination: number for number, outcome in enumerate(verdict.outcomes)}
    return [
        {
            "title": group.title,
            "failure": group.failure,
            "members": [(numbers[outcome.combination], outcome.combination.name) for outcome in group.outcomes],
            "command": reproduce(group.outcome, verdict.launchers),
        }
        for group in failure_groups(verdict)
    ]


def suspects(verdict: Verdict) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """Give the questions whose answers fail unequally often: each answer with how many fail, and of how many."""
    total = Counter(answer for outcome in verdict.outcomes for answer in words(outcome.combination))
    failed = Counter(answer for outcome in verdict.failed for answer in words(outcome.combination))
    rows = [
        (key, [(word, failed[key, word], total[key, word]) for word in found])
        for key, found in occurring_answers(verdict.questions, verdict.outcomes)
    ]
    return [(key, row) for key, row in rows if len({bad / count for _, bad, count in row}) > 1]


def details(outcome: Outcome, launchers: str) -> dict[str, Any]:
    """Give what the page shows when a cell is opened, as JSON can hold it."""
    return {
        "name": plain(outcome.combination.name),
        "answers": words(outcome.combination),
        "result": in_words(outcome),
        "passed": outcome.passed,
        "seconds": [(stage, duration(outcome.seconds.get(stage, 0.0))) for stage in stages_of(outcome)],
        "weights": plain(outcome.weights),
        "notes": [plain(note) for note in outcome.notes],
        "failures": [
            {"stage": failure.stage, "text": shown(failure.text), "folder": plain(failure.folder or "")}
            for failure in outcome.failures
        ],
        "command": reproduce(outcome, launchers),
    }
