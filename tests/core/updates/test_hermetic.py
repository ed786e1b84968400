"""What the user has told git changes no verdict on an update."""

import subprocess
from pathlib import Path

import pytest
from plumbum import local

from generator.render.git import SETTINGS
from generator.update.edits import ChangedFile, carry_edits, choose_edits
from generator.update.history import NEXT, clone_history, read_releases
from generator.update.replay import carry
from tests.support.processes import write_program

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
