"""`ddp-template diff`: what answers change in a project, and what edits of the template change in all projects."""

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from generator.answers.combinations import Combination, SelectionError, describe, select, smallest_filter
from generator.answers.questions import Choice, Question
from generator.cli import diff as diff_command
from generator.cli.main import app
from generator.diff.answers import compare_answers, read_side
from generator.diff.changes import VersionDiff, changed_combinations, compare_versions
from generator.diff.versions import Version, read_version
from generator.render.cache import Cache
from generator.render.git import GitError
from generator.render.project import RenderError, render, tree_digest
from generator.render.snapshot import snapshot_of_revision, take_snapshot
from generator.render.workers import Workers
from tests.support.cli import COMMAND

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
Edit = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two processes for all tests."""
    with Workers(2) as processes:
        yield processes


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A template of its own, committed."""
    folder = tmp_path / "template"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (folder / "template/run.sh").chmod(0o755)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> None:
    """Commit all that is in a folder."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A version")


def replace(template: Path, path: str, old: str, new: str) -> None:
    """Edit one file, in which the old text must be."""
    content = (template / path).read_text()
    assert old in content
    (template / path).write_text(content.replace(old, new, 1))


def versions(template: Path, tmp_path: Path, workers: Workers) -> tuple[Version, Version]:
    """The template's last commit, and its working tree."""
    old = snapshot_of_revision(tmp_path / "snapshots" / "old", "HEAD", template)
    new = take_snapshot(tmp_path / "snapshots" / "new", template)
    return read_version(old, workers), read_version(new, workers)


@pytest.fixture
def compare(template: Path, tmp_path: Path, workers: Workers) -> Callable[..., tuple[VersionDiff, list[str]]]:
    """Return what differs since the last commit, and in words where each group of edits is."""

    def get(*wanted: str) -> tuple[VersionDiff, list[str]]:
        old, new = versions(template, tmp_path, workers)
        found = compare_versions(old, new, wanted, workers)
        return found, [describe(group.combinations, found.compared, new.questions) for group in found.groups]

    return get


Compare = Callable[..., tuple[VersionDiff, list[str]]]


def body(diff: str) -> list[str]:
    """The lines that a diff removes and adds."""
    return [line for line in diff.splitlines() if re.match(r"[+-](?!(--|\+\+) )", line)]


# ---- since a revision ----


def test_nothing_is_found_and_rendered_where_nothing_was_edited(compare: Compare) -> None:
    found, words = compare()
    assert (words, found.notes, found.changed) == ([], [], [])
    assert len(found.compared) == 5


def test_an_edit_of_every_project_is_shown_once(template: Path, compare: Compare) -> None:
    replace(template, MAIN, "begin\n", "start\n")
    found, words = compare()
    assert words == [""]
    assert len(found.groups[0].combinations) == 5
    assert body(found.groups[0].diff) == ["-begin", "+start"]
    assert found.changed == found.compared


def test_an_edit_is_one_whatever_stands_around_it(template: Path, compare: Compare) -> None:
    replace(template, MAIN, " at once\n", " at once\nand then\n")
    _, words = compare()
    assert words == [""]


def test_equal_edits_of_one_file_are_both_shown(template: Path, compare: Compare) -> None:
    replace(template, MAIN, "line 5\n", "line 5\nagain\n")
    replace(template, MAIN, "line 15\n", "line 15\nagain\n")
    found, words = compare()
    assert words == [""]
    assert body(found.groups[0].diff) == ["+again", "+again"]


def test_an_edit_of_a_partial_names_its_answer(template: Path, compare: Compare) -> None:
    replace(template, "partials/red.jinja", "red\n", "dark red\n")
    found, words = compare()
    assert words == ["colour=red"]
    assert [combination.name for combination in found.changed] == ["red-small", "red-large"]


def test_an_edit_of_two_answers_names_both(template: Path, compare: Compare) -> None:
    replace(template, MAIN, "cool\n", "cold\n")
    _, words = compare()
    assert words == ["colour=green,blue"]


def test_groups_are_apart_and_the_largest_is_first(template: Path, compare: Compare) -> None:
    replace(template, "partials/red.jinja", "partial\n", "part\n")
    replace(template, MAIN, "begin\n", "start\n")
    found, words = compare()
    assert words == ["", "colour=red"]
    assert body(found.groups[0].diff) == ["-begin", "+start"]
    assert body(found.groups[1].diff) == ["-partial", "+part"]
    # The lines around the edits of a group are those of the old file, whatever other groups edit.
    assert "\n red at once\n partial\n" in found.groups[0].diff
    assert "\n begin\n red at once\n" in found.groups[1].diff


def test_a_file_that_comes_goes_or_may_be_executed_is_shown(template: Path, compare: Compare) -> None:
    (template / "template" / "{% if colour == 'blue' %}new.txt{% endif %}.jinja").write_text("new\n")
    (template / "template" / "{% if size == 'large' %}big.txt{% endif %}.jinja").unlink()
    (template / "template" / "run.sh").chmod(0o644)
    found, words = compare()
    shown = dict(zip(words, [group.diff for group in found.groups], strict=True))
    assert shown[""] == "diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n"
    assert (
        "deleted file mode 100644\n--- a/big.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-big red\n"
        in shown["colour=red size=large"]
    )
    assert body(shown["colour=green size=large"]) == ["-big green"]
    assert "new file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n" in shown["colour=blue"]


def test_contents_that_are_no_text_are_named_only(template: Path, compare: Compare) -> None:
    (template / "template" / "demo.bin").write_bytes(b"\0\1")
    (template / "template" / "latin.txt").write_bytes(b"caf\xe9\n")
    found, words = compare()
    assert words == [""]
    assert "Binary files /dev/null and b/demo.bin differ\n" in found.groups[0].diff
    assert b"+caf\xe9\n" in found.groups[0].diff.encode(errors="surrogateescape")


def test_a_line_without_an_end_is_shown_as_git_does(template: Path, compare: Compare) -> None:
    path = "template/{{ name }}/plain.txt"
    replace(template, path, "two\n", "two")
    found, _ = compare()
    assert found.groups[0].diff.endswith("-two\n+two\n\\ No newline at end of file\n")


def test_an_added_choice_comes_and_changes_nothing_else(template: Path, compare: Compare) -> None:
    replace(template, "copier.yml", "    blue: {value: blue}\n", "    blue: {value: blue}\n    pink: {value: pink}\n")
    (template / "partials" / "pink.jinja").write_text("pink\n")
    found, words = compare()
    assert words == []
    assert found.notes == ["+ choice colour=pink", "+ 2 combinations came: colour=pink"]


def test_a_removed_choice_goes(template: Path, compare: Compare) -> None:
    replace(template, "copier.yml", "    green: {value: green}\n", "")
    found, words = compare()
    assert words == []
    assert found.notes == ["- choice colour=green", "- 2 combinations went: colour=green"]
    assert [combination.name for combination in found.compared] == ["red-small", "red-large", "blue-small"]


def test_what_had_a_removed_choice_can_still_be_chosen(template: Path, compare: Compare) -> None:
    replace(template, "copier.yml", "    green: {value: green}\n", "")
    found, _ = compare("colour=green")
    assert found.compared == []
    assert [combination.name for combination in found.pairing.gone] == ["green-small", "green-large"]


QUESTION = "fast: {type: bool, help: Fast, default: false}\n"


def test_an_added_question_is_compared_at_its_default(template: Path, compare: Compare) -> None:
    with (template / "copier.yml").open("a") as file:
        file.write(QUESTION)
    found, words = compare()
    assert words == [""]
    assert body(found.groups[0].diff) == ["+fast: false"]
    assert found.notes == ["+ question fast (false, true; default false)", "+ 5 combinations came: fast=true"]
    assert {combination["fast"] for combination in found.compared} == {False}


def test_a_removed_question_is_compared_at_its_default(template: Path, compare: Compare) -> None:
    with (template / "copier.yml").open("a") as file:
        file.write(QUESTION)
    commit(template)
    replace(template, "copier.yml", QUESTION, "")
    found, _ = compare()
    assert body(found.groups[0].diff) == ["-fast: false"]
    assert found.notes == ["- question fast (false, true; default false)", "- 5 combinations went: fast=true"]
    assert len(found.compared) == 5


def test_what_becomes_legal_or_illegal_is_told(template: Path, compare: Compare) -> None:
    replace(template, "copier.yml", "colour == 'blue'", "colour == 'red'")
    found, words = compare()
    assert words == []
    assert found.notes == [
        "- 1 combination became illegal: colour=red size=large",
        "+ 1 combination became legal: colour=blue size=large",
    ]


def test_a_changed_default_is_told(template: Path, compare: Compare) -> None:
    replace(template, "copier.yml", "default: small", "default: large")
    assert compare()[0].notes == ["~ default of size: small -> large"]


def test_filters_leave_the_rest_out(template: Path, compare: Compare) -> None:
    replace(template, "partials/red.jinja", "red\n", "dark red\n")
    found, words = compare("size=large")
    assert words == ["colour=red"]
    assert [combination.name for combination in found.compared] == ["red-large", "green-large"]


def test_a_filter_that_no_version_knows_is_refused(compare: Compare) -> None:
    with pytest.raises(SelectionError, match="colour=pink is no choice"):
        compare("colour=pink")


def test_the_edits_together_make_the_new_project_of_the_old_one(
    template: Path, tmp_path: Path, compare: Compare
) -> None:
    replace(template, MAIN, "line 3\n", "line three\n")
    replace(template, MAIN, "line 7\n", "")
    replace(template, MAIN, "line 9\n", "line nine\nand a half\n")
    replace(template, MAIN, "line 13\n", "line 13\ninserted\n")
    replace(template, MAIN, "cool\n", "cold\n")
    (template / "template" / "new.txt").write_text("new\n")
    (template / "template" / "run.sh").unlink()
    found, _ = compare()
    for old_one, new_one in found.pairing.pairs:
        projects = [tmp_path / side / new_one.name for side in ("before", "after")]
        for side, combination, project in zip(("old", "new"), (old_one, new_one), projects, strict=True):
            render(project, dict(combination.answers), template=tmp_path / "snapshots" / side)
        for group in found.groups:
            if new_one in group.combinations:
                apply(projects[0], group.diff)
        assert tree_digest(projects[0]) == tree_digest(projects[1])
    assert len(found.groups) == 2


@pytest.mark.parametrize(
    ("path", "old", "new", "reason"),
    [
        (MAIN, "begin\n", "{{ nothing }}\n", r"red-small: template/main\.txt\.jinja, line 1: 'nothing' is undefined"),
        (MAIN, "end\n", "\n{% if %}\n", r"red-small: template/main\.txt\.jinja, line \d+: Expected an expression"),
        ("copier.yml", "_envops: {", "_envops: [", r"copier\.yml: while parsing"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_told_with_the_place(
    template: Path, compare: Compare, path: str, old: str, new: str, reason: str
) -> None:
    replace(template, path, old, new)
    with pytest.raises(RenderError, match=f"^{reason}[^\n]*$"):
        compare("colour=red", "size=small")


# ---- what changed, for CI ----


def test_changed_combinations_are_those_whose_trees_differ(template: Path, tmp_path: Path, workers: Workers) -> None:
    replace(template, MAIN, "cool\n", "cold\n")
    replace(template, "copier.yml", "    blue: {value: blue}\n", "    blue: {value: blue}\n    pink: {value: pink}\n")
    (template / "partials" / "pink.jinja").write_text("pink\n")
    old, new = versions(template, tmp_path, workers)
    digests = {}
    for version, combination in ((side, one) for side in (old, new) for one in side.combinations):
        project = tmp_path / version.folder.name / combination.name
        render(project, dict(combination.answers), template=version.folder)
        digests[version.folder, combination] = tree_digest(project)
    expected = [
        combination
        for combination in new.combinations
        if digests[new.folder, combination] != digests.get((old.folder, combination))
    ]
    assert changed_combinations(old, new, new.combinations, workers) == expected
    assert [one.name for one in expected] == ["green-small", "green-large", "blue-small", "pink-small", "pink-large"]
    large = [combination for combination in new.combinations if combination["size"] == "large"]
    only_large = changed_combinations(old, new, large, workers)
    assert [one.name for one in only_large] == ["green-large", "pink-large"]


# ---- revisions ----


def test_a_revision_is_what_a_checkout_of_it_has(template: Path, tmp_path: Path) -> None:
    replace(template, MAIN, "begin\n", "start\n")
    commit(template)
    replace(template, MAIN, "start\n", "not committed\n")
    git(tmp_path, "clone", "--quiet", str(template), "clone")
    git(tmp_path / "clone", "checkout", "--quiet", "HEAD~1")
    checkout = take_snapshot(tmp_path / "checkout", tmp_path / "clone")
    assert tree_digest(snapshot_of_revision(tmp_path / "revision", "HEAD~1", template)) == tree_digest(checkout)
    assert "begin" in (tmp_path / "revision" / MAIN).read_text()


def test_a_template_in_a_folder_of_its_repository_is_found(template: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    shutil.copytree(template, outer / "inner", ignore=shutil.ignore_patterns(".git"))
    git(outer, "init", "--quiet")
    commit(outer)
    snapshot = snapshot_of_revision(tmp_path / "revision", "HEAD", outer / "inner")
    assert tree_digest(snapshot) == tree_digest(take_snapshot(tmp_path / "now", template))


@pytest.mark.parametrize("revision", ["nothing", "HEAD~7", "--all", "", "HEAD:copier.yml"])
def test_an_unknown_revision_is_refused(template: Path, tmp_path: Path, revision: str) -> None:
    with pytest.raises(GitError, match=r"^'.*' is no revision that this clone has: [^\n]+$"):
        snapshot_of_revision(tmp_path / "revision", revision, template)
    assert not (tmp_path / "revision").exists()


def test_a_template_without_a_repository_is_refused(template: Path, tmp_path: Path) -> None:
    shutil.rmtree(template / ".git")
    with pytest.raises(GitError, match="is in no git repository"):
        snapshot_of_revision(tmp_path / "revision", "HEAD", template)


def test_a_revision_without_the_template_is_refused(template: Path, tmp_path: Path) -> None:
    git(template, "rm", "--quiet", "--cached", "copier.yml")
    git(template, "commit", "--quiet", "--message", "No template")
    with pytest.raises(GitError, match=r"there is no copier\.yml in HEAD"):
        snapshot_of_revision(tmp_path / "revision", "HEAD", template)


# ---- words ----


def space(*sizes: int) -> tuple[list[Question], list[Combination]]:
    """Questions a, b, ... with so many choices, and all their combinations."""
    questions = [
        Question(key, key, 0, tuple(Choice(value, str(value), False) for value in range(size)))
        for key, size in zip("abc", sizes, strict=False)
    ]
    rows = itertools.product(*(range(size) for size in sizes))
    return questions, [Combination(tuple(zip("abc", row, strict=False))) for row in rows]


def test_every_filter_selects_what_it_describes() -> None:
    questions, combinations = space(3, 2)
    for size in range(1, len(combinations) + 1):
        for chosen in itertools.combinations(combinations, size):
            others = [combination for combination in combinations if combination not in chosen]
            words = describe(chosen, combinations, questions)
            if words.startswith("all but "):
                assert select(combinations, words.removeprefix("all but ").split(), questions) == others
            elif words.startswith("such as "):
                listed = words.removeprefix("such as ").removesuffix(", ...").split(", ")
                assert select(combinations, listed, questions) == list(chosen[:3])
            else:
                assert select(combinations, words.split(), questions) == list(chosen)


def test_a_filter_names_no_more_questions_than_it_needs() -> None:
    questions, combinations = space(3, 2)
    legal = [combination for combination in combinations if combination["b"] == 0 or combination["a"] == 2]
    only = [combination for combination in legal if combination["b"] == 1]
    assert smallest_filter(only, legal, questions) == "b=1"
    assert smallest_filter(legal, legal, questions) == ""
    assert smallest_filter(legal, combinations, questions) is None


# ---- two sets of answers ----


def apply(project: Path, diff: str) -> None:
    """Let git change a project by a diff."""
    done = subprocess.run(
        ["git", "apply", "-"], cwd=project, input=diff.encode(errors="surrogateescape"), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode() + diff


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "colour=green"),
        ("size=large", ""),
        ("colour=blue", "size=large"),
        ("", "name='my own' size=large"),
        ("name=other", "name=another colour=green"),
    ],
)
def test_git_applies_what_is_shown(template: Path, tmp_path: Path, old: str, new: str) -> None:
    diff = compare_answers(read_side(old), read_side(new), template=template)
    for name, side in (("old", old), ("new", new)):
        render(tmp_path / name, read_side(side), template=template)
    before = (tmp_path / "old" / ".copier-answers.yml").read_text()
    assert "\n_commit: " in before
    assert "\n_src_path: " in before
    apply(tmp_path / "old", diff)
    assert tree_digest(tmp_path / "old") == tree_digest(tmp_path / "new")


def test_equal_answers_have_no_difference(template: Path) -> None:
    assert compare_answers({"colour": "red"}, {}, template=template) == ""


def test_the_template_is_no_difference(template: Path) -> None:
    assert "_src_path" not in compare_answers({}, {"colour": "green"}, template=template)


# ---- the command ----


def diff(*arguments: str) -> Result:
    """Run the command on the template of this repository, in this process."""
    return CliRunner().invoke(app, ["diff", *arguments])


def test_the_logger_changes_its_module_and_the_requirements() -> None:
    sides = ["logging=console", "logging=tensorboard"]
    done = subprocess.run([COMMAND, "diff", *sides], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "+++ b/ddp_project/runtime/tracking.py\n" in done.stdout
    assert re.search(r'^\+    "tensorboard>=.*"', done.stdout, flags=re.MULTILINE)
    assert "+++ b/pyproject.toml\n" in done.stdout
    assert "\x1b" not in done.stdout


def test_one_side_is_compared_with_the_defaults() -> None:
    assert diff("amp=torch").stdout == diff("", "amp=torch").stdout != ""


def test_counts_are_those_of_the_diff() -> None:
    shown, counted = diff("launcher=slurm amp=torch", "launcher=slurm"), diff(
        "--stat", "launcher=slurm amp=torch", "launcher=slurm"
    )
    rows = re.findall(r"^ *\+(\d+) +-(\d+)  (\S+)$", counted.stdout, flags=re.MULTILINE)
    changed = body(shown.stdout)
    assert sum(int(row[0]) for row in rows) == sum(line.startswith("+") for line in changed)
    assert sum(int(row[1]) for row in rows) == sum(line.startswith("-") for line in changed)
    assert [row[2] for row in rows] == re.findall(r"^diff --git a/(\S+)", shown.stdout, flags=re.MULTILINE)


def test_equal_answers_print_nothing() -> None:
    same = diff("amp=none")
    assert (same.exit_code, same.stdout, same.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["luncher=slurm"], "luncher is no question of the template"),
        (["launcher=ssh"], "'ssh' is not in ['torchrun', "),
        (["launcher=slurm", "backend=mpi"], "needs launcher=mpirun"),
        (["launcher"], "launcher is no KEY=VALUE"),
        (["project_name=My project"], "project is no KEY=VALUE"),
        (["project_name='My project"], "No closing quotation"),
        (["amp=torch amp=apex"], "amp is given twice"),
        (["amp=torch", "launcher=slurm", "logging=csv"], "several answers of one are one argument"),
        (["--since", "nothing"], "'nothing' is no revision that this clone has"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = diff(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    line = re.fullmatch(r"error: ([^\n]+)\n", done.stderr)
    assert line, done.stderr
    assert reason in line[1]


def test_the_command_groups_what_changed(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(diff_command, "Cache", lambda: Cache(tmp_path / "cache"))
    diff_command.show_since("HEAD", [], stat=False, template=template)
    assert capfd.readouterr() == ("since HEAD: 0 of 5 combinations change\n", "")
    replace(template, MAIN, "cool\n", "cold\n")
    (template / "template" / "run.sh").unlink()
    diff_command.show_since("HEAD", [], stat=True, template=template)
    assert capfd.readouterr() == (
        "since HEAD: 5 of 5 combinations change\n"
        "\nin all 5 projects\n+0 -1  run.sh (deleted file mode 100755)\n"
        "\nin 3 of 5 projects: colour=green,blue\n+1 -1  main.txt\n",
        "",
    )
