"""SkyPilot reads the task that LAUNCHING.md shows, and what the task runs on each machine trains as one run."""

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.runner import python_with
from generator.answers.questions import TEMPLATE
from tests.conftest import Render
from tests.support import hosts
from tests.support.processes import PATH, output_of, scaled, started
from tests.support.training import ON_CPU, assert_same_weights, checkpoint, train

STEPS = ("--max-steps", "12")
# SkyPilot would ask GitHub which accelerators there are.
ACCELERATORS = "AcceleratorName,Clouds\nH100,AWS\n"
LOAD = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
[resources] = task.resources
codes = resources.job_recovery["recover_on_exit_codes"]
print(json.dumps([task.num_nodes, task.workdir, task.run, resources.accelerators, codes]))
"""
CATALOG = "from sky.catalog import common; print(common.get_catalog_path('common/accelerators.csv'))"


@pytest.fixture(scope="module")
def shown(project: Render) -> str:
    page = (project() / "LAUNCHING.md").read_text()
    [task] = re.findall(r"`skypilot.yaml`, [^`]*`sky launch.*?^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(task)


def test_skypilot_reads_the_task(shown: str, tmp_path: Path) -> None:
    python, env = python_with(TEMPLATE / "tests" / "skypilot.txt"), os.environ | {"HOME": str(tmp_path)}
    (tmp_path / "skypilot.yaml").write_text(shown)
    catalog = Path(output_of([python, "-c", CATALOG], tmp_path, env).strip())
    catalog.parent.mkdir(parents=True, exist_ok=True)
    catalog.write_text(ACCELERATORS)
    read = json.loads(output_of([python, "-c", LOAD, "skypilot.yaml"], tmp_path, env).splitlines()[-1])
    assert read == [2, ".", yaml.safe_load(shown)["run"], {"H100": 8}, [69, 137]]


def test_the_task_trains_on_two_machines(shown: str, project: Render, tmp_path: Path) -> None:
    if reason := hosts.missing():
        pytest.skip(reason)
    task: dict[str, Any] = yaml.safe_load(shown)
    program = task["run"].replace("/runs/", f"{tmp_path}/").replace("--epochs 20", " ".join([*ON_CPU, *STEPS]))
    with ExitStack() as stack:
        machines = stack.enter_context(hosts.two_hosts())
        told = {"SKYPILOT_NUM_NODES": str(task["num_nodes"]), "SKYPILOT_TASK_ID": "sky-managed-1_task-0"}
        told |= {"SKYPILOT_NODE_IPS": "\n".join(machine.address for machine in machines)}
        told |= {"GLOO_SOCKET_IFNAME": hosts.LINK, "NPROC_PER_NODE": "1", "PATH": PATH}
        running = []
        for rank, machine in enumerate(machines):
            # One core for each, as two ranks on one machine have.
            command = machine.command("taskset", "--cpu-list", "0", "bash", "-c", program)
            env = os.environ | told | {"SKYPILOT_NODE_RANK": str(rank)}
            output = tmp_path / f"{rank}.log"
            running.append((stack.enter_context(started(command, project(), output, env)), output))
        for process, output in running:
            assert process.wait(timeout=scaled(120)) == 0, output.read_text()
    train(project(), tmp_path / "reference", *STEPS)
    assert_same_weights(checkpoint(tmp_path / "sky-managed-1_task-0"), checkpoint(tmp_path / "reference"))
