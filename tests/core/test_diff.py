"""`ddp-template diff`: what answers change in a project, and what edits of the template change in all projects."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.answers.combinations import describe
from generator.cli import diff as diff_command
from generator.diff.versions import VersionDiff, compare_answers, compare_versions, read_side, read_version
from generator.render.cache import Cache
from generator.render.project import RenderError, read_tree, render
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers
from generator.update.replay import commit_all, put_under_git
from tests.support.cli import ddp_template
from tests.support.versions import replace

# A template of six combinations, of which five are legal.
FILES = {
    "copier.yml": """\
_subdirectory: template
_envops: {trim_blocks: true, keep_trailing_newline: true, undefined: jinja2.StrictUndefined}
name: {type: str, help: Name, default: demo}
colour:
  type: str
  help: Colour
  choices:
    red (hot): {value: red}
    green: {value: green}
    blue: {value: blue}
  default: red
size:
  type: str
  help: Size
  choices:
    small: {value: small}
    large:
      value: large
      validator: "{% if colour == 'blue' %}blue is small{% endif %}"
  default: small
""",
    "template/{{ _copier_conf.answers_file }}.jinja": "# by Copier\n{{ _copier_answers | to_nice_yaml -}}\n",
    "template/main.txt.jinja": "begin\n{{ colour }} at once\n{% include 'partials/' ~ colour ~ '.jinja' %}\n"
    + "".join(f"line {number}\n" for number in range(20))
    + "{% if colour in ['green', 'blue'] %}\ncool\n{% endif %}\nend\n",
    "template/{{ name }}/plain.txt": "one\ntwo\n",
    "template/run.sh": "#!/bin/sh\n",
    "template/{% if size == 'large' %}big.txt{% endif %}.jinja": "big {{ colour }}\n",
    "partials/red.jinja": "partial\nred\n",
    "partials/green.jinja": "partial\ngreen\n",
    "partials/blue.jinja": "partial\nblue\n",
}
MAIN = "template/main.txt.jinja"
Compare = Callable[..., tuple[VersionDiff, list[str]]]
EDITS: dict[str, tuple[str, dict[str, str], list[str], list[str]]] = {
    "none": (MAIN, {}, [], []),
    "of all": (MAIN, {"begin\n": "start\n"}, [""], ["-begin", "+start"]),
    "beside what differs": (MAIN, {" at once\n": " at once\nand then\n"}, [""], ["+and then"]),
    "equal ones": (MAIN, {"line 5\n": "line 5\nand\n", "line 15\n": "line 15\nand\n"}, [""], ["+and", "+and"]),
    "of two answers": (MAIN, {"cool\n": "cold\n"}, ["colour=green,blue"], ["-cool", "+cold"]),
    "of one answer": ("partials/red.jinja", {"red\n": "dark\n"}, ["colour=red"], ["-red", "+dark"]),
}
BLUE, GREEN, PINK = (f"    {colour}: {{value: {colour}}}\n" for colour in ("blue", "green", "pink"))
NAME, FAST = "name: {type: str", "fast: {type: bool, help: Fast, default: false}\n"
OF_FAST = "question fast (false, true; default false)"
LEGAL = "- 1 combination became illegal: colour=red size=large\n+ 1 combination became legal: colour=blue size=large"
NOTES: dict[str, tuple[str, str, str, list[str]]] = {
    # an edit of copier.yml, the notes on it, and what it changes in projects
    "a new choice": (BLUE, BLUE + PINK, "+ choice colour=pink\n+ 2 combinations came: colour=pink", []),
    "a removed choice": (GREEN, "", "- choice colour=green\n- 2 combinations went: colour=green", []),
    "a validator": ("colour == 'blue'", "colour == 'red'", LEGAL, []),
    "a default": ("default: small", "default: large", "~ default of size: small -> large", []),
    "a question": (NAME, FAST + NAME, f"+ {OF_FAST}\n+ 5 combinations came: fast=true", ["+fast: false"]),
    "a removed question": (FAST, "", f"- {OF_FAST}\n- 5 combinations went: fast=true", ["-fast: false"]),
}
BROKEN = [
    (MAIN, "begin\n", "{{ nothing }}\n", r"red-small: template/main\.txt\.jinja, line 1: 'nothing' is undefined"),
    (MAIN, "end\n", "\n{% if %}\n", r"red-small: template/main\.txt\.jinja, line \d+: Expected an expression"),
    ("copier.yml", "_envops: {", "_envops: [", r"copier\.yml: while parsing"),
]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (folder / "template/run.sh").chmod(0o755)
    put_under_git(folder)
    return folder


@pytest.fixture
def compare(template: Path, tmp_path: Path, workers: Workers) -> Compare:
    """Return what differs since the last commit, and in words where each group of edits is."""

    def get(*wanted: str) -> tuple[VersionDiff, list[str]]:
        snapshots = tmp_path / "snapshots"
        old = read_version(snapshot_of_revision(snapshots / "old", "HEAD", template), workers)
        new = read_version(take_snapshot(snapshots / "new", template), workers)
        found = compare_versions(old, new, wanted, workers)
        return found, [describe(group.combinations, found.compared, new.questions) for group in found.groups]

    return get


def body(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if re.match(r"[+-](?!(--|\+\+) )", line)]


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_shown_once_with_the_answers_of_its_projects(name: str, template: Path, compare: Compare) -> None:
    path, edits, words, lines = EDITS[name]
    for old, new in edits.items():
        replace(template / path, old, new)
    found, said = compare()
    assert said == words
    assert [line for group in found.groups for line in body(group.diff)] == lines
    assert found.changed == [one for group in found.groups for one in group.combinations]
    assert len(found.compared) == 5


def test_groups_are_apart_and_the_largest_is_first(template: Path, compare: Compare) -> None:
    """A file that comes, goes or may be executed is shown, too."""
    replace(template / "partials/red.jinja", "partial\n", "part\n")
    replace(template / MAIN, "begin\n", "start\n")
    (template / "template" / "{% if colour == 'blue' %}new.txt{% endif %}.jinja").write_text("new\n")
    (template / "template" / "{% if size == 'large' %}big.txt{% endif %}.jinja").unlink()
    (template / "template" / "run.sh").chmod(0o644)
    found, words = compare()
    shown = dict(zip(words, [group.diff for group in found.groups], strict=True))
    assert (words[0], body(shown[""])) == ("", ["-begin", "+start"])
    assert body(shown["colour=red"]) == ["-partial", "+part"]
    # The lines around the edits of a group are those of the old file, whatever other groups edit.
    assert "\n red at once\n partial\n" in shown[""]
    assert "\n begin\n red at once\n" in shown["colour=red"]
    assert "diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n" in shown[""]
    gone = "deleted file mode 100644\n--- a/big.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-big red\n"
    assert gone in shown["colour=red size=large"]
    assert "new file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n" in shown["colour=blue"]


@pytest.mark.parametrize("name", NOTES)
def test_what_comes_goes_or_becomes_legal_has_a_line(name: str, template: Path, compare: Compare) -> None:
    """A question that comes or goes is compared at its default."""
    old, new, notes, lines = NOTES[name]
    (template / "partials" / "pink.jinja").write_text("pink\n")
    if name == "a removed question":
        replace(template / "copier.yml", NAME, FAST + NAME)
        commit_all(template)
    replace(template / "copier.yml", old, new)
    found, words = compare()
    assert ("\n".join(found.notes), words) == (notes, [""] if lines else [])
    assert [line for group in found.groups for line in body(group.diff)] == lines


def test_the_edits_together_make_the_new_project(template: Path, tmp_path: Path, compare: Compare) -> None:
    for old, new in (("line 7\n", ""), ("line 9\n", "line nine\nand a half\n"), ("cool\n", "cold\n")):
        replace(template / MAIN, old, new)
    replace(template / "template/{{ name }}/plain.txt", "two\n", "two")
    (template / "template" / "latin.txt").write_bytes(b"caf\xe9\n")
    (template / "template" / "run.sh").unlink()
    found, _ = compare()
    for old_one, new_one in found.pairing.pairs:
        before, after = tmp_path / "before" / new_one.name, tmp_path / "after" / new_one.name
        render(before, dict(old_one.answers), template=tmp_path / "snapshots" / "old")
        render(after, dict(new_one.answers), template=tmp_path / "snapshots" / "new")
        for group in found.groups:
            if new_one in group.combinations:
                apply(before, group.diff)
        assert read_tree(before) == read_tree(after)
    assert len(found.groups) == 2


@pytest.mark.parametrize(("path", "old", "new", "reason"), BROKEN)
def test_a_template_that_cannot_be_rendered_is_told_with_the_place(
    template: Path, compare: Compare, path: str, old: str, new: str, reason: str
) -> None:
    replace(template / path, old, new)
    with pytest.raises(RenderError, match=f"^{reason}[^\n]*$"):
        compare("colour=red", "size=small")


def apply(project: Path, diff: str) -> None:
    subprocess.run(["git", "apply", "-"], cwd=project, input=diff.encode(errors="surrogateescape"), check=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("size=large", "colour=green"), ("", "name='my own' size=large"), ("name=other", "name=another colour=green")],
)
def test_git_applies_what_is_shown(template: Path, tmp_path: Path, old: str, new: str) -> None:
    diff = compare_answers(read_side(old), read_side(new), template=template)
    assert "_src_path" not in diff, "where the template was found is no difference"
    for name, side in (("old", old), ("new", new)):
        render(tmp_path / name, read_side(side), template=template)
    assert "\n_src_path: " in (tmp_path / "old" / ".copier-answers.yml").read_text()
    apply(tmp_path / "old", diff)
    assert read_tree(tmp_path / "old") == read_tree(tmp_path / "new")


def test_one_side_is_compared_with_the_defaults_and_counts_are_those_of_the_diff() -> None:
    sides = ["launcher=slurm amp=torch", "launcher=slurm"]
    assert ddp_template("diff", "amp=none").stdout == ddp_template("diff", "", "amp=none").stdout != ""
    shown, counted = ddp_template("diff", *sides), ddp_template("diff", "--stat", *sides)
    rows = re.findall(r"^ *\+(\d+) +-(\d+)  (\S+)$", counted.stdout, flags=re.MULTILINE)
    for place, sign in enumerate("+-"):
        assert sum(int(row[place]) for row in rows) == sum(line.startswith(sign) for line in body(shown.stdout))
    assert [row[2] for row in rows] == re.findall(r"^diff --git a/(\S+)", shown.stdout, flags=re.MULTILINE)


def test_the_command_groups_what_changed(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diff_command, "Cache", lambda: Cache(tmp_path / "cache"))
    diff_command.show_since("HEAD", [], stat=False, template=template)
    assert capfd.readouterr() == ("since HEAD: 0 of 5 combinations change\n", "")
    replace(template / MAIN, "cool\n", "cold\n")
    (template / "template" / "run.sh").unlink()
    diff_command.show_since("HEAD", [], stat=True, template=template)
    assert capfd.readouterr().out == (
        "since HEAD: 5 of 5 combinations change\n"
        "\nin all 5 projects\n+0 -1  run.sh (deleted file mode 100755)\n"
        "\nin 3 of 5 projects: colour=green,blue\n+1 -1  main.txt\n"
    )
