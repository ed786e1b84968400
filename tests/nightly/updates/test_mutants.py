"""The gate catches changes of the template that would lose an owner's edit, an answer or a run."""

import re
from collections.abc import Sequence

import pytest

from generator.render.scratch import scratch_folder
from generator.render.workers import Workers
from generator.update.gate import Gate
from tests.support.versions import MadeUp, append
from tools.rewriting import Rewrite

PACKAGE = "template/{{package_name}}"
DEFAULTS = ("launcher=torchrun", "backend=auto", "amp=none", "parallel=ddp", "sync_bn=false", "logging=console")
ASKS_MORE = Rewrite("checked($X)", "checked([*$X, None, None])", "load_own")
LEARNS_FASTER = Rewrite("float(task.lr_at($$$A))", "1.001 * {}")
BEGINS_ANEW = Rewrite("vars(self).update($X)", "pass", "Progress.load_state_dict")
RESUMED = "resume: v1.0.0 -> v99999, digits-torchrun-auto-none-ddp-false-console"
REPEATED = '''

def {name}(totals: dict[str, float]) -> dict[str, float]:
    """Give what is {name}."""
    kept = dict(totals)
    for key in sorted(totals):
        value = totals[key]
        kept[key] = value * {factor}
        if value < 0:
            del kept[key]
    return kept
'''


def found(versions: MadeUp, workers: Workers, *parts: str, only: Sequence[str] = DEFAULTS) -> str:
    """Return all that is wrong with the working tree of a made-up history, a line each."""
    gate = Gate(template=versions.folder, cache=versions.cache, parts=parts, only=only, pairs=1)
    with scratch_folder(0) as folder:
        return "\n".join(f"{part.name}: {wrong}" for part in gate.run(workers, folder) for wrong in part.wrong)


def test_files_that_are_renamed_dropped_conditional_or_taken_from_the_owner(made_up: MadeUp, workers: Workers) -> None:
    template = made_up.folder / "template"
    (template / "launch.sh.jinja").rename(template / "start.sh.jinja")
    (template / ".gitignore.jinja").unlink()
    package = made_up.folder / PACKAGE
    runtime = package / "runtime"
    (runtime / "watchdog.py").rename(runtime / "{% if amp != 'none' %}watchdog.py{% endif %}.jinja")
    settings = made_up.folder / "copier.yml"
    kept = [line for line in settings.read_text().splitlines(keepends=True) if "/model.py" not in line]
    settings.write_text("".join(kept))
    wrong = found(made_up, workers, "history", "files").splitlines()
    lost = "is not written any more, and an update would delete it with its owner's edits: name it in _exclude"
    assert f"files: .gitignore {lost}" in wrong
    assert f"files: launch.sh {lost}" in wrong
    assert "files: ddp_project/model.py was the owner's, and is not any more" in wrong
    conditional = r"files: ddp_project/runtime/watchdog\.py is not written for [\w-]+-none-[\w-]+: "
    assert [line for line in wrong if re.match(conditional, line)], wrong


def test_a_file_that_is_dropped_and_named_stays_with_the_owner(made_up: MadeUp, workers: Workers) -> None:
    (made_up.folder / "template" / ".gitignore.jinja").unlink()
    made_up.replace("copier.yml", "_exclude:\n", "_exclude:\n  - .gitignore\n")
    assert found(made_up, workers, "history", "files") == ""


def test_repeated_lines_and_the_edit_that_they_misplace(made_up: MadeUp, workers: Workers) -> None:
    module = made_up.folder / PACKAGE / "runtime" / "permutation.py"
    code = module.read_text()
    first, second = (REPEATED.format(name=name, factor=2) for name in ("doubled", "twice"))
    module.write_text(code + first + second)
    made_up.release("1.1.0")
    wrong = found(made_up, workers, "history", "files", "repeats")
    assert "repeats: ddp_project/runtime/permutation.py: the lines around line " in wrong
    edited = first.replace("value * 2", "value + value").replace("sorted(totals)", "list(totals)")
    module.write_text(code + edited + second)
    wrong = found(made_up, workers, "history", "edits")
    assert "in doubled.loop: it has moved to twice.loop" in wrong


def test_answers_that_are_forgotten(made_up: MadeUp, workers: Workers) -> None:
    made_up.replace("copier.yml", "    csv (metrics.csv):\n      value: csv\n", "")
    settings = (made_up.folder / "copier.yml").read_text()
    start, end = settings.index("sync_bn:\n"), settings.index("logging:\n")
    (made_up.folder / "copier.yml").write_text(settings[:start] + settings[end:])
    for file in made_up.folder.rglob("*.jinja"):
        file.write_text(file.read_text().replace("if sync_bn", "if false"))
    assert found(made_up, workers, "questions").splitlines() == [
        "questions: since v1.0.0: the question sync_bn went, and no default of another one reads what was answered",
        "questions: since v1.0.0: logging=csv went: whoever answered that gets the default, so rename the question",
    ]


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        (f"{PACKAGE}/runtime/data_loading.py.jinja", ASKS_MORE),
        (f"{PACKAGE}/runtime/metrics.py", BEGINS_ANEW),
        ("partials/train/train_step_none.jinja", LEARNS_FASTER),
    ],
)
def test_runs_that_cannot_go_on(file: str, edit: Rewrite, made_up: MadeUp, workers: Workers) -> None:
    edit.apply(made_up.folder / file)
    assert f"{RESUMED}: the updated project " in found(made_up, workers, "history", "resume")


def test_a_new_format_of_checkpoints_is_told(made_up: MadeUp, workers: Workers) -> None:
    made_up.replace("partials/checkpoint/base.py.jinja", '{"model": model, **named', '{"weights": model, **named')
    wrong = found(made_up, workers, "history", "resume")
    assert f"{RESUMED}: the old checkpoint is refused" in wrong
    assert "and CHANGELOG.md tells nobody" in wrong
    told = "## Not released yet\n\n### What you must do\n\nFinish your runs: checkpoints have another format.\n"
    (made_up.folder / "CHANGELOG.md").write_text(told)
    assert found(made_up, workers, "history", "resume") == ""


def test_a_version_that_asks_for_trust(made_up: MadeUp, workers: Workers) -> None:
    append(made_up.folder / "copier.yml", "\n_migrations:\n  - command: touch x\n")
    assert "Template uses potentially unsafe feature: migrations" in found(made_up, workers, "history")


def test_versions_that_refuse_old_answers_or_write_something_else_each_time(made_up: MadeUp, workers: Workers) -> None:
    made_up.replace("template/README.md.jinja", "{{ description }}", "{{ description }} in {{ _copier_conf.dst_path }}")
    torch = "on GPUs):\n      value: torch\n"
    made_up.replace("copier.yml", torch, f"{torch}      validator: not any more\n")
    wrong = found(made_up, workers, "history", only=[*DEFAULTS[:2], "amp=none,torch", *DEFAULTS[3:]])
    assert "digits-torchrun-auto-torch-ddp-false-console: the update to v99999 is refused: " in wrong
    assert "digits-torchrun-auto-none-ddp-false-console: after the update README.md has another content" in wrong


def test_a_version_that_cannot_be_rendered_is_a_finding_of_each_project(made_up: MadeUp, workers: Workers) -> None:
    made_up.replace("template/README.md.jinja", "## Start\n", "## {{ nosuch }}\n")
    lines = found(made_up, workers, "files", "history").splitlines()
    assert "files: digits-torchrun-auto-torch-ddp-false-console of snapshot: 'nosuch' is undefined" in lines
    assert [line for line in lines if line.startswith("history: ") and "is refused: 'nosuch' is undefined" in line]
