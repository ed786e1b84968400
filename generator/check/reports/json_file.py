"""The report for programs: everything that a check found out, as JSON."""

import json
from pathlib import Path
from typing import Any

from generator.answers.questions import Question
from generator.check.results import Outcome, Verdict, reproduce

FORMAT = 1  # grows when a key goes or changes its meaning, not when one comes


def write_json(verdict: Verdict, path: Path) -> None:
    """Write the verdict to a file. Raises OSError if that is not possible.

    The file holds one object:
        format: 1
        passed: whether nothing is wrong with any combination
        counts: {total, passed, failed, cached}
        started: when the check began (ISO 8601, with its offset from UTC); wall: how long it took (seconds)
        selection: what was checked, in words; launchers: forked or real
        versions: {package: version}
        stages: {stage: wall time (seconds)}, of the stages that ran
        questions: [{key, help, default, choices: [{value, label, conditional}]}], in the order of copier.yml
        combinations: [{name, answers: {key: value}, passed, cached, seconds: {stage: time}, weights, notes: [text],
            failures: [{stage, text, folder or null}], reproduce: the command that shows the failures again}]
    """
    path.write_text(json.dumps(as_json(verdict), indent=1) + "\n")


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as the object that write_json() documents."""
    return {
        "format": FORMAT,
        "passed": verdict.passed,
        "counts": {
            "total": len(verdict.outcomes),
            "passed": len(verdict.outcomes) - len(verdict.failed),
            "failed": len(verdict.failed),
            "cached": sum(outcome.cached for outcome in verdict.outcomes),
        },
        "started": verdict.started.isoformat(),
        "wall": verdict.wall,
        "selection": verdict.selection,
        "launchers": verdict.launchers,
        "versions": verdict.versions,
        "stages": verdict.stages,
        "questions": [question_as_json(question) for question in verdict.questions],
        "combinations": [outcome_as_json(outcome, verdict.launchers) for outcome in verdict.outcomes],
    }


def question_as_json(question: Question) -> dict[str, Any]:
    """Return a question with its choices."""
    return {
        "key": question.key,
        "help": question.help,
        "default": question.default,
        "choices": [
            {"value": choice.value, "label": choice.label, "conditional": choice.conditional}
            for choice in question.choices
        ],
    }


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
        "failures": [
            {"stage": failure.stage, "text": failure.text, "folder": failure.folder} for failure in outcome.failures
        ],
        "reproduce": reproduce(outcome, launchers),
    }
