"""Combinations in which every three answers meet pass all stages of the check; launchers start cold as ranks fork.

tests/nightly/test_tasks.py has all combinations.
"""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from generator.answers.combinations import Combination
from generator.check.static import check_types, source_files
from tests.support.cli import check_report
from tests.support.training import LAUNCHERS, node_launcher
from tools import slurm

STAGES = {"render", "format", "lint", "types", "train", "resume", "agree"}
# The others start the ranks of a machine by one of these.
OF_ONE_MACHINE = [launcher for launcher in LAUNCHERS if node_launcher(launcher) == launcher]


def triples(combinations: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {three for each in combinations for three in itertools.combinations(sorted(each.items()), 3)}


def test_every_three_answers_pass_every_stage_together(legal: list[Combination], tmp_path: Path) -> None:
    results = check_report(tmp_path / "check.json", "--cover", "3", timeout=1800)
    assert triples(result["answers"] for result in results) == triples(dict(each.answers) for each in legal)
    assert [result["name"] for result in results if not set(result["seconds"]) >= STAGES] == []


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What one check of all launchers says of each, with ddp and with fsdp.

    The output names launchers that are missing here.
    """
    report = tmp_path_factory.mktemp("check") / "check.json"
    others = ["task=digits", "backend=auto", "amp=none", "sync_bn=false", "logging=csv"]
    answers = [f"launcher={','.join(OF_ONE_MACHINE)}", *others]
    found = check_report(report, *answers, "--launchers", "real", code=None)
    return {(each["answers"]["launcher"], each["answers"]["parallel"]): each for each in found}


def assert_passed(result: dict[str, Any], launcher: str) -> None:
    said = "\n".join(failure["text"] for failure in result["failures"])
    if "is not installed here" in said:
        pytest.skip(f"the launcher of {launcher} is not installed here: run tests/clusters/install.sh")
    if launcher == "slurm" and (reason := slurm.missing()):  # installed, it may still have no namespaces
        pytest.skip(reason)
    assert said == ""


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("launcher", OF_ONE_MACHINE)
def test_cold_processes_give_what_forked_ranks_give(
    launcher: str, parallel: str, started: dict[tuple[str, str], dict[str, Any]]
) -> None:
    result = started[launcher, parallel]
    assert_passed(result, launcher)
    assert result["seconds"]["real"] > 1


@pytest.mark.parametrize("wrong", ["one", "two"])
def test_a_file_that_is_equal_everywhere_is_read_beside_each_version_of_its_neighbours(
    wrong: str, tmp_path: Path
) -> None:
    """Its call fits the function of one project, and not that of the other."""
    for name in ("one", "two"):
        (tmp_path / name / "package").mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n")
        (tmp_path / name / "package" / "caller.py").write_text("from .callee import f\n\nf(1)\n")
        kind = "str" if name == wrong else "int"
        (tmp_path / name / "package" / "callee.py").write_text(f"def f(number: {kind}) -> None: ...\n")
    having = {place: {file.key for file in source_files(place)} for place in (tmp_path / "one", tmp_path / "two")}
    [found] = check_types(having, set().union(*having.values()), tmp_path / "types", tmp_path / "cache").values()
    assert found.startswith("package/caller.py:3: error: Argument 1 to ")


def test_settings_for_a_module_count_for_files_that_name_it(tmp_path: Path) -> None:
    override = '[[tool.mypy.overrides]]\nmodule = ["apex.*"]\nignore_missing_imports = true\n'
    for name, settings in (("one", ""), ("two", override)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(f"[tool.mypy]\nstrict = true\n\n{settings}")
        (tmp_path / name / "with_it.py").write_text("from apex import amp\n")
        (tmp_path / name / "without.py").write_text("import apexes\n")
    one, two = ({str(file.path): file.key for file in source_files(tmp_path / name)} for name in ("one", "two"))
    assert {path for path in one if one[path] != two[path]} == {"with_it.py"}
