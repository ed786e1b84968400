"""Versions are released once, in order, told of in CHANGELOG.md, and only where updates to them lose nothing."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plumbum import local

from generator.answers.questions import TEMPLATE
from generator.render.git import SETTINGS, run
from generator.render.project import RenderError
from generator.render.snapshot import PARTS
from generator.update import history as releases
from generator.update.edits import ChangedFile, carry_edits, choose_edits
from generator.update.history import FILE, NEXT, TOLD, check_changes, check_release, clone_history, read_releases
from generator.update.replay import carry, commit_all
from tests.support.processes import write_program
from tests.support.versions import SECTION, MadeUp

Change = Callable[[MadeUp], object]
HOSTILE = """
[user]
    useConfigOnly = true
[commit]
    gpgSign = true
[core]
    autocrlf = true
    hooksPath = {hooks}
[diff]
    noprefix = true
    external = false
"""
WRONG_LISTS = [
    ("1.0.0: abc\n0.9.0: abc\n", "lists 0.9.0 below 1.0.0"),
    ("first: abc\n", "first is no version"),
    ("1.0.0\n", "has no line such as"),
    ("{", "cannot be read"),
]


def test_all_released_versions_are_in_this_clone_and_told_of() -> None:
    changes = (TEMPLATE / "CHANGELOG.md").read_text()
    released = [release.version for release in read_releases()]
    assert released, "there is a version to update from"
    for release in read_releases():
        assert run(TEMPLATE, "cat-file", "-t", release.commit) == "commit"
        check_changes(release.version, changes)
    told_of = re.findall(r"^## (.+)$", changes, re.MULTILINE)[::-1]
    assert told_of[: len(released)] == released
    assert len(told_of) <= len(released) + 1, "of the next version at most"
    releases.check_metadata(told_of[-1], TEMPLATE)


def changes_say_nothing(heading: str) -> Change:
    return lambda ready: ready.replace("CHANGELOG.md", f"{heading}\n\n- Nothing.\n", f"{heading}\n")


def ignored_file(ready: MadeUp) -> None:
    """Let the template have a file that git ignores; only in the template it matters."""
    for folder in ("build", "template/build"):
        (ready.folder / folder).mkdir()
        (ready.folder / folder / "new.txt").touch()
    (ready.folder / ".gitignore").write_text("build/\n")
    commit_all(ready.folder)


def moved_tag(ready: MadeUp) -> None:
    commit_all(ready.folder)
    run(ready.folder, "tag", "--force", "v1.0.0")


@pytest.mark.parametrize(
    ("version", "change", "reason"),
    [
        ("1.0.0", None, "1.0.0 is not newer than 1.0.0"),
        ("0.9", None, "0.9 is not newer than 1.0.0"),
        ("1.1.0-beta", None, "1.1.0-beta is written 1.1.0b0"),
        ("next", None, "next is no version by PEP 440"),
        ("1.2.0", None, "CHANGELOG.md has no section '## 1.2.0'"),
        ("1.1.0", lambda ready: ready.replace("pyproject.toml", "1.1.0", "1.0.0"), "write 1.1.0 there"),
        *(("1.1.0", changes_say_nothing(heading), f"says nothing under '{heading}'") for heading in TOLD),
        ("1.1.0", lambda ready: (ready.folder / "new").touch(), "not committed"),
        ("1.1.0", ignored_file, "template/build"),
        ("1.1.0", lambda ready: run(ready.folder, "tag", "v1.0.1"), f"the tag v1.0.1 has no line in {FILE}"),
        ("1.1.0", moved_tag, "the tag v1.0.0 has moved"),
    ],
)
def test_a_version_that_is_not_ready_is_refused(version: str, change: Any, reason: str, ready: MadeUp) -> None:
    check_release("1.1.0", ready.folder)
    if change:
        change(ready)
    with pytest.raises(RenderError, match=re.escape(reason)):
        check_release(version, ready.folder)


def test_a_released_version_has_the_template_alone_and_the_branch_all_files(ready: MadeUp, tmp_path: Path) -> None:
    (ready.folder / "docs.md").touch()
    commit_all(ready.folder)
    commit = run(ready.folder, "rev-parse", "HEAD")
    *local, push = releases.steps_of_release("1.1.0", commit)
    assert push == "git push origin HEAD v1.1.0"
    subprocess.run(["bash", "-euc", "\n".join(local)], cwd=ready.folder, check=True, capture_output=True)
    assert [release.version for release in read_releases(ready.folder)] == ["1.0.0", "1.1.0"]
    assert run(ready.folder, "rev-parse", "v1.1.0^{commit}") == read_releases(ready.folder)[-1].commit
    assert run(ready.folder, "status", "--porcelain") == ""
    with pytest.raises(RenderError, match=r"1\.1\.0 is not newer"):
        check_release("1.1.0", ready.folder)
    assert run(ready.folder, "diff", "--name-only", commit, "HEAD") == FILE
    assert run(ready.folder, "diff", commit, "v1.1.0", "--", *PARTS) == ""
    assert set(run(ready.folder, "ls-tree", "--name-only", "v1.1.0").split()) == {*PARTS, "CHANGELOG.md"}
    run(tmp_path, "clone", "--quiet", "--no-tags", str(ready.folder), "branch")
    history = clone_history(tmp_path / "history", read_releases(ready.folder), tmp_path / "branch")
    assert run(history.folder, "rev-parse", "v1.1.0") == run(ready.folder, "rev-parse", "v1.1.0^{commit}")
    assert run(history.folder, "tag", "--list").split() == ["v1.0.0", "v1.1.0", NEXT], "those of the list"
    (tmp_path / "trial").mkdir()
    assert carry(history.folder, ("v1.0.0", "v1.1.0", NEXT), {}, tmp_path / "trial") == []


@pytest.mark.parametrize(("listed", "reason"), WRONG_LISTS)
def test_a_list_of_releases_is_read_in_order_or_refused(listed: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("1.9.0: abc\n1.10: abc\n")
    assert [release.tag for release in read_releases(tmp_path)] == ["v1.9.0", "v1.10"]
    (tmp_path / FILE).write_text(listed)
    with pytest.raises(RenderError, match=reason):
        read_releases(tmp_path)


def test_what_was_told_of_checkpoints_counts_for_all_older_versions(tmp_path: Path) -> None:
    told = SECTION.replace("- Nothing.\n\n## 1.1.0", "- Nothing.").replace("1.1.0", "2.0.0")
    older = SECTION.removeprefix("# Changes\n\n").replace("- Nothing.", "- Finish your runs: checkpoints differ.")
    (tmp_path / "CHANGELOG.md").write_text(f"{told}\n{older}\n## 1.0.0\n")
    assert releases.tells_of_checkpoints(tmp_path, "v1.0.0")
    assert not releases.tells_of_checkpoints(tmp_path, "v1.1.0")


def run_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in ("generator", "README.md"):
        subprocess.run(["cp", "-r", str(TEMPLATE / name), str(folder)], check=True)
    (folder / ".gitignore").write_text("__pycache__/\n.cache/\n")
    commit_all(folder)
    command = [sys.executable, "-c", "from generator.cli.main import app; app()", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_settings_of_the_user_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "hooks" / "pre-commit", "exit 1")
    (tmp_path / "config").write_text(HOSTILE.format(hooks=tmp_path / "hooks"))
    for variable in SETTINGS:
        monkeypatch.delenv(variable)
        monkeypatch.delitem(local.env, variable)  # type: ignore[arg-type]
    (tmp_path / "home" / ".config" / "git").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "git" / "attributes").write_text("*.md -diff\n")
    (tmp_path / "home" / ".config" / "git" / "ignore").write_text("*.md\n")
    for environment in (monkeypatch.setenv, lambda *pair: monkeypatch.setitem(local.env, *pair)):  # type: ignore[arg-type]
        environment("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
        environment("GIT_DIR", str(tmp_path / "nowhere"))
        environment("GIT_CONFIG_PARAMETERS", "'commit.gpgsign'='true'")
        environment("GIT_TEMPLATE_DIR", str(tmp_path / "hooks"))
        environment("HOME", str(tmp_path / "home"))
    refused = subprocess.run(["git", "init", str(tmp_path / "x")], capture_output=True)
    assert not (tmp_path / "x" / ".git").exists(), refused
    history = clone_history(tmp_path / "clone", read_releases())
    (tmp_path / "trial").mkdir()
    assert carry(history.folder, ("v1.0.0", NEXT), {}, tmp_path / "trial") == []
    edits = choose_edits([ChangedFile("a.md", "one\n\ntwo\n\nthree\n", "one\n\ntwo\n\n3\n")])
    assert carry_edits(edits, tmp_path / "edits") == []
    assert (tmp_path / "edits" / "project" / edits[0].path).read_text().endswith("3\n")
