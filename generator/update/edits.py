"""Owners' edits, one at every place of every file that a new version changes, are carried over by Copier itself.

Files of all projects lie side by side in one made-up template, each as often as it has places: one update, thousands
of edits, none of which meets another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from generator.render.git import run
from generator.update.places import CONTEXT, Chain, Place, chain_of, chains_in, find_places
from generator.update.replay import MARKERS, commit_all, copy_project, put_under_git, update

SETTINGS_OF_TEMPLATE = "_subdirectory: template\n_templates_suffix: .jinja\n"
ANSWERS = "{{ _copier_conf.answers_file }}.jinja"
OLD, NEW = "v1", "v2"
NEAREST = 2  # lines on each side of an edit


@dataclass(frozen=True)
class ChangedFile:
    """One file of some projects as two versions of the template write it."""

    path: str
    old: str
    new: str
    about: str = field(default="", compare=False)  # the first update that changes it

    @property
    def name(self) -> str:
        """What the file is called, without its folder."""
        return PurePath(self.path).name


@dataclass(frozen=True)
class Edit:
    """A line that the owner has added at a place of a file."""

    file: ChangedFile
    place: Place
    number: int

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"owners_edit_{self.number}"

    @property
    def line(self) -> str:
        """The line, in the language of the file."""
        match PurePath(self.file.path).suffix:
            case ".py":
                return f"{self.place.indent}{self.name} = {self.number}\n"
            case ".md":
                return f"{self.name}\n"
            case _:
                return f"# {self.name}\n"

    @property
    def path(self) -> str:
        """Where its file lies in the made-up project."""
        return f"{self.number}/{self.file.name}"

    @property
    def edited(self) -> str:
        """The old file with it."""
        lines = self.file.old.splitlines(keepends=True)
        return "".join([*lines[: self.place.line], self.line, *lines[self.place.line :]])

    def __str__(self) -> str:
        inside = f" in {'.'.join(self.place.chain)}" if self.place.chain else ""
        about = f"{self.file.about}: " if self.file.about else ""
        return f"{about}{self.file.path}, an edit before line {self.place.line + 1}{inside}"


def choose_edits(files: Iterable[ChangedFile]) -> list[Edit]:
    """Return an edit for each place of the files. Of variants that have the same lines around a place, and in the new
    version in the same blocks, the first stands for all; where the new version has other lines, each stands for itself.
    """
    edits: list[Edit] = []
    seen = set()
    for file in files:
        lines, new_lines = file.old.splitlines(), file.new.splitlines()
        holding = windows_of(file.path, file.new)
        for place in find_places(file.path, file.old):
            around = (*lines[max(0, place.line - CONTEXT) : place.line], None, *lines[place.line :][:CONTEXT])
            window = tuple(line for line in around if line is not None)
            ends = () if len(window) == 2 * CONTEXT else (*new_lines[:CONTEXT], *new_lines[-CONTEXT:])
            # Where git does not find these lines, what becomes of the edit depends on the whole new file.
            found = holding.get(window, file.new)
            key = (file.path, place.chain, place.indent, around, ends, found)
            if key not in seen:
                seen.add(key)
                edits.append(Edit(file, place, len(edits)))
    return edits


def windows_of(path: str, source: str) -> dict[tuple[str, ...], tuple[Chain, ...]]:
    """Return the lines around every place of a file, with what is around each place that has them."""
    lines = source.splitlines()
    windows: dict[tuple[str, ...], tuple[Chain, ...]] = {}
    for place in find_places(path, source):
        window = tuple(lines[max(0, place.line - CONTEXT) : place.line + CONTEXT])
        windows[window] = (*windows.get(window, ()), place.chain)
    return windows


def carry_edits(edits: Sequence[Edit], folder: Path) -> list[str]:
    """Let Copier carry all edits over, and say which are gone or have moved."""
    if not edits:
        return []
    template, project = folder / "template", folder / "project"
    write_template(template, edits)
    copy_project(template, OLD, {}, project)
    put_under_git(project)
    for edit in edits:
        (project / edit.path).write_text(edit.edited)
    commit_all(project)
    update(project, NEW)
    chains = {file: chains_in(file.path, file.new) for file in dict.fromkeys(edit.file for edit in edits)}
    judged = ((edit, judge(edit, project, chains[edit.file])) for edit in edits)
    return [f"{edit}: {wrong}" for edit, wrong in judged if wrong]


def write_template(folder: Path, edits: Sequence[Edit]) -> None:
    """Write a template of two versions, in which every edit has a copy of its file."""
    (folder / "template").mkdir(parents=True)
    (folder / "copier.yml").write_text(SETTINGS_OF_TEMPLATE)
    (folder / "template" / ANSWERS).write_text("{{ _copier_answers | to_nice_yaml }}")
    run(folder, "init", "--quiet")
    for version in (OLD, NEW):
        for edit in edits:
            file = folder / "template" / edit.path
            file.parent.mkdir(exist_ok=True)
            file.write_text(edit.file.old if version == OLD else edit.file.new)
        commit_all(folder)
        run(folder, "tag", version)


def judge(edit: Edit, project: Path, chains: set[Chain]) -> str:
    """Say what is wrong with an edit after the update: "" if it is in its place, or in a visible conflict."""
    file = project / edit.path
    text = file.read_text() if file.exists() else ""
    if edit.name not in text.replace("\n", " ").split():
        return "it is gone"
    if any(line.encode().startswith(MARKERS) for line in text.splitlines()):
        return ""
    try:
        chain = chain_of(edit.path, text, edit.name)
    except SyntaxError as error:
        return f"the file is no Python any more: {error}"
    if chain is None:
        return "it is no statement any more"
    # Where the new version has no such function, or sets another heading, it may go with the lines around it.
    may_go_along = edit.place.chain not in chains or not edit.path.endswith(".py")
    if chain != edit.place.chain and not (may_go_along and keeps_company(edit, text)):
        return f"it has moved to {'.'.join(chain) or 'the outside of all functions'}"
    return ""


def keeps_company(edit: Edit, text: str) -> bool:
    """Whether an edit is between the lines that it was made between: all of one side, or the nearest of both."""
    sides = []
    for lines in (edit.edited.splitlines(), text.splitlines()):
        at = next(i for i, line in enumerate(lines) if edit.name in line.split())
        nearest = lines[max(0, at - NEAREST) : at], lines[at + 1 :][:NEAREST]
        sides.append((lines[max(0, at - CONTEXT) : at], lines[at + 1 :][:CONTEXT], nearest))
    return any(before == after for before, after in zip(*sides, strict=True))
