"""Which combinations an option chooses, on small spaces made by hand, and the line that refuses one."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import typer

from generator.answers.combinations import Combination, SelectionError, assign, covering, rotate, select, shard
from generator.answers.questions import Choice, Question
from generator.cli.options import choose, errors_in_one_line, parse_cover, parse_shard
from generator.render.project import RenderError
from generator.render.workers import Workers

# A car has wheels; only a boat has a mast.
VALUES: dict[str, list[Any]] = {"kind": ["car", "boat"], "colour": ["red", "blue", "green"], "mast": [False, True]}
QUESTIONS = [
    Question(key, "", values[0], tuple(Choice(value, str(value), False) for value in values))
    for key, values in VALUES.items()
]
LEGAL = [
    Combination.of(dict(zip(VALUES, row, strict=True)))
    for row in itertools.product(*VALUES.values())
    if row[0] == "boat" or not row[2]
]


def names(combinations: Sequence[Combination]) -> list[str]:
    """Their names."""
    return [combination.name for combination in combinations]


def space(size: int) -> list[Combination]:
    """So many combinations, which differ in one answer."""
    return [Combination.of({"number": number}) for number in range(size)]


def tuples_within(combinations: Sequence[Combination], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """All pairs of answers (strength 2), or triples (3), that occur in any of the combinations."""
    return {some for one in combinations for some in itertools.combinations(one.answers, strength)}


def test_nothing_wanted_is_everything() -> None:
    assert select(LEGAL, [], QUESTIONS) == LEGAL


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (["kind=car"], ["car-red-false", "car-blue-false", "car-green-false"]),
        (["kind=car", "colour=blue"], ["car-blue-false"]),
        (["colour=blue", "kind=boat", "colour=red", "mast=false"], ["boat-red-false", "boat-blue-false"]),
        (["colour=red,blue", "mast=true"], ["boat-red-true", "boat-blue-true"]),
        (["boat-red-true"], ["boat-red-true"]),
        (["boat-red-true", "car-red-false"], ["car-red-false", "boat-red-true"]),
        (["boat-red-true", "kind=car", "colour=red"], ["car-red-false", "boat-red-true"]),
        (["car-red-false", "kind=car", "colour=red"], ["car-red-false"]),
    ],
    ids=" ".join,
)
def test_filters_and_names_choose(wanted: list[str], chosen: list[str]) -> None:
    assert names(select(LEGAL, wanted, QUESTIONS)) == chosen


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (["wheels=4"], "wheels is no question with choices: those are kind, colour, mast"),
        (["=car"], " is no question with choices: those are kind, colour, mast"),
        (["colour=pink"], "colour=pink is no choice: colour may be red, blue, green"),
        (["colour=red,pink"], "colour=pink is no choice: colour may be red, blue, green"),
        (["colour="], "colour= is no choice: colour may be red, blue, green"),
        (["mast=False"], "mast=False is no choice: mast may be false, true"),
        (["car-red-true"], "car-red-true is neither KEY=VALUE nor the name of a combination, such as car-red-false"),
        (["kind=car", "mast=true"], "no legal combination has kind=car mast=true"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_chosen_is_refused(wanted: list[str], reason: str) -> None:
    with pytest.raises(SelectionError) as refused:
        select(LEGAL, wanted, QUESTIONS)
    assert str(refused.value) == reason


# No set is smaller. For the pairs: each car once, each boat with a mast once, and one boat without.
@pytest.mark.parametrize(("strength", "size"), [(1, 3), (2, 7), (3, 9)])
def test_a_covering_set_misses_no_tuple_and_is_small(strength: int, size: int) -> None:
    chosen = covering(LEGAL, strength)
    assert tuples_within(chosen, strength) == tuples_within(LEGAL, strength)
    assert len(chosen) == size
    assert chosen == [combination for combination in LEGAL if combination in chosen]
    assert covering(LEGAL, strength) == chosen


@pytest.mark.parametrize("strength", [0, 4, 99])
def test_a_covering_set_of_too_many_or_no_questions_is_refused(strength: int) -> None:
    with pytest.raises(SelectionError) as refused:
        covering(LEGAL, strength)
    assert str(refused.value) == f"--cover {strength} is impossible: choose 1 to 3, the number of questions"


def test_the_choices_of_a_question_take_turns() -> None:
    assert names(rotate(LEGAL, "colour", QUESTIONS)) == ["car-red-false", "boat-blue-false", "boat-green-true"]
    assert names(rotate(LEGAL, "mast", QUESTIONS)[:3]) == ["car-red-false", "car-blue-false", "car-green-false"]


@pytest.mark.parametrize(("size", "parts"), [(1, 1), (9, 2), (100, 7), (480, 4), (481, 4), (3, 8)])
def test_parts_are_disjoint_complete_and_balanced(size: int, parts: int) -> None:
    whole = space(size)
    pieces = [shard(whole, part, parts) for part in range(1, parts + 1)]
    assert sorted(names([combination for piece in pieces for combination in piece])) == sorted(names(whole))
    share = math.ceil(size / parts)
    assert max(map(len, pieces)) <= share
    assert min(map(len, pieces)) >= share - (parts - 1)
    for piece in pieces:
        assert piece == [combination for combination in whole if combination in piece]


def test_a_part_does_not_depend_on_the_order() -> None:
    whole = space(50)
    assert assign(whole, 3) == assign(whole[::-1], 3)


@pytest.mark.parametrize("part", [0, 5, -1])
def test_a_part_that_does_not_exist_is_refused(part: int) -> None:
    with pytest.raises(SelectionError) as refused:
        shard(LEGAL, part, 4)
    assert str(refused.value) == f"--shard {part}/4 does not exist: the first is 1/4, the last 4/4"


@pytest.mark.parametrize(("text", "numbers"), [("1/4", (1, 4)), ("4/4", (4, 4)), ("256/256", (256, 256))])
def test_a_part_is_read(text: str, numbers: tuple[int, int]) -> None:
    assert parse_shard(text) == numbers


@pytest.mark.parametrize("text", ["", "1", "1/", "/4", "a/b", "1/0", "-1/4", "1/4/4", " 1/4", "1.0/4", "²/4"])
def test_a_part_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SelectionError) as refused:
        parse_shard(text)
    assert str(refused.value) == f"--shard {text} is not I/N, such as 1/4, the first of four parts"


def test_more_parts_than_github_has_jobs_are_refused() -> None:
    with pytest.raises(SelectionError, match=r"^--shard 1/257 has too many parts: there are 256 at most$"):
        parse_shard("1/257")


@pytest.mark.parametrize("text", ["", "two", "-1", "2.0", "²"])
def test_a_strength_that_is_no_number_is_refused(text: str) -> None:
    assert parse_cover("2") == 2
    with pytest.raises(SelectionError) as refused:
        parse_cover(text)
    assert str(refused.value) == f"--cover {text} is no number: 2 covers every pair of answers, 3 every triple"


def test_options_that_make_no_sense_are_refused_before_copier_is_asked() -> None:
    with Workers() as workers:
        for wanted, cover, part in (["task=x"], None, None), ([], "x", None), ([], None, "x"):
            with pytest.raises(SelectionError, match="x is "):
                choose(workers, wanted, None, cover, part)
        assert not workers.pool._processes


@pytest.mark.parametrize("error", [RenderError("two\n lines"), SelectionError("two lines"), OSError("two lines")])
def test_an_error_is_one_line_and_exit_code_2(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as left, errors_in_one_line():
        raise error
    assert left.value.exit_code == 2
    assert capsys.readouterr() == ("", "error: two lines\n")
