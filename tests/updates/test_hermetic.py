"""What the user has told git changes no verdict on an update."""

import subprocess
from pathlib import Path

import pytest
from plumbum import local

from generator.combinations import Combination
from generator.updates.carrying import Route, carry
from generator.updates.hermetic import SETTINGS
from generator.updates.history import NEXT, clone_history
from generator.updates.releases import read_releases

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
[init]
    templateDir = {hooks}
"""


def test_settings_of_the_user_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "hooks" / "pre-commit").chmod(0o755)
    (tmp_path / "config").write_text(HOSTILE.format(hooks=tmp_path / "hooks"))
    for variable in SETTINGS:
        monkeypatch.delenv(variable)
        monkeypatch.delitem(local.env, variable)  # type: ignore[arg-type]
    for environment in (monkeypatch.setenv, lambda *pair: monkeypatch.setitem(local.env, *pair)):  # type: ignore[arg-type]
        environment("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
        environment("GIT_DIR", str(tmp_path / "nowhere"))
    refused = subprocess.run(["git", "init", str(tmp_path / "x")], capture_output=True)
    assert not (tmp_path / "x" / ".git").exists(), refused
    history = clone_history(tmp_path / "clone", read_releases())
    (tmp_path / "trial").mkdir()
    assert carry(history.folder, Route(("v0.1.0", NEXT)), Combination.of({}), tmp_path / "trial") == []
