"""A project on Windows, on macOS, in a clone and in a wheel, and with an older Python."""

import os
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from generator.answers.questions import TEMPLATE
from generator.render.git import run
from generator.update.replay import put_under_git
from tests.conftest import Render
from tests.support.processes import output_of

# Python on Windows: without the module and the signal that the project uses.
ON_WINDOWS = """
import runpy, signal, sys, types

sys.platform = "win32"
sys.modules |= {"fcntl": None, "optuna": types.ModuleType("optuna")}
del signal.SIGUSR1
sys.path.insert(0, "")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# What bash 3.2 of macOS does not know, and programs that macOS lacks or that take other options there.
NOT_ON_MACOS = [
    r"\b(mapfile|readarray|coproc)\b",
    r"\b(declare|local|typeset) -\w*[Anglu]",
    r"\bwait -[fn]",
    r"\bread -\w*[Ni]",
    r"\[\[ -[vR] ",
    r"\$\{[\w@*\[\]]+(\^|,|@[A-Za-z])",  # another case, quoted
    r"\$\{\w+\[-\d",  # from the end of an array
    r"&>>|\|&|;;?&",
    r"%\(.*\)T",
    r"\bEPOCH|\bBASHPID\b|\$'[^']*\\[uU]",
    r"\{\d+\.\.\d+\.\.",
    r"(?<![-.\w])(timeout|nproc|realpath|tac|ip|free|setsid|flock|getent|numfmt)\b [^(\n]",
    r"\bsed -\w*[ir]|\breadlink -f|\bdate -(d|-)|\bstat -c|\bgrep -\w*P|\bxargs -\w*[rd]|\bhead -n -|\bbase64 -w",
]


@pytest.mark.parametrize("launcher", ["torchrun", "launch", "spawn", "mpirun"])
def test_the_launch_script_is_one_for_macos(launcher: str, project: Render) -> None:
    text = re.sub(r"(^|[ \t])#.*", "", (project(launcher=launcher) / "launch.sh").read_text(), flags=re.MULTILINE)
    assert [match.group() for pattern in NOT_ON_MACOS for match in re.finditer(pattern, text)] == []
    for array in re.findall(r"(\w+)=\(\)", text):  # bash 3.2 calls an empty one unbound
        assert not re.search(rf'(?<!\+)"\$\{{{array}\[@\]', text), array


@pytest.mark.parametrize("program", ["train.py", "sweep.py", "export.py", "predict.py"])
def test_windows_is_refused_in_one_line(program: str, project: Render) -> None:
    printed = output_of([sys.executable, "-c", ON_WINDOWS, program], project(), os.environ, code=2)
    assert printed == "error: this project needs Linux or macOS: use WSL\n"


def test_a_clone_with_the_line_ends_of_windows_has_scripts_that_run(own_project: Render, tmp_path: Path) -> None:
    place = own_project()
    put_under_git(place)
    run(tmp_path, "clone", "--quiet", "--config", "core.autocrlf=true", str(place), "clone")
    assert b"\r\n" in (tmp_path / "clone" / "train.py").read_bytes()
    for file in ("launch.sh", next(place.glob("*/*.npz")).relative_to(place)):
        assert (tmp_path / "clone" / file).read_bytes() == (place / file).read_bytes()


def test_a_wheel_has_what_the_owner_adds(own_project: Render, tmp_path: Path) -> None:
    place = own_project()
    for file in ("nets/__init__.py", "nets/deep/__init__.py", "nets/deep/wide.py", "words/vocabulary.json"):
        (place / "ddp_project" / file).parent.mkdir(exist_ok=True)
        (place / "ddp_project" / file).touch()
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    output_of([sys.executable, "-c", build, tmp_path], place)
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    written = {str(path.relative_to(place)) for path in (place / "ddp_project").rglob("*") if path.is_file()}
    assert packed == {name for name in written if "__pycache__" not in name}


def test_the_packages_of_the_tests_install_on_python_3_11_0() -> None:
    """Debian 12 has 3.11.2. Of a pin that needs a later one, pip says only that versions are in conflict."""
    pinned = re.findall(r"^([\w.-]+)==", (TEMPLATE / "tests" / "constraints.txt").read_text(), re.MULTILINE)
    needs = {name: metadata.metadata(name).json.get("requires_python", ">=3") for name in pinned}
    assert [name for name, pythons in needs.items() if "3.11.0" not in SpecifierSet(str(pythons))] == []
