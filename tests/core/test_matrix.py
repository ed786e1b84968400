"""`ddp-template matrix`, `render` and `new`: what Copier accepts, all of it and nothing else, listed and written."""

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from generator.answers.combinations import Combination, assign, covering, rotate, select, shaping_questions, shard, text
from generator.answers.questions import TEMPLATE, Choice, Question
from generator.cli.matrix import shard_sizes
from generator.cli.render import write_projects
from generator.render.git import run
from generator.render.project import RenderError, read_tree
from generator.render.snapshot import take_snapshot
from generator.render.workers import Workers, legal_combinations
from generator.update.replay import put_under_git
from tests.conftest import Render
from tests.support.cli import ddp_template
from tests.support.combinations import ANSWERS, PRODUCT, name_of, names
from tests.support.versions import replace

# A car has wheels; only a boat has a mast.
VALUES: dict[str, list[Any]] = {"kind": ["car", "boat"], "colour": ["red", "blue", "green"], "mast": [False, True]}
CHOICES = {key: tuple(Choice(value, str(value), False) for value in values) for key, values in VALUES.items()}
QUESTIONS = [Question(key, "", choices[0].value, choices) for key, choices in CHOICES.items()]
ROWS = [row for row in itertools.product(*VALUES.values()) if row[0] == "boat" or not row[2]]
LEGAL = [Combination.of(dict(zip(VALUES, row, strict=True))) for row in ROWS]
CHOSEN = [
    ([], [each.name for each in LEGAL]),
    (["kind=car", "colour=blue"], ["car-blue-false"]),
    (["colour=blue", "kind=boat", "colour=red", "mast=false"], ["boat-red-false", "boat-blue-false"]),
    (["colour=red,blue", "mast=true"], ["boat-red-true", "boat-blue-true"]),
    (["boat-red-true"], ["boat-red-true"]),
    (["boat-red-true", "car-red-false"], ["car-red-false", "boat-red-true"]),
    (["boat-red-true", "kind=car", "colour=red"], ["car-red-false", "boat-red-true"]),
    (["car-red-false", "kind=car", "colour=red"], ["car-red-false"]),
]


def is_legal(answers: dict[str, Any]) -> bool:
    """Return whether there is no illegal pair: mpi needs mpirun, and neither mpi nor apex goes with fsdp."""
    mpi, fsdp = answers["backend"] == "mpi", answers["parallel"] == "fsdp"
    return not ((mpi and answers["launcher"] != "mpirun") or (fsdp and (mpi or answers["amp"] == "apex")))


def test_the_matrix_has_no_illegal_pair_and_misses_nothing_else(all_names: list[str]) -> None:
    assert all_names == [name_of(answers) for answers in PRODUCT if is_legal(answers)]
    assert len(PRODUCT) - len(all_names) == 2400


def test_json_is_one_line_that_a_job_matrix_can_take() -> None:
    done = ddp_template("matrix", "task=images", "launcher=mpirun", "amp=apex", "--format", "json")
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
    chosen = {"task": "images", "launcher": "mpirun", "amp": "apex"}
    expected = [one for one in PRODUCT if one | chosen == one and is_legal(one)]
    assert json.loads(done.stdout) == {"include": [{**one, "name": name_of(one)} for one in expected]}
    assert len(expected) == 40


@pytest.mark.parametrize("strength", [2, 3])
def test_a_covering_set_has_every_legal_pair_or_triple(strength: int, legal: list[Combination]) -> None:
    def occurring(rows: list[Combination]) -> set[tuple[tuple[str, str], ...]]:
        asked = itertools.combinations(ANSWERS, strength)
        return {tuple((key, text(row[key])) for key in keys) for keys in asked for row in rows}

    chosen = covering(legal, strength)
    assert occurring(chosen) == occurring(legal)
    # No set is smaller than what the largest questions need.
    least = math.prod(sorted(map(len, ANSWERS.values()))[-strength:])
    assert least <= len(chosen) <= 1.25 * least
    assert ddp_template("matrix", "--cover", str(strength), "--format", "names").stdout.split() == names(chosen)


@pytest.mark.parametrize("key", ["task", "logging"])
def test_choices_that_take_turns_meet_all_other_choices(key: str, legal: list[Combination]) -> None:
    chosen = rotate(legal, key, shaping_questions())
    others = [tuple(answer for answer in each.answers if answer[0] != key) for each in legal]
    kept = [tuple(answer for answer in each.answers if answer[0] != key) for each in chosen]
    assert sorted(kept) == sorted({*others})
    pairs = [{some for each in rows for some in itertools.combinations(each.answers, 2)} for rows in (chosen, legal)]
    assert pairs[0] == pairs[1]
    assert ddp_template("matrix", "--rotate", key, "--format", "names").stdout.split() == names(chosen)


@pytest.mark.parametrize("parts", [4, 7])
def test_shards_are_disjoint_complete_and_balanced(parts: int, legal: list[Combination], all_names: list[str]) -> None:
    pieces = [shard(legal, part, parts) for part in range(1, parts + 1)]
    assert sorted(name for piece in pieces for name in names(piece)) == sorted(all_names)
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) == math.ceil(len(legal) / parts)
    assert max(sizes) - min(sizes) < parts
    assert ddp_template("matrix", "--shard", f"2/{parts}", "--format", "names").stdout.split() == names(pieces[1])
    listed = ddp_template("matrix", "--shards", str(parts), "--format", "json").stdout
    rows = [{"shard": f"{part}/{parts}", "combinations": size} for part, size in enumerate(sizes, start=1)]
    assert json.loads(listed) == {"include": rows}
    for shards in ("auto", "256"):
        few = shard_sizes(legal[:5], shards).values()
        assert (sum(few), min(few) > 0) == (5, True), "no job has nothing to do"


def test_a_new_choice_is_in_the_matrix_but_where_its_validator_refuses_it(
    snapshot: Path, legal: list[Combination], tmp_path: Path
) -> None:
    """A maintainer adds logging=jsonl, which refuses images with sync_bn=true; most others stay in their shard."""
    template = shutil.copytree(snapshot, tmp_path / "template")
    csv = "    csv (metrics.csv):\n      value: csv\n"
    validator = "{% if sync_bn and task == 'images' %}not with images and sync_bn{% endif %}"
    jsonl = f'    jsonl (json lines):\n      value: jsonl\n      validator: "{validator}"\n'
    replace(template / "copier.yml", csv, csv + jsonl)
    with Workers() as workers:
        extended = legal_combinations(template, workers)
    assert [name for name in names(extended) if not name.endswith("-jsonl")] == names(legal)
    consoles = [name.removesuffix("console") for name in names(legal) if name.endswith("-console")]
    expected = [f"{name}jsonl" for name in consoles if not (name.startswith("images-") and name.endswith("-true-"))]
    assert [name for name in names(extended) if name.endswith("-jsonl")] == expected
    assert len(consoles) - len(expected) == len(legal) / 40, "one of 4 tasks, of 2 sync_bn and of 5 loggers"
    for parts in (2, 4, 8):  # numbering the combinations anew would move (parts - 1) / parts of them
        before, after = assign(legal, parts), {one.name: part for one, part in assign(extended, parts).items()}
        assert len([one for one in legal if before[one] != after[one.name]]) <= len(legal) / 6


def test_chosen_projects_are_written_as_copier_writes_them(tmp_path: Path, project: Render) -> None:
    place = tmp_path / "some where" / "projects"
    place.mkdir(parents=True)
    done = ddp_template("render", "some where/projects", "launcher=spawn,slurm", "--cover", "1", cwd=tmp_path)
    assert done.stdout == "projects in some where/projects: 5\n"
    assert "Rendering" in done.stderr
    listed = ddp_template("matrix", "launcher=spawn,slurm", "--cover", "1", "--format", "names").stdout.split()
    assert sorted(path.name for path in place.iterdir()) == sorted(listed)
    for name in listed:
        assert read_tree(place / name) == read_tree(project(**dict(zip(ANSWERS, name.split("-"), strict=True))))
        assert f"_src_path: {TEMPLATE}\n" in (place / name / ".copier-answers.yml").read_text()
    assert list((tmp_path / "some where").iterdir()) == [place]
    assert place.stat().st_mode == (tmp_path / "some where").stat().st_mode


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


GIVEN = {"project_name": "Digits & co", "author_name": 'Ann "A" O\'Hara', "launcher": "slurm", "sync_bn": "true"}
MISTAKES: list[tuple[str | list[str], str]] = [
    ("matrix --format json", " are more than the 256 jobs that GitHub allows in a matrix: divide them by"),
    ("matrix --format xml", "--format xml does not exist: choose table, json, names"),
    ("matrix --shards 0", "--shards 0 is impossible: choose auto, or 1 to 256"),
    ("matrix --shards 2 --shard 1/2", "--shard gives one part of a whole that --shards divides"),
    ("matrix --shard 3/2", "--shard 3/2 does not exist: the first is 1/2, the last 2/2"),
    ("matrix --shard 1/257", "--shard 1/257 has too many parts: there are 256 at most"),
    ("matrix --shard ²/4", "--shard ²/4 is not I/N, such as 1/4"),
    ("matrix --cover 8", "--cover 8 is impossible: choose 1 to 7, the number of questions"),
    ("matrix --rotate size", "size is no question with choices: those are task, launcher, "),
    (["matrix", "--since", "no such revision"], "'no such revision' is no revision that this clone has"),
    ("matrix launcher=slurm,ssh", "launcher=ssh is no choice: launcher may be torchrun, "),
    ("matrix sync_bn=True", "sync_bn=True is no choice: sync_bn may be false, true"),
    (["matrix", "two\nlines"], "two lines is neither KEY=VALUE nor the name of a combination, such as "),
    ("check launcher=slurm backend=mpi", "no legal combination has launcher=slurm backend=mpi"),
    ("render full", "full holds something already: choose a new or empty folder"),
    ("render full/file/projects", "full/file"),
    (["render", ""], "holds something already"),
    ("diff launcher=ssh", "'ssh' is not in ['torchrun', "),
    (["diff", "launcher=slurm", "backend=mpi"], "needs launcher=mpirun"),
    ("diff launcher", "launcher is no KEY=VALUE"),
    (["diff", "project_name='My project"], "No closing quotation"),
    (["diff", "amp=torch amp=apex"], "amp is given twice"),
    ("diff amp=torch launcher=slurm logging=csv", "several answers of one are one argument"),
    ("diff --since=--all", "'--all' is no revision that this clone has"),
    ("new new --answer luncher=slurm", "luncher is no question of the template: its questions are project_name, "),
    ("new new --answer _src_path=x", "_src_path is no question of the template"),
    ("new new --answer backend=mpi", "needs launcher=mpirun, not torchrun"),
    ("new new --answer package_name=torch", "try torch_ddp"),
    (["new", "new", "--answer", "author_name=a\nb"], "give one line of text, without control characters"),
    ("new new --answer sync_bn=maybe", "sync_bn=maybe is not understood"),
    ("new new --answer launcher", "launcher is no KEY=VALUE, such as launcher=slurm"),
    ("new new --answer launcher=slurm --answer launcher=spawn", "launcher is given twice"),
    ("new hidden", "holds something already"),
    ("new full/file/project", "file"),
    ("update-check nothing", "'nothing' is no revision that this clone has"),
    ("update-check 1.0.0 --only nonsense", "nonsense is neither KEY=VALUE nor"),
    ("fleet full --to v9", "'v9' is no revision that this clone has"),
]


@pytest.mark.parametrize(("words", "reason"), MISTAKES, ids=lambda value: ascii(value))
def test_a_mistake_is_refused_in_one_line_and_writes_nothing(words: Any, reason: str, tmp_path: Path) -> None:
    for folder in ("full", "hidden/.git"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "full" / "file").write_text("mine\n")
    before = everything_in(tmp_path)
    done = ddp_template(*(words.split() if isinstance(words, str) else words), code=2, cwd=tmp_path)
    assert done.stdout == ""
    assert re.fullmatch(rf"error: (?=.{{20,}})[^\n]*{re.escape(reason)}[^\n]*\n", done.stderr), done.stderr
    assert everything_in(tmp_path) == before


def test_a_project_that_cannot_be_rendered_leaves_nothing_and_is_named(
    snapshot: Path, tmp_path: Path, legal: list[Combination]
) -> None:
    broken = shutil.copytree(snapshot, tmp_path / "template")
    (broken / "partials" / "tracking" / "csv.py.jinja").write_text("{{ nothing_has_this_name }}\n")
    some = [one for one in legal if one["task"] == "digits" and one["launcher"] == "spawn" and one["amp"] == "none"]
    with pytest.raises(RenderError, match=r"^digits-spawn-\w+-none-\w+-\w+-csv: .*nothing_has_this_name"):
        write_projects(tmp_path / "new" / "projects", some, broken)
    assert list(tmp_path.iterdir()) == [broken]


def copier(folder: Path, *arguments: str | Path) -> None:
    verb, *others = arguments
    command = [sys.executable, "-m", "copier", verb, "--quiet", "--defaults", "--vcs-ref", "HEAD", *others]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_the_project_is_the_one_that_copier_makes_and_its_next_steps_lead_into_it(tmp_path: Path) -> None:
    answers = [f"{key}={value}" for key, value in GIVEN.items()]
    options = [part for answer in answers for part in ("--answer", answer)]
    printed = ddp_template("new", "of ann/ann's project", *options, cwd=tmp_path).output
    copier(tmp_path, "copy", *(part for answer in answers for part in ("--data", answer)), TEMPLATE, "by copier")
    project = tmp_path / "of ann" / "ann's project"
    assert {"train.py", "launch.sh", "digits_co/model.py"} <= read_tree(project).keys()
    assert read_tree(project) == read_tree(tmp_path / "by copier")
    recorded = (project / ".copier-answers.yml").read_text()
    assert re.search(rf"^_commit: \S+\n_src_path: {TEMPLATE}$", recorded, flags=re.MULTILINE)

    steps = [line.strip() for line in printed.partition("Next:\n")[2].splitlines()]
    change_folder = next(step for step in steps if step.startswith("cd "))
    shell = ["bash", "-c", f"{change_folder} && pwd"]
    assert subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == f"{project}\n"
    install = "python -m pip install --upgrade pip && pip install -e . --group dev"
    assert {install, "pytest", "srun --ntasks=2 python train.py"} <= set(steps)


def test_a_copy_is_named_by_its_folder_and_knows_its_template_from_anywhere(tmp_path: Path) -> None:
    put_under_git(take_snapshot(tmp_path / "template"))
    copier(tmp_path, "copy", "template", "My net")
    assert (tmp_path / "My net" / "my_net" / "model.py").is_file()
    put_under_git(tmp_path / "My net")
    run(tmp_path, "clone", "--quiet", "My net", "deeper/clone")
    copier(tmp_path / "deeper" / "clone", "update")
    for project in ("My net", "deeper/clone"):
        assert (tmp_path / project / "README.md").read_text().startswith("# My net\n")


@pytest.mark.parametrize(("wanted", "chosen"), CHOSEN, ids=" ".join)
def test_filters_and_names_choose(wanted: list[str], chosen: list[str]) -> None:
    assert [each.name for each in select(LEGAL, wanted, QUESTIONS)] == chosen
