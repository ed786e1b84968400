"""`ddp-template matrix` and `render`: what Copier accepts, all of it and nothing else, listed and written."""

import itertools
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from generator.answers.combinations import (
    Combination,
    SelectionError,
    assign,
    covering,
    digest,
    rotate,
    shaping_questions,
    shard,
    text,
)
from generator.answers.questions import TEMPLATE, read_questions
from generator.cli.matrix import SIZE_OF_SHARD, jobs_as_json, shard_sizes
from generator.cli.options import MOST_PARTS
from generator.cli.render import write_projects
from generator.render.project import RenderError
from generator.render.workers import Workers, legal_combinations
from tests.conftest import Render
from tests.support.cli import ddp_template
from tests.support.combinations import ANSWERS, PRODUCT, name_of, names
from tools.docs.pages import question_table


def test_the_matrix_has_no_illegal_pair_and_misses_nothing_else(all_names: list[str]) -> None:
    """The template has one illegal pair of answers: the backend mpi without the launcher mpirun."""
    illegal = {name_of(one) for one in PRODUCT if one["backend"] == "mpi" and one["launcher"] != "mpirun"}
    launchers, backends = len(ANSWERS["launcher"]), len(ANSWERS["backend"])
    assert len(illegal) == len(PRODUCT) // (launchers * backends) * (launchers - 1)
    assert all_names == [name for answers in PRODUCT if (name := name_of(answers)) not in illegal]


def test_the_table_has_a_numbered_row_for_each_and_says_how_many_there_are(all_names: list[str]) -> None:
    lines = ddp_template("matrix").stdout.splitlines()
    cells = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines if line[0] in "│┃"]
    assert cells[0] == ["#", *ANSWERS]
    assert cells[1:] == [[str(number), *name.split("-")] for number, name in enumerate(all_names, start=1)]
    assert lines[-1] == f"{len(all_names)} legal of {len(PRODUCT)} combinations"


def test_the_table_dims_the_defaults_and_counts_what_is_chosen(all_names: list[str]) -> None:
    some = ["task=digits", "launcher=spawn", "backend=auto", "amp=torch", "sync_bn=true", "logging=console,csv"]
    lines = ddp_template("matrix", *some, env={"FORCE_COLOR": "1"}).stdout.splitlines()
    dim = [re.findall(r"\x1b\[2m(\w+) *\x1b\[0m", line) for line in lines if "spawn" in line]
    assert dim == [["digits", "auto", "console"], ["digits", "auto"]]
    assert lines[-1] == f"2 chosen of {len(all_names)} legal of {len(PRODUCT)} combinations; the defaults are dim"


def test_json_is_one_line_that_a_job_matrix_can_take() -> None:
    done = ddp_template("matrix", "task=images", "launcher=mpirun", "amp=apex", "--format", "json")
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    chosen = {"task": "images", "launcher": "mpirun", "amp": "apex"}
    expected = [one for one in PRODUCT if one | chosen == one]
    assert json.loads(done.stdout) == {"include": [{**one, "name": name_of(one)} for one in expected]}
    assert len(expected) == 40


def test_no_jobs_are_an_empty_list() -> None:
    assert jobs_as_json([]) == '{"include":[]}'
    assert shard_sizes([], "auto") == shard_sizes([], "7") == {}


def test_as_many_jobs_as_github_takes() -> None:
    assert len(json.loads(jobs_as_json([{}] * MOST_PARTS))["include"]) == 256
    with pytest.raises(SelectionError, match=r"^257 combinations are more than the 256 jobs "):
        jobs_as_json([{}] * 257)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--format", "json"],
            " combinations are more than the 256 jobs that GitHub allows in a matrix: divide them by",
        ),
        (["--format", "xml"], "--format xml does not exist: choose table, json, names"),
        (["--shards", "0"], "--shards 0 is impossible: choose auto, or 1 to 256"),
        (["--shards", "257"], "--shards 257 is impossible: choose auto, or 1 to 256"),
        (["--shards", "many"], "--shards many is impossible: choose auto, or 1 to 256"),
        (["--shards", "2", "--shard", "1/2"], "--shard gives one part of a whole that --shards divides: choose one"),
        (["--shard", "3/2"], "--shard 3/2 does not exist: the first is 1/2, the last 2/2"),
        (["--shard", "1"], "--shard 1 is not I/N, such as 1/4"),
        (["--cover", "many"], "--cover many is no number"),
        (["--cover", "7"], "--cover 7 is impossible: choose 1 to 6, the number of questions"),
        (["--rotate", "size"], "size is no question with choices: those are task, launcher, "),
        (["--since", "no such revision"], "'no such revision' is no revision that this clone has"),
        (["launcher=ssh"], "launcher=ssh is no choice: launcher may be torchrun, "),
        (["lancher=slurm"], "lancher is no question with choices: those are task, launcher, "),
        (["two\nlines"], "two lines is neither KEY=VALUE nor the name of a combination, such as "),
        (["launcher=slurm", "backend=mpi"], "no legal combination has launcher=slurm backend=mpi"),
    ],
    ids=lambda value: " ".join(map(ascii, value)) if isinstance(value, list) else "",
)
def test_a_mistake_is_refused_in_one_line(arguments: list[str], reason: str) -> None:
    done = ddp_template("matrix", *arguments, code=2)
    assert done.stdout == ""
    line = re.fullmatch(r"error: ([^\n]{20,})\n", done.stderr)
    assert line, done.stderr
    assert reason in line[1]


@pytest.mark.parametrize("strength", [2, 3])
def test_a_covering_set_has_every_legal_pair_or_triple(strength: int, legal: list[Combination]) -> None:
    def occurring(rows: list[Combination]) -> set[tuple[tuple[str, str], ...]]:
        asked = itertools.combinations(ANSWERS, strength)
        return {tuple((key, text(row[key])) for key in keys) for keys in asked for row in rows}

    # Copier refuses one pair for each launcher but mpirun: with the backend mpi.
    sizes = {key: len(values) for key, values in ANSWERS.items()}
    possible = sum(math.prod(some) for some in itertools.combinations(sizes.values(), strength))
    others = [size for key, size in sizes.items() if key not in ("launcher", "backend")]
    refused = (sizes["launcher"] - 1) * (1 if strength == 2 else sum(others))
    chosen = covering(legal, strength)
    assert occurring(chosen) == occurring(legal)
    assert len(occurring(chosen)) == possible - refused
    # No set is smaller than what the largest questions need.
    least = math.prod(sorted(sizes.values())[-strength:])
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


def test_the_shards_are_listed_with_their_sizes(legal: list[Combination]) -> None:
    done = ddp_template("matrix", "--shards", "7", "--format", "json")
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    sizes = {f"{part}/7": len(shard(legal, part, 7)) for part in range(1, 8)}
    rows = [{"shard": part, "combinations": size} for part, size in sizes.items()]
    assert json.loads(done.stdout) == {"include": rows}
    assert ddp_template("matrix", "--shards", "7", "--format", "names").stdout.split() == list(sizes)
    table = ddp_template("matrix", "--shards", "7").stdout
    assert re.findall(r"│ (\d/7) +│ (\d+) +│", table) == [(part, str(size)) for part, size in sizes.items()]


@pytest.mark.parametrize("shards", ["1", "7", "256", "auto"])
def test_every_shard_has_combinations_and_all_are_in_one(shards: str, legal: list[Combination]) -> None:
    for some in (legal[::8], legal[:5]):
        sizes = shard_sizes(some, shards)
        assert sum(sizes.values()) == len(some)
        assert min(sizes.values()) > 0
        assert len(sizes) <= len(some)
        for part, size in list(sizes.items())[:8]:
            number, parts = map(int, part.split("/"))
            assert len(shard(some, number, parts)) == size
    if shards == "auto":
        parts = math.ceil(len(legal) / SIZE_OF_SHARD)
        assert list(shard_sizes(legal, shards)) == [f"{part}/{parts}" for part in range(1, parts + 1)]


def with_choice(copy: Path) -> Path:
    """Add a choice to a copy of the template, as a maintainer would: in copier.yml, with a validator, and a partial."""
    settings = (copy / "copier.yml").read_text()
    last = "    mlflow (a local sqlite store, or your server):\n      value: mlflow\n"
    assert last in settings
    choice = (
        "    jsonl (json lines):\n      value: jsonl\n      validator: >-\n"
        "        {% if sync_bn and amp == 'apex' %}not with apex and sync_bn{% endif %}\n"
    )
    (copy / "copier.yml").write_text(settings.replace(last, last + choice))
    partials = copy / "partials" / "tracking"
    shown = (partials / "console.py.jinja").read_text()
    (partials / "jsonl.py.jinja").write_text(f"# jsonl was chosen\n{shown}")
    return copy


@pytest.fixture(scope="module")
def extended(snapshot: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Combination]]:
    """The template with the choice logging=jsonl, illegal beside amp=apex with sync_bn=true, and its combinations."""
    copy = with_choice(shutil.copytree(snapshot, tmp_path_factory.mktemp("extended") / "template"))
    with Workers() as workers:
        return copy, legal_combinations(copy, workers)


def test_a_new_choice_is_in_the_matrix_but_where_its_validator_refuses_it(
    extended: tuple[Path, list[Combination]], legal: list[Combination]
) -> None:
    extended_names = names(extended[1])
    assert [name for name in extended_names if not name.endswith("-jsonl")] == names(legal)
    consoles = [name.removesuffix("console") for name in names(legal) if name.endswith("-console")]
    expected = [f"{name}jsonl" for name in consoles if not name.endswith("-apex-true-")]
    assert [name for name in extended_names if name.endswith("-jsonl")] == expected
    assert len(expected) == 5 * len(consoles) // 6


def test_a_new_choice_is_in_the_documentation(extended: tuple[Path, list[Combination]]) -> None:
    row = next(line for line in question_table(read_questions(extended[0])).splitlines() if "`logging`" in line)
    assert row.endswith("`mlflow`, `jsonl` (†) |")


def test_a_new_choice_is_rendered(extended: tuple[Path, list[Combination]], tmp_path: Path) -> None:
    template, combinations = extended
    wanted = [
        one for one in combinations if one["logging"] == "jsonl" and one["launcher"] == "spawn" and one["amp"] == "none"
    ]
    write_projects(tmp_path / "projects", wanted, template)
    assert sorted(path.name for path in (tmp_path / "projects").iterdir()) == sorted(names(wanted))
    for project in (tmp_path / "projects").iterdir():
        assert (project / "ddp_project" / "runtime" / "tracking.py").read_text().startswith("# jsonl was chosen\n")


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_new_choice_moves_few_combinations_to_another_shard(
    parts: int, extended: tuple[Path, list[Combination]], legal: list[Combination]
) -> None:
    """What a part likes best depends on the name alone: only what finds that part full, before or after, can move.

    The number that likes a part is binomial, so about 0.4 * sqrt(N / n * (1 - 1/n)) of N find each of n parts full.
    Numbering the combinations anew, or taking a hash modulo n with another n, would move (n - 1) / n of them.
    """
    before, after = assign(legal, parts), by_name_assign(extended[1], parts)
    moved = {one for one in legal if before[one] != after[one.name]}
    full_before = {one for one in legal if before[one] != favourite(one, parts)}
    full_after = {one for one in legal if after[one.name] != favourite(one, parts)}
    assert moved <= full_before | full_after
    expected = sum(0.4 * math.sqrt(len(some) * (parts - 1)) for some in (legal, extended[1]))
    assert len(moved) <= 2 * expected
    assert len(moved) <= len(legal) / 6


def by_name_assign(combinations: Sequence[Combination], parts: int) -> dict[str, int]:
    """The shard of each combination, by its name."""
    return {combination.name: part for combination, part in assign(combinations, parts).items()}


def favourite(combination: Combination, parts: int) -> int:
    """The shard that a combination would be in if all had room."""
    return max(range(1, parts + 1), key=lambda part: digest(combination.name, part))


def files_of(project: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of all files, by path, without the lines that say where the template was found."""
    files = {}
    for path in sorted(path for path in project.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name == ".copier-answers.yml":
            content = re.sub(rb"^_.*\n", b"", content, flags=re.MULTILINE)
        files[str(path.relative_to(project))] = path.stat().st_mode, content
    return files


@pytest.mark.parametrize("exists", [False, True])
def test_chosen_projects_are_written_as_copier_writes_them(exists: bool, tmp_path: Path, project: Render) -> None:
    place = tmp_path / "some where" / "projects"
    if exists:
        place.mkdir(parents=True)
    done = ddp_template("render", "some where/projects", "launcher=spawn,slurm", "--cover", "1", cwd=tmp_path)
    assert done.stdout == "projects in some where/projects: 5\n"
    assert "Rendering" in done.stderr
    listed = ddp_template("matrix", "launcher=spawn,slurm", "--cover", "1", "--format", "names").stdout.split()
    assert sorted(path.name for path in place.iterdir()) == sorted(listed)
    for name in listed:
        answers = dict(zip(ANSWERS, name.split("-"), strict=True))
        assert files_of(place / name) == files_of(project(**answers))
        assert f"_src_path: {TEMPLATE}\n" in (place / name / ".copier-answers.yml").read_text()
    assert list((tmp_path / "some where").iterdir()) == [place]
    assert place.stat().st_mode == (tmp_path / "some where").stat().st_mode


def test_a_shard_is_written(tmp_path: Path, legal: list[Combination]) -> None:
    ddp_template("render", tmp_path / "projects", "--shard", "3/100")
    assert {path.name for path in (tmp_path / "projects").iterdir()} == set(names(shard(legal, 3, 100)))


def everything_in(folder: Path) -> dict[str, bytes]:
    """All paths below a folder, and what the files hold."""
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["full"], "full holds something already: choose a new or empty folder"),
        (["hidden"], "hidden holds something already: choose a new or empty folder"),
        (["full/file"], "full/file holds something already"),
        (["full/file/projects"], "full/file"),
        (["empty/../full"], "holds something already"),
        ([""], "holds something already"),
        (["new/projects", "launcher=ssh"], "launcher=ssh is no choice"),
        (["new/projects", "--cover", "x"], "--cover x is no number"),
        (["new/projects", "--shard", "x"], "--shard x is not I/N"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_written_is_refused_in_one_line(arguments: list[str], reason: str, tmp_path: Path) -> None:
    for folder in ("full", "hidden/.git", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "full" / "file").write_text("mine\n")
    before = everything_in(tmp_path)
    done = ddp_template("render", *arguments, code=2, cwd=tmp_path)
    line = re.fullmatch(r"error: ([^\n]{20,})\n", done.stderr)
    assert line, done.stderr
    assert reason in line[1]
    assert done.stdout == ""
    assert everything_in(tmp_path) == before


def test_the_current_folder_is_not_replaced(tmp_path: Path) -> None:
    done = ddp_template("render", ".", code=2, cwd=tmp_path)
    assert done.stderr == "error: . is the current folder, which cannot be replaced: choose a new one\n"
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_cannot_be_rendered_leaves_nothing_and_is_named(
    snapshot: Path, tmp_path: Path, legal: list[Combination]
) -> None:
    broken = shutil.copytree(snapshot, tmp_path / "template")
    (broken / "partials" / "tracking" / "csv.py.jinja").write_text("{{ nothing_has_this_name }}\n")
    some = [one for one in legal if one["task"] == "digits" and one["launcher"] == "spawn" and one["amp"] == "none"]
    with pytest.raises(RenderError, match=r"^digits-spawn-\w+-none-\w+-csv: .*nothing_has_this_name"):
        write_projects(tmp_path / "new" / "projects", some, broken)
    assert list(tmp_path.iterdir()) == [broken]


def test_a_destination_that_was_filled_meanwhile_is_left_as_it_is(
    tmp_path: Path, snapshot: Path, legal: list[Combination], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "projects"

    def fill(project: Path, template: Path) -> None:
        place.mkdir()
        (place / "mine").write_text("mine\n")

    monkeypatch.setattr("generator.cli.render.name_source", fill)
    with pytest.raises(OSError, match="not empty"):
        write_projects(place, legal[:1], snapshot)
    assert everything_in(tmp_path) == {str(place): b"", str(place / "mine"): b"mine\n"}
