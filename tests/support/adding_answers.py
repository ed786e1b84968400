"""docs/adding-answers.md, as a maintainer follows it: files are copied, and each block goes where the page says."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.questions import TEMPLATE

PAGE = TEMPLATE / "docs" / "adding-answers.md"
PART = re.compile(
    r"^## (?P<title>.+)$"
    r"|^Copy the files of `tests/additions/(?P<copied>\w+)/` to the same paths"
    r"|^- (?P<item>In `.+`:) `(?P<line>[^`]+)`$"
    r"|^(?P<said>.+)\n\n(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>(?:.*\n)*?)(?P=fence)$",
    re.MULTILINE,
)
IN_FILE = re.compile(
    r"In `(?P<file>[^`]+)`, (?P<how>below|above|instead of) "
    r"(?P<which>the line|both lines|the line that begins with) `(?P<line>[^`]+)`:"
)


Step = Callable[[Path], None]


@dataclass
class Section:
    """One change: what to do in a clone, in this order, and the commands that check it."""

    steps: list[Step] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def follow(self, folder: Path) -> None:
        for step in self.steps:
            step(folder)


def put(text: str, said: str, *, indented: bool) -> Step:
    """Put a text where the page says; it fails if the place is not there, or if there are others like it."""
    place = IN_FILE.fullmatch(said)
    assert place, f"this does not say where a block goes: {said}"
    name, how, which, wanted = place.groups()
    first, last = {"below": (1, 1), "above": (0, 0), "instead of": (0, 1)}[how]
    expected = 2 if which == "both lines" else 1

    def step(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        meant = str.startswith if "begins" in which else str.__eq__
        places = [number for number, line in enumerate(lines) if meant(line.strip(), wanted)]
        assert len(places) == expected, f"{name} has {len(places)} lines {wanted}, and should have {expected}"
        for number in reversed(places):
            indentation = lines[number].partition(lines[number].lstrip(" "))[0] if indented else ""
            lines[number + first : number + last] = [indentation + text]
        (folder / name).write_text("".join(lines))

    return step


def copy(source: Path) -> Step:
    """Copy files to the same paths; it fails if one is not new."""

    def step(folder: Path) -> None:
        for file in filter(Path.is_file, source.rglob("*")):
            place = folder / file.relative_to(source)
            assert not place.exists(), f"{place} is not new"
            shutil.copyfile(file, place)

    return step


def read_page() -> dict[str, Section]:
    """Return the sections of the page that have blocks, by title: with a language for a file, else for a shell."""
    sections: dict[str, Section] = {}
    section = Section()
    page = PAGE.read_text()
    assert "```" not in PART.sub("", page), "a block is not below one line that ends a paragraph"
    for part in PART.finditer(page):
        if part["title"]:
            section = sections[part["title"]] = Section()
        elif part["copied"]:
            section.steps.append(copy(TEMPLATE / "tests" / "additions" / part["copied"]))
        elif part["item"]:
            section.steps.append(put(f"{part['line']}\n", part["item"], indented=True))
        elif part["language"]:
            section.steps.append(put(part["text"], part["said"], indented=False))
        else:
            section.commands += part["text"].splitlines()
    return {title: section for title, section in sections.items() if section.steps}
