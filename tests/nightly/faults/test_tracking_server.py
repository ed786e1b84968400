"""A tracking server that goes away costs neither the run nor a metric."""

import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.check.train.records import read_jsonl, read_mlflow
from tests.conftest import Measured, Render
from tests.nightly.faults.test_preemption import STOPPED, since
from tests.support.processes import started, wait_for_line, wait_until
from tests.support.ranks import Rank, start_ranks


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder)]
    with started(command, folder, folder / "server.log"):
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), 90)
        yield


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def test_mlflow_misses_nothing_while_its_server_is_away(
    project: Render, free_port: int, tmp_path: Path, measured: Measured
) -> None:
    run_dir = tmp_path / "run"
    env = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{free_port}"}
    ranks: list[Rank] = []
    try:
        with mlflow_server(tmp_path, free_port):
            ranks += start_ranks(project(logging="mlflow"), run_dir, "--epochs", "9999", "--eval-every", "999", env=env)
            output = ranks[0].output
            wait_until(output.exists)
            wait_for_line(output, "step 20 ", limit=120)
        wait_for_line(output, "WARNING metrics were not recorded: ", limit=60)
        with mlflow_server(tmp_path, free_port):
            ranks[1].process.terminate()
            started = time.perf_counter()
            printed = [rank.ends_with(STOPPED, timeout=60) for rank in ranks]
            measured("a tracking server", "MLflow: seconds to stop and store all", since(started))
    finally:
        for rank in ranks:
            rank.kill()
    assert "Traceback" not in "".join(printed)
    recorded = {name: [step for step, _ in values] for name, values in read_mlflow(tmp_path).items()}
    assert recorded == {name: [step for step, _ in values] for name, values in read_jsonl(run_dir).items()}
