"""docs/maintaining.md, as a maintainer follows it: each block of it goes where the line above the block says."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from generator.answers.questions import TEMPLATE

PAGE = TEMPLATE / "docs" / "maintaining.md"
PART = re.compile(
    r"^## (?P<title>.+)$|^(?P<said>.+)\n\n(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>(?:.*\n)*?)(?P=fence)$",
    re.MULTILINE,
)
NEW_FILE = re.compile(r"The new file `(?P<file>[^`]+)`:")
IN_FILE = re.compile(
    r"In `(?P<file>[^`]+)`, (?P<how>below|above|instead of) "
    r"(?P<which>the line|both lines|the line that begins with) `(?P<line>[^`]+)`:"
)


@dataclass(frozen=True)
class Block:
    """Text that goes into a file."""

    text: str
    file: str
    how: str = ""  # below, above or instead of a line; "" for a new file
    which: str = ""  # which lines are meant
    line: str = ""

    def follow(self, folder: Path) -> None:
        """Do what the page says. Fails if the place is not there, or if there are others like it."""
        file = folder / self.file
        if not self.how:
            assert not file.exists(), f"{self.file} is not new"
            file.write_text(self.text)
            return
        lines = file.read_text().splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if self.is_meant(line.strip())]
        expected = 2 if self.which == "both lines" else 1
        assert len(places) == expected, f"{self.file} has {len(places)} lines {self.line}, and should have {expected}"
        for place in reversed(places):
            first, last = {"below": (1, 1), "above": (0, 0), "instead of": (0, 1)}[self.how]
            lines[place + first : place + last] = [self.text]
        file.write_text("".join(lines))

    def is_meant(self, line: str) -> bool:
        """Return whether a line of the file is one that the page names."""
        return line.startswith(self.line) if "begins" in self.which else line == self.line


@dataclass
class Section:
    """One change: what goes where, in this order, and the commands that check it."""

    blocks: list[Block] = field(default_factory=list)
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
        elif not part["language"]:
            section.commands += part["text"].splitlines()
        else:
            place = NEW_FILE.fullmatch(part["said"]) or IN_FILE.fullmatch(part["said"])
            assert place, f"this does not say where the block below it goes: {part['said']}"
            section.blocks.append(Block(part["text"], **place.groupdict()))
    return {title: section for title, section in sections.items() if section.blocks}
