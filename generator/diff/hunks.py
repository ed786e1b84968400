"""The edits that turn old projects into new ones, each shown once, however many projects have it."""

import io
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from generator.answers.combinations import Combination
from generator.diff.versions import Change, File, Pair
from generator.render.git import compare_folders

CONTEXT = 3  # lines around an edit
HEADER = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Edit:
    """One edit of a file, without the lines around it, in which projects differ."""

    path: str
    removed: tuple[str, ...] = ()  # lines, or the digest of the content where it is binary
    added: tuple[str, ...] = ()
    mode: str = ""  # git's words where the file is new, goes, or has another mode
    binary: bool = False
    number: int = 0  # tells it from equal edits of the same file


@dataclass(frozen=True)
class Place:
    """Where an edit is in one version of a file: the lines from the first number to before the second, from 0."""

    edit: Edit
    old: tuple[int, int] = (0, 0)
    new: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Group:
    """Edits that the same projects have."""

    combinations: list[Combination]
    edits: list[Edit]
    diff: str  # these edits alone, as the first of the projects has them


def group_edits(changes: Mapping[Pair, Sequence[Change]], store: Path) -> list[Group]:
    """Show the changes of all projects as few edits, those of the most projects first."""
    places = find_places(dict.fromkeys(change for files in changes.values() for change in files), store)
    having: dict[Edit, list[Pair]] = {}
    for pair, files in changes.items():
        for place in itertools.chain.from_iterable(places[change] for change in files):
            having.setdefault(place.edit, []).append(pair)
    together: dict[tuple[Pair, ...], list[Edit]] = {}
    for edit, pairs in having.items():
        together.setdefault(tuple(pairs), []).append(edit)
    groups = []
    for members, edits in sorted(together.items(), key=lambda item: -len(item[0])):
        chosen = set(edits)
        diff = "".join(show_file(change, places[change], chosen, store) for change in changes[members[0]])
        groups.append(Group([new for _, new in members], edits, diff))
    return groups


def find_places(changes: Iterable[Change], store: Path) -> dict[Change, list[Place]]:
    """Let git find the edits of all files at once, each file under its number."""
    numbered = dict(enumerate(changes))
    with tempfile.TemporaryDirectory(dir=store) as folder:
        sides = Path(folder) / "old", Path(folder) / "new"
        for side in sides:
            side.mkdir()
        for number, change in numbered.items():
            for side, file in zip(sides, (change.old, change.new), strict=True):
                if file:
                    os.link(store / file.digest, side / str(number))
        shown = compare_folders(*sides, "--unified=0", "--no-renames")
    # Lines of files begin with + or - or a backslash: what else begins a line is git's own.
    sections = re.split(r"^diff --git a/(\d+) .*\n", shown, flags=re.MULTILINE)
    texts = dict(zip(map(int, sections[1::2]), sections[2::2], strict=True))
    return {change: places_of(change, texts.get(number, ""), store) for number, change in numbered.items()}


def places_of(change: Change, shown: str, store: Path) -> list[Place]:
    """Read the edits of one file from what git shows of it without context."""
    mode = mode_words(change)
    if re.search(r"^Binary files ", shown, flags=re.MULTILINE):
        digests = [(file.digest,) if file else () for file in (change.old, change.new)]
        return [Place(Edit(change.path, digests[0], digests[1], mode, binary=True))]
    old, new = read_lines(change.old, store), read_lines(change.new, store)
    if change.old is None or change.new is None:
        return [Place(Edit(change.path, tuple(old), tuple(new), mode), (0, len(old)), (0, len(new)))]
    places = [Place(Edit(change.path, mode=mode))] if mode else []
    equal: dict[Edit, int] = {}
    for header in filter(None, map(HEADER.match, shown.split("\n"))):
        begin, end = lines_at(header[1], header[2])
        new_begin, new_end = lines_at(header[3], header[4])
        edit = Edit(change.path, tuple(old[begin:end]), tuple(new[new_begin:new_end]))
        equal[edit] = number = equal.get(edit, -1) + 1
        places.append(
            Place(Edit(edit.path, edit.removed, edit.added, number=number), (begin, end), (new_begin, new_end))
        )
    return places


def lines_at(start: str, count: str | None) -> tuple[int, int]:
    """Read the lines that one side of git's @@ names; where there are none, it names the line before them."""
    length = int(count) if count else 1
    begin = int(start) - (length > 0)
    return begin, begin + length


def mode_words(change: Change) -> str:
    """Say in git's words what becomes of the file as a whole; "" if only its content changes."""
    if change.old is None:
        return f"new file mode {change.new.mode}" if change.new else ""
    if change.new is None:
        return f"deleted file mode {change.old.mode}"
    changes = change.old.mode != change.new.mode
    return f"old mode {change.old.mode}\nnew mode {change.new.mode}" if changes else ""


def read_lines(file: File | None, store: Path) -> list[str]:
    """Return the lines of a file as git counts them, with their ends."""
    if file is None:
        return []
    return list(io.StringIO((store / file.digest).read_bytes().decode(errors="surrogateescape"), newline="\n"))


def show_file(change: Change, places: Sequence[Place], chosen: AbstractSet[Edit], store: Path) -> str:
    """Return the diff of one file with no other edits than the chosen ones, or "" if it has none of them."""
    edits = [place.edit for place in places if place.edit in chosen]
    if not edits:
        return ""
    parts = [f"diff --git a/{change.path} b/{change.path}\n"]
    parts += [f"{edit.mode}\n" for edit in edits if edit.mode]
    names = (f"a/{change.path}" if change.old else "/dev/null"), (f"b/{change.path}" if change.new else "/dev/null")
    if any(edit.binary for edit in edits):
        parts.append(f"Binary files {names[0]} and {names[1]} differ\n")
    elif any(edit.removed or edit.added for edit in edits):
        parts.append(f"--- {names[0]}\n+++ {names[1]}\n")
        parts += show_hunks(read_lines(change.old, store), places, chosen)
    return "".join(parts)


def show_hunks(old: Sequence[str], places: Sequence[Place], chosen: AbstractSet[Edit]) -> list[str]:
    """Return the chosen edits as hunks. The lines around them end where another edit begins."""
    places = [place for place in places if place.edit.removed or place.edit.added]
    hunks: list[list[int]] = []
    for index, place in enumerate(places):
        if place.edit not in chosen:
            continue
        near = bool(hunks) and hunks[-1][-1] == index - 1 and place.old[0] - places[index - 1].old[1] <= 2 * CONTEXT
        if near:
            hunks[-1].append(index)
        else:
            hunks.append([index])
    shown = []
    for hunk in hunks:
        least = places[hunk[0] - 1].old[1] if hunk[0] else 0
        most = places[hunk[-1] + 1].old[0] if hunk[-1] + 1 < len(places) else len(old)
        shown.append(show_hunk(old, [places[index] for index in hunk], least, most))
    return shown


def show_hunk(old: Sequence[str], places: Sequence[Place], least: int, most: int) -> str:
    """Return one hunk, with lines around it that are not before the least nor after the most."""
    begin = max(places[0].old[0] - CONTEXT, least)
    end = min(places[-1].old[1] + CONTEXT, most)
    lines, at = [], begin
    for place in places:
        lines += [" " + line for line in old[at : place.old[0]]]
        lines += ["-" + line for line in place.edit.removed] + ["+" + line for line in place.edit.added]
        at = place.old[1]
    lines += [" " + line for line in old[at:end]]
    grown = sum(len(place.edit.added) - len(place.edit.removed) for place in places)
    new_begin = places[0].new[0] - (places[0].old[0] - begin)
    heading = next((line.rstrip() for line in reversed(old[:begin]) if re.match(r"[A-Za-z_$]", line)), "")
    spans = f"-{span(begin, end - begin)} +{span(new_begin, end - begin + grown)}"
    body = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join([f"@@ {spans} @@ {heading}".rstrip() + "\n", *body])


def span(begin: int, length: int) -> str:
    """Name lines as git's @@ does."""
    return f"{begin + (length > 0)},{length}"
