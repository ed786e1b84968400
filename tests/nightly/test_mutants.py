"""Each check of what "trained" means catches the mistakes that it is there for: a table of mutants, all killed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.answers.combinations import Combination, shaping_questions
from generator.check.static import imports_of, source_files
from generator.check.train.forking import forking, train_all
from generator.check.train.training_case import TrainingCase, compare, first_uses, run_case
from generator.check.train.verification import TrainingResult
from tests.conftest import Render
from tests.support.projects.mutants import MUTANTS, Mutant


@pytest.fixture(scope="module")
def verdicts(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """What is said of every mutant by its name, and of the sound projects that they were made of."""
    folder = tmp_path_factory.mktemp("mutants")
    sound = {repr(mutant.answers): mutant.answers for mutant in MUTANTS} | {"{}": {}}
    trials: dict[str, TrainingCase] = {}
    for name, answers in sound.items():
        trials[name] = make_trial(folder / f"sound-{len(trials)}", project(**answers), answers)
    for mutant in MUTANTS:
        trial = trials[mutant.name] = make_trial(folder / mutant.name, project(**mutant.answers), mutant.answers)
        mutant.edit.apply(trial.folder / "project" / mutant.file)
    with forking() as name_modules:
        name_modules(imports_of([source_files(trials[name].folder / "project") for name in sound]))
        uses = first_uses({"mlflow"}, folder / "first-use")
        for trial in trials.values():
            trial.first_use = uses.get(str(trial.combination["logging"]))
        named = {id(trial): name for name, trial in trials.items()}
        trained = {named[id(trial)]: done for trial, done in train_all(run_case, trials.values(), 2)}
    clean = trained[repr({"amp": "none"})]
    return {name: [*all_failures(trained[name], clean)] for name in trials}


def make_trial(folder: Path, project: Path, answers: dict[str, object]) -> TrainingCase:
    """Copy a project to try it out, with a run without a stop."""
    shutil.copytree(project, folder / "project")
    defaults = {question.key: question.default for question in shaping_questions()}
    return TrainingCase(Combination.of(defaults | answers), folder, reference=True)


def all_failures(trained: TrainingResult, clean: TrainingResult) -> Iterator[tuple[str, str]]:
    """What is wrong with one alone, and in comparison with a sound one of the same numbers."""
    yield from trained.failures
    if not trained.failures:
        own = compare(trained, trained, own=True, name="itself")
        if own:
            yield own
        if not trained.scales and " " not in trained.trail[0]:  # float16 has other numbers, and shards other hashes
            other = compare(trained, clean, own=False, name="clean")
            if other:
                yield other


def test_nothing_is_said_of_sound_projects(verdicts: dict[str, list[tuple[str, str]]]) -> None:
    sound = {name: failures for name, failures in verdicts.items() if name.startswith("{")}
    assert len(sound) > 5
    assert {name: failures for name, failures in sound.items() if failures} == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant, verdicts: dict[str, list[tuple[str, str]]]) -> None:
    failures = verdicts[mutant.name]
    assert any(stage == mutant.stage and re.search(mutant.words, text) for stage, text in failures), failures
