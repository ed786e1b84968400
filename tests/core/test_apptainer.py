"""What launcher=slurm adds to a project: the definition of an image, with what Docker's has."""

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import output_of


def sections(project: Path) -> dict[str, str]:
    """Return the header of the definition under "", and each section under its name."""
    parts = re.split(r"^%(\w+)\n", (project / "apptainer.def").read_text(), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def commands(text: str) -> list[str]:
    """Return the lines that pip and git come in, without what joins them."""
    return re.findall(r"^(?:RUN|    (?:&& )?) *((?:pip|uv|git) .*?)(?: \\)?$", text, re.MULTILINE)


@pytest.mark.parametrize("amp", ["none", "apex"])
def test_the_definition_is_sound_and_gives_what_docker_gives(amp: str, project: Render, tmp_path: Path) -> None:
    parts = sections(project(launcher="slurm", amp=amp))
    assert parts[""].splitlines()[:2] == ["Bootstrap: docker", "From: python:3.12"]
    assert parts.keys() == {"", "files", "post", *(["environment"] if amp == "apex" else [])}
    for name in parts.keys() - {"", "files"}:
        (tmp_path / "script.sh").write_text(f"set -e  # as Apptainer runs it\n{parts[name]}")
        output_of([Path(sys.executable).with_name("shellcheck"), "--shell=sh", "--norc", "script.sh"], tmp_path)
    docker = (project(launcher="kubernetes", amp=amp) / "Dockerfile").read_text()
    assert "FROM python:3.12\n" in docker
    assert commands(parts["post"]) == commands(docker) != []
