"""docs/maintaining.md, as a maintainer follows it: files are copied, and each block goes where the page says."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.questions import TEMPLATE

ADDITIONS = TEMPLATE / "tests" / "additions"
PAGE = TEMPLATE / "docs" / "maintaining.md"
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


@dataclass(frozen=True)
class Block:
    """Text that goes into a file."""

    text: str
    file: str
    how: str  # below, above or instead of a line
    which: str  # which lines are meant
    line: str
    indented: bool  # as the line that is meant

    def follow(self, folder: Path) -> None:
        """Do what the page says. Fails if the place is not there, or if there are others like it."""
        file = folder / self.file
        lines = file.read_text().splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if self.is_meant(line.strip())]
        expected = 2 if self.which == "both lines" else 1
        assert len(places) == expected, f"{self.file} has {len(places)} lines {self.line}, and should have {expected}"
        for place in reversed(places):
            first, last = {"below": (1, 1), "above": (0, 0), "instead of": (0, 1)}[self.how]
            indentation = re.match(" *", lines[place])
            assert indentation is not None
            lines[place + first : place + last] = [indentation[0] * self.indented + self.text]
        file.write_text("".join(lines))

    def is_meant(self, line: str) -> bool:
        return line.startswith(self.line) if "begins" in self.which else line == self.line


@dataclass(frozen=True)
class Copies:
    """Files that are copied to the same paths."""

    source: Path

    def follow(self, folder: Path) -> None:
        """Copy them. Fails if one is not new."""
        for file in filter(Path.is_file, self.source.rglob("*")):
            copy = folder / file.relative_to(self.source)
            assert not copy.exists(), f"{copy} is not new"
            shutil.copyfile(file, copy)


@dataclass
class Section:
    """One change: what goes where, in this order, and the commands that check it."""

    blocks: list[Block | Copies] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def follow(self, folder: Path) -> None:
        """Make the change in a clone."""
        for block in self.blocks:
            block.follow(folder)


def read_page() -> dict[str, Section]:
    """Return the sections of the page that have blocks, by their titles.

    What has a language goes into a file, the rest into a shell. Fails if a block has no place, or is not understood.
    """
    sections: dict[str, Section] = {}
    section = Section()
    page = PAGE.read_text()
    assert "```" not in PART.sub("", page), "a block is not below one line that ends a paragraph"
    for part in PART.finditer(page):
        if part["title"]:
            section = sections[part["title"]] = Section()
        elif part["copied"]:
            section.blocks.append(Copies(ADDITIONS / part["copied"]))
        elif part["item"]:
            section.blocks.append(Block(f"{part['line']}\n", **place_of(part["item"]), indented=True))
        elif part["language"]:
            section.blocks.append(Block(part["text"], **place_of(part["said"]), indented=False))
        else:
            section.commands += part["text"].splitlines()
    return {title: section for title, section in sections.items() if section.blocks}


def place_of(said: str) -> dict[str, str]:
    place = IN_FILE.fullmatch(said)
    assert place, f"this does not say where a block goes: {said}"
    return place.groupdict()
