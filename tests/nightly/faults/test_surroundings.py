"""A project trains, stops and goes on in surroundings that nobody likes, or says in one line what is missing."""

import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Render
from tests.support.processes import PATH, output_of, write_program
from tests.support.ranks import error_in
from tests.support.training import ON_CPU, checkpoint

STEPS = 30
NOBODY = 65534
TOOLS = ("bash", "date", "dirname", "env", "python", "python3", "sh", "timeout")  # all that may be needed
NAME = "мой проект 数据 'é'"


@dataclass(frozen=True)
class Surroundings:
    env: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()  # what runs launch.sh, in the place of a shell
    options: Sequence[str] = ()
    name: str = "project"  # of the folder
    without_git: bool = False
    says: str = ""  # with exit code 2; else it trains


def namespace(words: str, *kinds: str) -> list[str]:
    """Return the command that runs another one in namespaces of its own, after some words of a shell."""
    return ["unshare", *kinds, "sh", "-c", f'{words} && exec "$@"', "sh"]


LO = "ip link set lo up"
# Such a machine knows itself by that address alone.
ONLY_IPV6 = 'ip -4 address flush dev lo; echo "::1 localhost $(hostname)" >hosts && mount --bind hosts /etc/hosts'
SURROUNDINGS = {
    "a home that cannot be written": Surroundings({"HOME": "/proc"}),
    "umask 077": Surroundings(before=["sh", "-c", 'umask 077 && exec "$@"', "sh"]),
    "no git": Surroundings(without_git=True),
    "a path with spaces, quotes and other letters": Surroundings(name=NAME),
    "the same without UTF-8": Surroundings({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, name=NAME),
    "no user of that number": Surroundings(
        {"HOME": "/nowhere"}, ["setpriv", f"--reuid={NOBODY - 7}", f"--regid={NOBODY - 7}", "--clear-groups"]
    ),
    "no /dev/shm": Surroundings(before=namespace("mount -t tmpfs -o ro none /dev/shm", "--mount")),
    "no /dev/shm, and processes that load data": Surroundings(
        before=namespace("mount -t tmpfs -o ro none /dev/shm", "--mount"), options=["--workers", "1"], says="/dev/shm"
    ),
    "no IPv6": Surroundings(before=namespace(f"{LO}; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6", "--net")),
    "IPv6 alone": Surroundings({"HEAD": "localhost"}, namespace(f"{LO}; {ONLY_IPV6}", "--net", "--mount")),
}


@pytest.fixture
def readable(tmp_path: Path) -> Path:
    """The folder of the test, which every user may enter and write to."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    tmp_path.chmod(0o777)
    return tmp_path


def path_without_git(folder: Path) -> str:
    """Return a PATH on which there is no more than must be."""
    for tool in TOOLS:  # the interpreter of a virtual environment must be called by its own path
        write_program(folder / tool, f'exec "{shutil.which(tool, path=PATH)}" "$@"')
    return str(folder)


@pytest.mark.parametrize("what", SURROUNDINGS)
def test_it_works_or_says_why(what: str, project: Render, readable: Path) -> None:
    around = SURROUNDINGS[what]
    if around.before and shutil.which(around.before[0]) is None:
        pytest.skip(f"there is no {around.before[0]}")
    home_of_python = Path(sys.executable).resolve().parents[4]
    if around.before[:1] == ["setpriv"] and not home_of_python.stat().st_mode & stat.S_IXOTH:
        pytest.skip("no other user may run this Python")
    place = shutil.copytree(project(logging="csv"), readable / around.name)
    run_dir = place / "a run"
    place.chmod(0o777)
    path = path_without_git(readable / "bin") if around.without_git else PATH
    env = {"NPROC_PER_NODE": "2", **os.environ, "PATH": path, **around.env}

    def launch(code: int, *options: str) -> str:
        command = [*around.before, "./launch.sh", *ON_CPU, "--run-dir", str(run_dir), *around.options, *options]
        return output_of(command, place, env, code=code, timeout=90)

    printed = launch(2 if around.says else 0, "--max-steps", str(STEPS // 2), "--save-every", "5")
    if around.says:
        assert around.says in error_in([printed])
        return
    launch(0, "--max-steps", str(STEPS), "--resume")
    assert checkpoint(run_dir)["progress"]["step"] == STEPS
    assert (run_dir / "report.html").exists()
