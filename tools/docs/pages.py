"""The parts of this repository's documentation that are made from the template, its checks and their measured cost."""

import re
import runpy
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.runner import read
from generator.answers.questions import TEMPLATE, Question, read_questions
from generator.chaos.faults import FAULTS as FAULTS_OF_CHAOS
from generator.check.results import STAGES
from generator.render.project import render
from generator.render.snapshot import take_snapshot
from generator.update.gate import PARTS
from tools.docs.check import NOT_MEASURED, Record, check_table, growth_table, machine_line, markdown
from tools.docs.goals import goal_table
from tools.docs.gpu import gpu_table, memory_table, save_table
from tools.docs.scale import agreement_table, checkpoint_table, evaluation_table, orders_table, training_table
from tools.docs.speed import RATE, block_table, guard_table, optimization_table, part_table, speed_table, versions_line
from tools.docs.starting import copying_table, loading_table, site_table, starting_table, stream_table

README, MATRIX, UPDATES = map(Path, ("README.md", "docs/matrix.md", "docs/updates.md"))
CHINESE = Path("README.zh.md")
EXACT, FAULTS = map(Path, ("docs/exact.md", "docs/faults.md"))
SPEED = Path("docs/speed.md")
EXAMPLE = Path("docs/example/train.py")
MUTANTS = Path("tests/support/projects/mutants.py")
RESULTS = Path("benchmarks/results")
COSTS = RESULTS / "check.json"
NUMBERS = {page: RESULTS / f"{page.stem}.json" for page in (EXACT, FAULTS)}
# The tables of docs/speed.md that are made from the results of each benchmark.
MAKERS: dict[str, dict[str, Callable[[Record], str]]] = {
    "speed": {
        "versions": versions_line,
        **{name: partial(speed_table, workload=name) for name in ("tiny_mlp", "small_cnn", "resnet", "transformer")},
    },
    "blocks": {"blocks": block_table},
    "step_parts": {"step_parts": part_table},
    "ablation": {
        "optimisations": partial(optimization_table, what=RATE),
        "optimisations-memory": partial(optimization_table, what="peak_memory"),
    },
    "guards": {"guards": guard_table},
    "gpu": {"gpu": gpu_table, "gpu-memory": memory_table, "gpu-saves": save_table},
    "starting": {"starting": starting_table},
    "loading": {"loading": loading_table},
    "streams": {"streams": stream_table},
    "scale": {
        "sampler": training_table,
        "orders": orders_table,
        "evaluation": evaluation_table,
        "checkpoints": checkpoint_table,
        "agreement": agreement_table,
    },
    "copying": {"copying": copying_table},
    "site": {"site": site_table},
}


def question_table(questions: list[Question]) -> str:
    """Return the questions as a Markdown table; the first choice is the default."""
    rows = [f"| `{question.key}` | {question.help} | {answers(question)} |\n" for question in questions]
    return "| question | what it decides | answers (the default first) |\n|---|---|---|\n" + "".join(rows)


def translated_table(questions: list[Question], page: str) -> str:
    """Return the same table in Chinese, with what a page says of each question; in English where it says nothing."""
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE))
    rows = [f"| `{each.key}` | {told.get(each.key, each.help)} | {answers(each, '文本')} |\n" for each in questions]
    return "| 问题 | 决定什么 | 答案（默认值在前） |\n|---|---|---|\n" + "".join(rows)  # noqa: RUF001


def answers(question: Question, text: str = "text") -> str:
    """Return what a question takes: its choices, with the default first, or free text."""
    ordered = sorted(question.choices, key=lambda choice: choice.value != question.default)
    names = [str(choice.value).lower() for choice in ordered]
    if not names:
        return text
    return ", ".join(
        f"`{name}`" + (" (†)" if choice.conditional else "") for name, choice in zip(names, ordered, strict=True)
    )


def asking_table(what: str, questions: Mapping[str, str]) -> str:
    """Return the stages of a check, or the parts of another one, as a Markdown table."""
    rows = [f"| `{name}` | {asks} |\n" for name, asks in questions.items()]
    return f"| {what} | what it asks |\n|---|---|\n" + "".join(rows)


def mutant_table(tests: Path) -> str:
    """Return the mistakes that must be found as a Markdown table, from the list in their module."""
    rows = []
    for mutant in runpy.run_path(str(tests))["MUTANTS"]:
        answers = ", ".join(f"`{key}={value}`" for key, value in mutant.answers.items()) or "the defaults"
        file, words = Path(mutant.file).name, in_words(mutant.words)
        rows.append(f"| {mutant.mistake} | `{file}` | {answers} | `{mutant.stage}` | {words} |\n")
    head = "| mistake | made in | answers | stage that fails | what it says, among other things |\n"
    return head + "|---|---|---|---|---|\n" + "".join(rows)


def in_words(pattern: str) -> str:
    """Return what a regular expression of words and their alternatives finds, without its escapes."""
    return re.sub(r"\\(.)", r"\1", pattern.replace("|", " or "))


def cost_tables(results: Path) -> dict[str, str]:
    """Return what is made from the results of benchmarks/check.py, if they are there."""
    makers = {"machine": machine_line, "check": check_table, "growth": growth_table}
    measured = read(results)
    return {name: made_from(measured, make) for name, make in makers.items()}


def speed_tables(folder: Path) -> dict[str, str]:
    """Return what is made from the results of the benchmarks of speed; what was not measured says so."""
    records = {name: read(folder / f"{name}.json") for name in MAKERS}
    parts = {"goals": goal_table(records)}
    for name, makers in MAKERS.items():
        for part, make in {f"{name}-machine": machine_line, **makers}.items():
            parts[part] = made_from(records[name], make)
    return parts


def made_from(record: Record, make: Callable[[Record], str]) -> str:
    """Return a table, or say that it was not measured, as a part of a benchmark may not have been."""
    try:
        return make(record)
    except KeyError:
        return NOT_MEASURED


def measured_tables(page: str, results: Path) -> dict[str, str]:
    """Return the numbers that the tests of a page's guarantees have measured, a table for each of them."""
    return {name: number_table(cases_of(results, name)) for name in re.findall("<!-- (.*): begin -->", page)}


def cases_of(results: Path, guarantee: str) -> dict[str, float]:
    """Return the number of each case of a guarantee that tests have measured."""
    measured = read(results).get("measurements", ())
    return {each["case"]: each["value"] for each in measured if each["guarantee"] == guarantee}


def number_table(cases: Mapping[str, float]) -> str:
    """Return the numbers of some cases as a Markdown table."""
    if not cases:
        return NOT_MEASURED
    rows = [
        f"| {case} | {f'{number:.1e}' if 0 < number < 1e-3 else f'{number:.3g}'} |\n" for case, number in cases.items()
    ]
    return "| case | measured |\n|---|---|\n" + "".join(rows)


def chaos_table(cases: Mapping[str, float]) -> str:
    """Return how often each fault happened to each launcher or logger, as a Markdown table."""
    pairs = {tuple(case.split(": ", 1)): int(times) for case, times in cases.items()}
    columns = [*dict.fromkeys(to for to, _ in pairs)]
    kinds = [kind for kind in FAULTS_OF_CHAOS if any((to, kind) in pairs for to in columns)]
    rows = [[kind, *(str(pairs.get((to, kind), "")) for to in columns)] for kind in kinds]
    sums = [sum(times for (to, _), times in pairs.items() if to == column) for column in columns]
    rows.append([f"all {sum(sums):,}", *map(str, sums)])
    return markdown(["fault", *columns], rows) if pairs else NOT_MEASURED


def exit_code_table(code: str) -> str:
    """Return the exit codes of a project as a Markdown table, from the comments of its ExitCode."""
    found = re.findall(r"^    [A-Z]+ = (\d+)(?:  # (.*))?$", code, re.MULTILINE)
    return "| exit code | meaning |\n|---|---|\n" + "".join(f"| {number} | {said} |\n" for number, said in found)


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Put each part between the two comments of a page that name it."""
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = page.split(begin)
        page = before + begin + content + end + rest.split(end)[1]
    return page


def documented_files(template: Path = TEMPLATE) -> dict[Path, str]:
    """Return the content that each made file of the documentation should have, by its path in the repository."""
    matrix = {"stages": asking_table("stage", STAGES), "mutants": mutant_table(template / MUTANTS)}
    parts = {
        **{page: measured_tables((template / page).read_text(), template / NUMBERS[page]) for page in NUMBERS},
        README: {"questions": question_table(read_questions(template))},
        CHINESE: {"questions": translated_table(read_questions(template), (template / CHINESE).read_text())},
        UPDATES: {"update-check": asking_table("part", PARTS)},
        SPEED: speed_tables(template / RESULTS),
        MATRIX: matrix | cost_tables(template / COSTS),
    }
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        render(project, {}, template=take_snapshot(Path(folder) / "snapshot", template))
        example = (project / "train.py").read_text()
        parts[FAULTS]["chaos"] = chaos_table(cases_of(template / NUMBERS[FAULTS], "chaos"))
        parts[FAULTS]["exit-codes"] = exit_code_table(next(project.glob("*/runtime/exits.py")).read_text())
    pages = {path: fill((template / path).read_text(), content) for path, content in parts.items()}
    return {**pages, EXAMPLE: example}


def write_documentation(template: Path = TEMPLATE) -> list[Path]:
    """Bring the made files up to date, and return those that were not."""
    stale = []
    for path, content in documented_files(template).items():
        target = template / path
        if not target.exists() or target.read_text() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
            stale.append(path)
    return stale
