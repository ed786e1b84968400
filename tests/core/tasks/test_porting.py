"""PORTING.md moves a plain script into any project; the comparison finds both equal, or names the mistake of a move."""

import os
import re
import sys

import pytest

from generator.render.git import run
from tests.conftest import Render
from tests.support.processes import output_of
from tests.support.projects.porting import port
from tests.support.ranks import output_of_fork

STEPS = 55  # the example's epoch has 50
# Compares each file of the command line in a fork of one process, which has imported torch.
COMPARE = """
import os, sys
sys.path.insert(0, "tests")
import compare_with_script
for file in sys.argv[1:]:
    if not os.fork():
        code = compare_with_script.main([file, "--max-steps", "{}"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(file, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
STEP = "            optimizer.step()\n"
# What is edited in script.py, the exit code, and what the comparison says.
MISTAKES = {
    "loss": ("(model(points), labels)", "(model(points), labels, reduction='sum')", 1, "Step 1: the loss is .*equal"),
    "data": ("jitter=0.2", "jitter=0.3", 1, "Step 1: .*The batches differ"),
    "samples": ("Rings(3000", "Rings(2000", 1, "3000 samples in the project, 2000 in the script"),
    "names": ("self.layers", "self.network", 1, "unexpected those of the project.*network"),
    "weights": (
        "model.load_state_dict(weights)",
        "nn.init.ones_(model.layers[2].bias)",
        1,
        "Step 1: .*weights of its own",
    ),
    "gradients": (STEP, "            nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n" + STEP, 1, "clipping"),
    "decay": ("weight_decay=0.01", "weight_decay=0.1", 1, "Step 1: .*weight_decay of .* is 0.01 in .* 0.1 in"),
    "schedule": ("scheduler.step()", "pass", 1, "Step 2: .*lr of"),
    "optimizer": ("optim.AdamW(", "optim.NAdam(", 1, "optimizer of layers.0.weight is AdamW in .* NAdam in"),
    "after": (STEP, STEP + "            model.layers[0].weight.data.mul_(0.9)\n", 1, "the new weights are"),
    "frozen": (
        "AdamW(model.parameters()",
        "AdamW(model.layers[0].parameters()",
        1,
        "only the project has layers.2.bias",
    ),
    "rounding": (
        "yield loss, model",
        "yield loss + 1e-3 * (loss.dtype == torch.float32), model",
        0,
        "the same as the project.*float64.*Step 1: the loss is",
    ),
    "early": ("            yield loss, model\n", "", 2, "error: .*no plain_loop"),
    "unstepped": (STEP, "", 2, "error: .*after each optimizer.step"),
    "error": ("zero_grad", "zero", 2, "error: .*script.py, line 5.: AttributeError"),
    "function": ("def plain_loop", "def main", 2, "error: .*no plain_loop"),
}


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"task": "language", "amp": "torch", "launcher": "spawn"},
        {"task": "tabular", "amp": "apex", "launcher": "slurm"},
    ],
    ids=str,
)
def test_the_page_moves_its_example_which_computes_the_same_and_trains(
    answers: dict[str, str], own_project: Render
) -> None:
    project = own_project(**answers)
    script = port(project)
    compile(script, "script", "exec")
    if answers:
        printed = output_of_fork(COMPARE.format(STEPS), "script.py", project=project)
    else:  # the command of the page
        command = [sys.executable, "tests/compare_with_script.py", "script.py", "--max-steps", str(STEPS)]
        printed = output_of(command, project, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert "computes the same as the project, bit for bit" in printed
    run(project, "init", "--quiet")  # ruff reads .gitignore, where script.py is, only in a repository
    for tool in (["black", "--check"], ["ruff", "check"]):
        output_of([sys.executable, "-m", *tool, "."], project)
    if not answers:
        words = "train.py", "--max-steps", "150", "--device", "cpu", "--run-dir", "run"
        printed = output_of_fork(*words, project=project, processes=2)
        assert "done: best validation accuracy 1" in printed


def test_the_comparison_names_the_mistakes_of_a_move(own_project: Render) -> None:
    project = own_project()
    port(project)
    script = (project / "script.py").read_text()
    for name, (old, new, *_) in MISTAKES.items():
        assert old in script
        place = project / name / "script.py"
        place.parent.mkdir()
        place.write_text(script.replace(old, new))
    printed = output_of_fork(COMPARE.format(3), *(f"{name}/script.py" for name in MISTAKES), project=project)
    for name, (_, _, code, said) in MISTAKES.items():
        assert re.search(rf"^{name}/script.py {code}$", printed, re.MULTILINE), f"{name}: {printed}"
        assert re.search(said, printed, re.DOTALL), f"{name}: {printed}"
