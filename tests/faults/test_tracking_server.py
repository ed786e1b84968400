"""A tracking server that goes away costs neither the run nor a metric."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from generator.training.records import read_log, read_mlflow

from ..conftest import Measured, Render
from ..ranks import start_ranks

STOPPED = 75


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """A real server, whose records are in the folder."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder)]
    with open(folder / "server.log", "a") as output:
        server = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}/health", timeout=90)
            yield
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_until_it_answers(address: str, timeout: float) -> None:
    """Wait until a server gives a page."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, "the server has not started"
            time.sleep(0.2)


def wait_until_logged(output: Path, text: str, timeout: float = 60) -> None:
    """Wait until rank 0 has printed a text."""
    deadline = time.monotonic() + timeout
    while text not in output.read_text():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.1)


def test_mlflow_gets_what_was_measured_while_its_server_was_away(
    project: Render, tmp_path: Path, measured: Measured
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    run_dir = tmp_path / "run"
    env = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    with mlflow_server(tmp_path, port):
        ranks = start_ranks(project(logging="mlflow"), run_dir, "--epochs", "9999", "--eval-every", "999", env=env)
        output = ranks[0].output
        wait_until_logged(output, "step 20 ", timeout=120)
    try:
        wait_until_logged(output, "WARNING metrics were not recorded: ")
        with mlflow_server(tmp_path, port):
            ranks[1].process.terminate()
            started = time.perf_counter()
            printed = [rank.ends_with(STOPPED, timeout=60) for rank in ranks]
            measured(
                "a tracking server", "MLflow: seconds to stop and store all", round(time.perf_counter() - started, 1)
            )
    finally:
        for rank in ranks:
            rank.kill()
    assert "Traceback" not in "".join(printed)
    recorded = {name: [step for step, _ in values] for name, values in read_mlflow(tmp_path).items()}
    assert recorded == {name: [step for step, _ in values] for name, values in read_log(run_dir).items()}
