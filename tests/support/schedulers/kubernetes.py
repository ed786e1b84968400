"""A stand-in for a cluster that runs a project's manifests: a registry, the Trainer controller, JobSet, and its nodes.

Nodes are the two hosts of this machine. It does what the manifests ask for as the real ones do, and fails at what it
does not know. Only kubectl is real, where it works without a cluster.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support import hosts
from tests.support.processes import PATH, hang_timeout, output_of, started, wait_until, write_program

CORES = [str(core) for core in sorted(os.sched_getaffinity(0))[:2]]
# The image is what docker is given to build, and the API server takes what kubectl would send it.
DOCKER = """case $1 in
    build) mkdir -p "$(dirname "$CLUSTER/$3")" && cp -r "$4" "$CLUSTER/$3" ;;
    push) test -d "$CLUSTER/$2" ;;
esac"""
KUBECTL = """case $1 in
    patch) exec {kubectl} "$@" ;;
    apply) cp "$3" "$CLUSTER/runtime.yaml" ;;
    create) cat >"$CLUSTER/job.json" ;;
esac"""
# The kubelet and the container runtime: names, mounts, and process 1, since all of the pod are in one namespace.
CONTAINER = """
hostname "$1" && mount --bind "$2" /etc/hosts && mkdir -p runs && mount --bind "$3" runs
mount -t tmpfs -o "size=$4" none /dev/shm
shift 4
"$@" &
main=$!
trap 'kill -TERM $main' TERM
while kill -0 $main 2>/dev/null; do wait $main; done
wait $main
"""


def missing() -> str | None:
    return None if shutil.which("kubectl") else "there is no kubectl: install it"


@dataclass
class Cluster:
    folder: Path

    def submit(self, project: Path, *command: str, code: int = 0, **variables: str) -> str:
        programs = self.folder / "bin"
        write_program(programs / "docker", DOCKER)
        write_program(programs / "kubectl", KUBECTL.format(kubectl=shutil.which("kubectl")))
        own = {"PATH": f"{programs}:{PATH}", "CLUSTER": str(self.folder), "KUBECONFIG": os.devnull}
        command = (str(project / "kubernetes" / "submit.sh"), *command)
        return output_of(command, Path.cwd(), os.environ | own | variables, code=code)

    @property
    def job(self) -> Any:
        return json.loads((self.folder / "job.json").read_text())

    @property
    def runtime(self) -> Any:
        return yaml.safe_load((self.folder / "runtime.yaml").read_text())

    @property
    def image(self) -> Path:
        return self.folder / str(self.job["spec"]["trainer"]["image"])


@dataclass
class Pod:
    host: hosts.Host
    process: subprocess.Popen[bytes]
    output: Path
    grace: float  # seconds

    @property
    def code(self) -> int | None:
        code = self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: int) -> None:
        """Send a signal to process 1, which the kubelet's comes to."""
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(number)

    def delete(self) -> None:
        if self.code is None:
            self.signal(signal.SIGTERM)


@dataclass
class JobSet:
    """The pods of a TrainJob, and what is done when one fails."""

    cluster: Cluster
    hosts: Sequence[hosts.Host]
    stack: ExitStack
    restarts: int = 0
    pods: list[Pod] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name: str = self.cluster.job["metadata"]["name"]
        self.runs = self.cluster.folder / "runs"
        self.runs.mkdir(exist_ok=True)
        self.spec = self.cluster.runtime["spec"]["template"]["spec"]
        [replicated] = self.spec["replicatedJobs"]
        self.job = replicated["template"]["spec"]
        self.template = self.job["template"]["spec"]
        [self.container] = self.template["containers"]
        assert (self.job["backoffLimit"], self.template["restartPolicy"]) == (0, "Never")
        assert self.template["shareProcessNamespace"]

    @property
    def run_dir(self) -> Path:
        return self.runs / self.name

    @property
    def output(self) -> str:
        return "".join(file.read_text() for file in sorted(self.cluster.folder.glob("*.log")))

    def start(self, late: float = 0) -> None:
        (self.cluster.folder / "hosts").write_text("127.0.0.1 localhost\n")
        self.pods = []
        for number in reversed(range(len(self.hosts))):
            time.sleep(late if number == 0 else 0)
            self.pods.insert(0, self._start(number))

    def _start(self, number: int) -> Pod:
        host, pod = self.hosts[number], f"{self.name}-node-0-{number}"
        names = self.cluster.folder / "hosts"
        with open(names, "a") as file:  # the names of pods become known when they have an address
            file.write(f"{host.address} {pod}.{self.name}.default.svc.cluster.local {pod}.{self.name} {pod}\n")
        place = Path(tempfile.mkdtemp(prefix=f"{pod}-", dir=self.cluster.folder))
        shutil.copytree(self.cluster.image, place, dirs_exist_ok=True)
        output = place.with_suffix(".log")
        trainer = self.cluster.job["spec"]["trainer"]
        isolated = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        inside = ["sh", "-c", CONTAINER, "sh", pod, str(names), *self.volumes(), *trainer["command"]]
        command = host.command("taskset", "--cpu-list", CORES[number % len(CORES)], *isolated, *inside)
        process = self.stack.enter_context(started(command, place, output, os.environ | self.variables(number)))
        return Pod(host, process, output, self.template["terminationGracePeriodSeconds"])

    def variables(self, number: int) -> dict[str, str]:
        """What the container of a node finds in its environment: what manifests name, and what the controller adds."""
        trainer = self.cluster.job["spec"]["trainer"]
        of_job = {"metadata.labels['jobset.sigs.k8s.io/jobset-name']": self.name}
        values = {}
        for each in (*self.container.get("env", []), *trainer.get("env", [])):
            values[each["name"]] = each.get("value") or of_job[each["valueFrom"]["fieldRef"]["fieldPath"]]
        cpus = int(trainer["resourcesPerNode"]["requests"]["cpu"])
        values |= {"PET_NNODES": str(trainer["numNodes"]), "PET_NODE_RANK": str(number), "PATH": PATH}
        values |= {"PET_MASTER_ADDR": f"{self.name}-node-0-0.{self.name}", "PET_MASTER_PORT": "29500"}
        return values | {"PET_NPROC_PER_NODE": str(trainer.get("numProcPerNode", cpus))}

    def volumes(self) -> tuple[str, str]:
        """Return the folder of runs and the size of /dev/shm, as the container has them."""
        [folder] = re.findall(r"^WORKDIR (.*)$", (self.cluster.image / "Dockerfile").read_text(), re.MULTILINE)
        claim = yaml.safe_load((self.cluster.image / "kubernetes" / "runs.yaml").read_text())["metadata"]["name"]
        volumes = {volume["name"]: volume for volume in self.template["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in self.container["volumeMounts"]}
        shm = "50%" if mounts.pop("/dev/shm", {}).get("emptyDir") == {"medium": "Memory"} else "64m"
        claims = {path: volume.get("persistentVolumeClaim") for path, volume in mounts.items()}
        assert claims == {f"{folder}/runs": {"claimName": claim}}
        return str(self.runs), shm

    def follow(self) -> str:
        """Wait until the pods have ended, and do as the manifests say: Complete, Failed or, once more, Restarting."""
        codes = self.wait()
        if codes == [0] * len(codes):
            return "Complete"
        reason = "BackoffLimitExceeded"
        for rule in self.job["podFailurePolicy"]["rules"]:
            on = rule["onExitCodes"]
            assert (rule["action"], on["operator"], on["containerName"]) == ("FailJob", "In", self.container["name"])
            if not {*codes}.isdisjoint(on["values"]):
                reason = "PodFailurePolicy"
        policy = self.spec["failurePolicy"]
        actions = [rule["action"] for rule in policy["rules"] if reason in rule["onJobFailureReasons"]]
        if [*actions, "RestartJobSet"][0] == "FailJobSet" or self.restarts == policy["maxRestarts"]:
            return "Failed"
        self.restarts += 1
        self.start()
        return "Restarting"

    def wait(self) -> list[int | None]:
        """Wait until a pod has failed, whereupon the Job deletes the others, or all are done. Returns their codes."""
        ran = self.pods
        wait_until(lambda: any(pod.code for pod in ran) or all(pod.code == 0 for pod in ran), 180, lambda: self.output)
        codes = [pod.code for pod in ran]
        self.delete()
        return codes

    def delete(self) -> None:
        for pod in self.pods:
            pod.delete()
        for pod in self.pods:
            try:
                pod.process.wait(hang_timeout(pod.grace))
            except subprocess.TimeoutExpired:
                pod.process.kill()
        wait_until(lambda: not any(pod.host.processes() for pod in self.pods), 10, told=lambda: self.output)
