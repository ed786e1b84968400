"""A project runs no code that is not its own, and writes no secret of its environment anywhere."""

import ast
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from generator.answers.combinations import Combination, covering
from tests.conftest import Render
from tests.support.ranks import error_in
from tests.support.training import train

RUN_CODE_FROM_DATA = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
RUN_CODE_FROM_TEXT = {"__import__", "compile", "eval", "exec", "os.popen", "os.system", "runpy.run_path"}
SECRETS = {
    "WANDB_API_KEY": "5ec2e7" + "0" * 34,
    "MLFLOW_TRACKING_PASSWORD": "5ec2e7-of-mlflow",
    "AWS_SECRET_ACCESS_KEY": "5ec2e7-of-aws",
    "HF_TOKEN": "hf_5ec2e7",
}


def dangers(code: str) -> Iterator[str]:
    """Name what in a program could run code that comes from elsewhere."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and names != ["PicklingError"] else names
            yield from (f"import {name}" for name in modules if name.partition(".")[0] in RUN_CODE_FROM_DATA)
        elif isinstance(node, ast.Call):
            name, options = ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}
            if name in RUN_CODE_FROM_TEXT:
                yield f"{name}()"
            if options.get("shell", "False") != "False":
                yield f"{name}(shell=...)"
            if name == "torch.load" and options.get("weights_only") != "True":
                yield "torch.load() without weights_only=True"


def test_no_program_runs_code_from_elsewhere(legal: Sequence[Combination], project: Render) -> None:
    programs = {
        file.read_text(): file
        for combination in covering(legal, 2)
        for file in project(**dict(combination.answers)).rglob("*.py")
        if file.parent.name != "tests"  # they read what they have written themselves
    }
    assert len(programs) > 50
    assert {f"{file.name}: {danger}" for code, file in programs.items() for danger in dangers(code)} == set()


class Malicious:
    """Something that makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.file),)


def test_a_malicious_checkpoint_is_refused_and_does_nothing(project: Render, tmp_path: Path) -> None:
    torch.save({"model": Malicious(tmp_path / "proof")}, tmp_path / "proven.pt")
    torch.load(tmp_path / "proven.pt", weights_only=False)
    assert (tmp_path / "proof").exists(), "it would do nothing anyway"
    torch.save({"model": Malicious(tmp_path / "harm")}, tmp_path / "checkpoint.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "harm")))
    for name in ("checkpoint.pt", "bare.pt"):
        file = tmp_path / name
        printed = train(project(), tmp_path / "run", "--resume", str(file), code=2, launcher="alone")
        assert f"{file} cannot be read as a checkpoint" in error_in([printed])
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("logger", ["console", "csv", "tensorboard", "wandb", "mlflow"])
def test_no_secret_of_the_environment_is_written(logger: str, project: Render, tmp_path: Path) -> None:
    offline = {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    run_dir = tmp_path / "run"
    printed = train(project(logging=logger), run_dir, "--max-steps", "3", launcher="alone", env={**SECRETS, **offline})
    written = {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()}
    assert {"config.json", "train.log", "last.pt"} <= {file.name for file in written}
    for secret in SECRETS.values():
        assert secret not in printed
        assert [file for file, content in written.items() if secret.encode() in content] == []
