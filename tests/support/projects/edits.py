"""What owners do to their projects: edits of any version of the template that has the lines that they go between."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support import reference
from tests.support.versions import replace
from tools.rewriting import Rewrite, extend


def another_model(project: Path) -> None:
    (project / "ddp_project" / "model.py").write_text(reference.BATCH_NORM_MODEL)


def another_data_set(project: Path) -> None:
    (project / "ddp_project" / "data.py").write_text(reference.DATA)
    (project / "ddp_project" / "digits.npz").unlink(missing_ok=True)


def averaged_weights(project: Path) -> None:
    average = "self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))"
    for edit in (
        Rewrite("import torch", "{}\nfrom torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn"),
        Rewrite("self.optimizer = task.build_optimizer($$$A)", f"{{}}\n{average}", "Run.__init__"),
        Rewrite("$M.Checkpoints($$$PARTS)", "$M.Checkpoints($$$PARTS, average=self.average)", "Run.__init__"),
        Rewrite("run.update.zero_grad()", "{}\nrun.average.update_parameters(run.model)", "train_step"),
    ):
        edit.apply(project / "train.py")


def new_option(project: Path) -> None:
    option = '    label_smoothing: NonNegativeFloat = 0.0\n    """Share of each label for all classes (fraction)."""\n'
    extend(project / "ddp_project" / "config.py", option)


def added_metric(project: Path) -> None:
    error = '{},\n"error": Mean((logits.argmax(dim=1) != labels).sum(), len(labels))'
    Rewrite('"accuracy": $X', error, "compute").apply(project / "ddp_project" / "task.py")


def early_end(project: Path) -> None:
    enough = "if run.progress.is_best_step() and run.progress.best > 0.999:\n    logging.info('good enough')\n{}"
    Rewrite("run.progress.start_next_epoch()", enough, "finish_step").apply(project / "train.py")


def added_dependency(project: Path) -> None:
    replace(project / "pyproject.toml", '    "tyro>=1.0",\n', '    "tyro>=1.0",\n    "einops>=0.8",\n')


def renamed_readme(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "README.md").rename(project / "docs" / "training.md")


def own_file(project: Path) -> None:
    (project / "notes.md").write_text("# What I tried\n")
    replace(project / ".gitignore", "runs/\n", "runs/\nscratch/\n")


OF_CODE = (another_model, another_data_set, averaged_weights, new_option, added_metric, early_end)
OTHERS = (added_dependency, renamed_readme, own_file)
EDITS: Mapping[str, Callable[[Path], None]] = {edit.__name__: edit for edit in (*OF_CODE, *OTHERS)}
