"""Finds lines that occur twice in a file, where an update could put an owner's edit into the wrong place.

Copier carries edits over by `git apply`, which looks for the three lines before an edit and the three after it, and
takes the place that is nearest to the old one where they occur.
"""

from collections.abc import Iterator, Sequence

from .replay import is_text

CONTEXT = 3  # lines before and after an edit: Copier's --context-lines


def ambiguous_places(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Give the places of a file where an inserted line has the surroundings of another place: both line numbers.

    Lines count from 1, and a place is before the line of its number. git takes surroundings that begin with the file
    only at its begin, and those without lines after them only at its end; all others anywhere.
    """
    found = []
    for place in range(CONTEXT + 1, len(lines)):  # 0 to CONTEXT, and the end, are held by the begin and the end
        around = lines[place - CONTEXT : place + CONTEXT]
        others = (other for other in occurrences(lines, around) if other != place - CONTEXT)
        if (other := next(others, None)) is not None:
            found.append((place + 1, other + CONTEXT + 1))
    return found


def occurrences(lines: Sequence[str], window: Sequence[str]) -> Iterator[int]:
    """Give where a window of lines begins, wherever it occurs."""
    for begin in range(len(lines) - len(window) + 1):
        if lines[begin] == window[0] and lines[begin : begin + len(window)] == window:
            yield begin


def repeats_in(content: bytes) -> list[str]:
    """Say where a file has equal lines around two places; nothing where it is no text."""
    lines = content.decode().splitlines() if is_text(content) else []
    return [
        f"the lines around line {place} are those around line {other}: an update could move an edit between them"
        for place, other in ambiguous_places(lines)
    ]
