"""Each check of what "trained" means catches the mistakes that it is there for: a table of mutants, all killed."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from generator.combinations import Combination, shaping_questions
from generator.static import source_files
from generator.training.forking import forking, train_all
from generator.training.imports import imports_of
from generator.training.program import Trained, Trial, compare, first_uses, try_out
from tests.conftest import Render


@dataclass(frozen=True)
class Mutant:
    """One mistake in a rendered project, and what must be said of it."""

    mistake: str
    file: str
    old: str
    new: str
    stage: str
    words: str  # that the failure must hold
    answers: dict[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name as a folder."""
        return self.mistake.replace(" ", "-")


MUTANTS = [
    Mutant(
        "the sampler is not told the epoch",
        "train.py",
        "sampler.set_epoch(progress.epoch, skip=progress.samples_in_epoch)",
        "pass",
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "a resumed epoch begins anew",
        "train.py",
        "sampler.set_epoch(progress.epoch, skip=progress.samples_in_epoch)",
        "sampler.set_epoch(progress.epoch)",
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "every micro-batch is reduced",
        "train.py",
        "nullcontext() if i == len(window) else run.ddp.no_sync()",
        "nullcontext()",
        "train",
        "takes 2 collectives, and should take 1",
    ),
    Mutant(
        "gradients are not averaged",
        "train.py",
        "logits = run.ddp(images)",
        "logits = run.model(images)",
        "train",
        "different weights after step 1",
    ),
    Mutant(
        "all ranks train on the same samples",
        "ddp_project/loaders.py",
        "self.skip + self.world.rank * size",
        "self.skip",
        "agree",
        "differ from those of clean from step 1 on",
    ),
    Mutant(
        "all ranks save",
        "ddp_project/checkpoint.py",
        "on_main(lambda: self._write(about | states, progress.step, best))",
        "self._write(about | states, progress.step, best)",
        "train",
        "exit code 2",  # of one rank or of both: whose temporary file is gone depends on who is faster
    ),
    Mutant(
        "all ranks record",
        "ddp_project/tracking.py",
        "if world.is_main else NoTracker()",
        "",
        "train",
        "a rank other than 0 wrote a file",
        {"logging": "csv"},
    ),
    Mutant(
        "rank 0 logs its own loss",
        "train.py",
        'reduce_tensor(counts, "sum").tolist()',
        "counts.tolist()",
        "train",
        "over all ranks",
    ),
    Mutant(
        "rank 0 logs its own evaluation",
        "train.py",
        'reduce_tensor(totals.take(run.device), "sum").tolist()',
        "totals.take(run.device).tolist()",
        "train",
        "epoch/validation_loss at step 3",
    ),
    Mutant(
        "a step is logged under another number",
        "ddp_project/tracking.py",
        "[Metric(name, value, int(now * 1000), step)",
        "[Metric(name, value, int(now * 1000), step + 1)",
        "train",
        "train/loss is recorded at the steps",
        {"logging": "mlflow"},
    ),
    Mutant(
        "a resumed run drops its records",
        "ddp_project/tracking.py",
        'open(path, "a", newline="")',
        'open(path, "w", newline="")',
        "train",
        "cannot be read",
        {"logging": "csv"},
    ),
    Mutant(
        "records are never written out",
        "ddp_project/tracking.py",
        "self.writer.add_scalar(name, value, step)",
        "pass",
        "train",
        "train/loss is recorded at the steps []",
        {"logging": "tensorboard"},
    ),
    Mutant(
        "records have no step",
        "ddp_project/tracking.py",
        "step=step",
        "",
        "train",
        "train/loss is recorded at the steps",
        {"logging": "wandb"},
    ),
    Mutant(
        "the state of the scaler is not saved",
        "ddp_project/precision.py",
        "return self.scaler.state_dict()",
        "return {}",
        "resume",
        "the scale of the loss from step 4 on",
        {"amp": "torch"},
    ),
    Mutant(
        "the state of the optimizer is not saved",
        "train.py",
        "Checkpoints(config, model, optimizer=optimizer)",
        "Checkpoints(config, model)",
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "the generators are not put back",
        "ddp_project/checkpoint.py",
        'set_generator_states(state["generators"])',
        "pass",
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "progress is forgotten",
        "train.py",
        "progress = checkpoints.restore(resume_from) if resume_from else Progress()",
        "progress = Progress()\n    if resume_from:\n        checkpoints.restore(resume_from)",
        "resume",
        "optimizer steps, where 2 were to be taken",
    ),
    Mutant(
        "saving leaves averaged statistics behind",
        "ddp_project/collectives.py",
        "        buffer.copy_(value)\n",
        "        pass\n",
        "resume",
        "model in the last checkpoint",
    ),
    Mutant(
        "evaluating draws random numbers",
        "train.py",
        "    run.model.eval()\n",
        "    run.model.eval()\n    torch.rand(1)\n",
        "resume",
        "the weights from step 4 on",
    ),
    Mutant(
        "the optimizer does not step",
        "train.py",
        "        run.optimizer.step()\n",
        "        pass\n",
        "train",
        "the ranks took [0, 0] optimizer steps",
    ),
    Mutant(
        "the loss grows",
        "train.py",
        "(loss / len(window)).backward()",
        "(-loss / len(window)).backward()",
        "train",
        "the loss does not fall",
    ),
    Mutant(
        "a rank ends with another code",
        "train.py",
        "return ExitCode.DONE",
        "return ExitCode(world.rank)",
        "train",
        "exit code 0, exit code 1",
    ),
    Mutant(
        "a rank waits for ever",
        "train.py",
        '    logging.info("done:',
        '    if world.rank == 1:\n        reduce_tensor(torch.zeros(1))\n    logging.info("done:',
        "train",
        "exit code",
    ),
    Mutant(
        "what is spawned cannot be pickled",
        "train.py",
        "sys.exit(launch(main, CONFIG))",
        "sys.exit(launch(lambda *place: main(*place), CONFIG))",
        "train",
        "pickle",
        {"launcher": "spawn"},
    ),
    Mutant(
        "the argument of the launcher is not understood",
        "ddp_project/launcher.py",
        'parser.add_argument("--local-rank", "--local_rank"',
        'parser.add_argument("--rank-here"',
        "train",
        "exit code",
        {"launcher": "launch"},
    ),
    Mutant(
        "a checkpoint is cut short",
        "ddp_project/files.py",
        "            os.fsync(file.fileno())\n",
        "            file.truncate(1000 if path.suffix == '.pt' else None)\n",
        "resume",
        "exit code 2",
    ),
]


@pytest.fixture(scope="module")
def verdicts(project: Render, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """What is said of every mutant by its name, and of the sound projects that they were made of."""
    folder = tmp_path_factory.mktemp("mutants")
    sound = {repr(mutant.answers): mutant.answers for mutant in MUTANTS} | {"{}": {}}
    trials: dict[str, Trial] = {}
    for name, answers in sound.items():
        trials[name] = make_trial(folder / f"sound-{len(trials)}", project(**answers), answers)
    for mutant in MUTANTS:
        trial = trials[mutant.name] = make_trial(folder / mutant.name, project(**mutant.answers), mutant.answers)
        file = trial.folder / "project" / mutant.file
        text = file.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.mistake}: {mutant.file} has it {text.count(mutant.old)} times"
        file.write_text(text.replace(mutant.old, mutant.new))
    with forking() as name_modules:
        name_modules(imports_of([source_files(trials[name].folder / "project") for name in sound]))
        [uses] = train_all([first_uses({"mlflow"}, folder / "first-use")], 1)
        for trial in trials.values():
            trial.first_use = uses.get(str(trial.combination["logging"]))
        trained = dict(train_all((with_name(name, trial) for name, trial in trials.items()), 2))
    return {name: [*all_failures(trained[name], trained["{}"])] for name in trials}


def make_trial(folder: Path, project: Path, answers: dict[str, object]) -> Trial:
    """Copy a project to try it out, with a run without a stop."""
    shutil.copytree(project, folder / "project")
    defaults = {question.key: question.default for question in shaping_questions()}
    return Trial(Combination.of(defaults | answers), folder, reference=True)


def with_name(name: str, trial: Trial):  # type: ignore[no-untyped-def]
    """Try a combination out, and say which it was."""
    trained = yield from try_out(trial)
    return name, trained


def all_failures(trained: Trained, clean: Trained) -> Iterator[tuple[str, str]]:
    """What is wrong with one alone, and in comparison with a sound one of the same numbers."""
    yield from trained.failures
    if not trained.failures:
        own = compare(trained, trained, own=True, name="itself")
        if own:
            yield own
        if not trained.scales:  # float16 has other numbers
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
    assert any(stage == mutant.stage and mutant.words in text for stage, text in failures), failures
