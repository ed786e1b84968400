"""What a nemesis makes of a run: whether it is fit to be compared, what has happened to it, and how it may end."""

import errno
import json
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from generator.answers.combinations import SelectionError
from generator.chaos import invariants
from generator.chaos.baseline import Baseline, Pace, UnsuitableProject, Watch, follow
from generator.chaos.disk import reason_in
from generator.chaos.exit_rules import unexpected_failure
from generator.chaos.faults import DONE, FAULTS, KILLED, LOST, REFUSED, Need, NoVictim, Surroundings, possible_faults
from generator.chaos.job import Job, environment, loader_workers
from generator.chaos.nemesis import HANGS_AFTER, Nemesis, StartResult, Verdict, slowed, took_effect
from generator.chaos.schedule import TRAINING, Fault, Schedule, Start, draw
from generator.cli.chaos import NEEDS, check_packages, fails, repeated, said_if_missing
from generator.cli.main import app
from tests.support.chaos import OFTEN, befall

STEPS = 20
TRACEBACK = "Traceback (most recent call last):\n"


@dataclass
class FakeProcess:
    """A process that is only told about."""

    pid: int = 1
    command: Sequence[str] = ()
    below: Sequence["FakeProcess"] = ()
    variables: dict[str, str] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)

    def cmdline(self) -> Sequence[str]:
        """Return what it was started with."""
        return self.command

    def children(self) -> Sequence["FakeProcess"]:
        """Return what it has started."""
        return self.below

    def environ(self) -> dict[str, str]:
        """Return its variables."""
        return self.variables

    def send_signal(self, number: int) -> None:
        """Note a signal."""
        self.sent.append(number)


@dataclass
class FakeJob(Job):
    """A job that ends when it was asked often enough, and prints something each time, or nothing."""

    run_dir: Path
    ends_with: int | None = 0
    asked: int = 0
    word: str = "."
    alive: Sequence[Any] = ()

    def launchers(self) -> list[psutil.Process]:
        """Return none."""
        return []

    def ranks(self) -> list[psutil.Process]:
        """Return all of it."""
        return [*self.alive]

    def processes(self) -> list[psutil.Process]:
        """Return all of it."""
        return [*self.alive]

    def code(self) -> int | None:
        """Return the code, the third time."""
        self.asked += 1
        return self.ends_with if self.asked > 2 else None

    def output(self) -> str:
        """Return a word for each time."""
        return self.word * self.asked

    def end(self) -> None:
        """Do nothing."""


def save(run_dir: Path, step: int, **parts: Any) -> None:
    """Write what counts as a checkpoint here."""
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"step-{step:08d}.pt", "last.pt"):
        (folder / name).write_text(json.dumps({"progress": {"step": step, "epoch": 1}, **parts}))
    (run_dir / "config.json").write_text(json.dumps({"global_batch_size": 64, "accum_steps": 1}))


def fault(kind: str, number: int = 0) -> Fault:
    """Return a fault of a kind."""
    return Fault(number, kind, TRAINING, saves=1, delay=0.0, victim=0.0, length=0.01)


def baseline_run(run_dir: Path, interval: float = 0.1) -> Baseline:
    """Return a run of a pace."""
    return Baseline(run_dir, {}, starts_in=1.0, interval=interval, silence=3.0)


@dataclass
class Weights:
    """What the runs of a nemesis end with, one after the other."""

    of_runs: list[str]
    steps: int = STEPS

    def start(self, run_dir: Path, processes: int, options: Sequence[str]) -> Job:
        """Be a run at its end."""
        save(run_dir, self.steps, model=self.of_runs.pop(0))
        return FakeJob(run_dir)


@pytest.fixture(autouse=True)
def _checkpoints_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "load", lambda file: json.loads(file.read_text()))
    monkeypatch.setattr(invariants, "damaged_checkpoints", lambda run_dir: [])
    monkeypatch.setattr(invariants, "digest", repr)


def nemesis_of(weights: Weights, folder: Path, **about: Any) -> Nemesis:
    """Return one whose runs end with these weights."""
    (folder / "project").mkdir()
    return Nemesis(folder / "project", weights.start, "console", folder, possible_faults(), steps=STEPS, **about)


@pytest.mark.parametrize(
    ("code", "step", "said"),
    [
        (0, 15, "ended at step 15 of 20: leave out what ends it sooner, such as --epochs, --patience or --max-hours"),
        (75, 15, "ended at step 15 of 20"),
        (2, 0, "exit code 2 without a fault"),
        (None, 0, "was not done in 0 s: give fewer --steps"),
    ],
)
def test_a_run_that_cannot_be_compared_with_is_unfit(code: int | None, step: int, said: str, tmp_path: Path) -> None:
    if step:
        save(tmp_path, step)
    with pytest.raises(UnsuitableProject, match=said):
        follow(FakeJob(tmp_path, code), tmp_path, STEPS, limit=0.05)


def test_the_pace_of_a_run_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pace = Pace(began=10.0)
    for time, step, silence in [(12.0, 0, 2.0), (13.0, 5, 0.0), (14.5, 5, 1.5), (17.0, 25, 0.0)]:
        now[0] = time
        pace.note(step, silence)
    assert (pace.starts_in, pace.interval, pace.silence) == (3.0, 1.0, 1.5)


@pytest.mark.parametrize(("interval", "pace"), [(0.05, 1.0), (0.5, 2.0), (60.0, 5.0)])
def test_faults_last_longer_for_slow_projects(interval: float, pace: float, tmp_path: Path) -> None:
    assert baseline_run(tmp_path, interval).pace == pace
    around = Surroundings(pace=pace)
    around.later(0.01, lambda: None)
    assert around.timers[0].interval == pytest.approx(0.01 * pace)


def test_a_number_of_processes_that_does_not_divide_the_global_batch_is_not_used(tmp_path: Path) -> None:
    for size, accum_steps, fitting in [(64, 1, [1, 2, 4]), (6, 1, [1, 2]), (4, 2, [1, 2])]:
        (tmp_path / "config.json").write_text(json.dumps({"global_batch_size": size, "accum_steps": accum_steps}))
        assert baseline_run(tmp_path).numbers == fitting


def test_two_runs_without_a_fault_that_differ_are_no_failure(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights(["one", "another", "a third"]), tmp_path)
    with pytest.raises(UnsuitableProject, match=r"two runs without a fault differ: model is another$"):
        nemesis.run(Schedule(0, [Start(2, {}, [])]))


def test_a_run_that_ends_otherwise_is_one_and_is_kept(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights(["one", "another", "one"]), tmp_path)
    assert nemesis.run(Schedule(0, [Start(2, {}, [])])).wrong == ["model is another than without faults"]
    assert (tmp_path / "seed-0-0").exists()


@pytest.mark.parametrize(
    ("kinds", "wrong"), [(possible_faults(), ["loss is not recorded at step 5"]), (possible_faults(*NEEDS), [])]
)
def test_a_launcher_may_kill_what_records(kinds: list[str], wrong: list[str], tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights([]), tmp_path, read=lambda run_dir: {"loss": [(10, 0.5)]})
    nemesis.logger, nemesis.kinds = "wandb", kinds
    nemesis.baseline = Baseline(tmp_path, {"loss": [(5, 1.0), (10, 0.5)]}, 1.0, 0.1, 3.0)
    nemesis.second = nemesis.baseline
    save(tmp_path, STEPS)
    start = Start(2, {}, [fault("stop")])
    verdict = Verdict(
        Schedule(0, [start]), [StartResult(start, [*start.faults], 75, 1.0), StartResult(start, [], 0, 1.0)]
    )
    assert nemesis._wrong_at_the_end(tmp_path, verdict) == wrong


def test_a_run_that_is_right_takes_no_room_any_more(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights(["one", "one"]), tmp_path)
    assert nemesis.run(Schedule(0, [Start(2, {}, [])])).wrong == []
    assert not (tmp_path / "seed-0-0").exists()


def test_a_disk_without_room_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Baseline, "size", 1 << 60)
    with pytest.raises(UnsuitableProject, match=r"has no room for 4 run directories .*: let TMPDIR name"):
        nemesis_of(Weights(["one"]), tmp_path).baseline  # noqa: B018


def test_a_logger_that_leaves_no_records_is_unfit(tmp_path: Path) -> None:
    with pytest.raises(UnsuitableProject, match="leaves no records of logging=console"):
        nemesis_of(Weights(["one"]), tmp_path, read=lambda run_dir: {"loss": []}).baseline  # noqa: B018


def test_the_file_of_the_project_that_was_changed_is_named(tmp_path: Path) -> None:
    weights = Weights(["one"] * 3)
    nemesis = nemesis_of(weights, tmp_path)
    (tmp_path / "project" / "data.csv").write_text("1")
    assert nemesis.baseline
    (tmp_path / "project" / "cache").write_text("new files are no harm")
    (tmp_path / "project" / "data.csv").write_text("21")
    schedule = Schedule(0, [Start(2, {}, [])])
    assert nemesis.run(schedule).wrong == ["data.csv, a file of the project, was changed"]
    assert nemesis.run(schedule).wrong == [], "it is said once"


def test_a_run_without_a_word_hangs(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights([]), tmp_path, slowness=lambda: 1.0 / HANGS_AFTER)
    nemesis.baseline = Baseline(tmp_path, {}, 1.0, 0.1, silence=0.0)
    assert nemesis._end_of(FakeJob(tmp_path, None, word=""), tmp_path, []) is None
    assert nemesis._end_of(FakeJob(tmp_path, 75, word=""), tmp_path, []) == 75


def test_a_word_or_a_checkpoint_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, silent = [10.0], FakeJob(tmp_path, word="")
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = Watch(silent, tmp_path)
    now[0] = 15.0
    assert watch.silence() == 5.0
    save(tmp_path, 5)
    now[0] = 16.0
    assert watch.silence() == 0.0
    now[0], silent.word, silent.asked = 18.0, "a line", 1
    assert watch.silence() == 0.0


def test_only_the_last_change_of_a_thing_is_undone() -> None:
    around, states = Surroundings(), ["sound"]

    def change(state: str, length: float) -> None:
        around.change("link", lambda: states.append(state), lambda: states.append("sound"), length)

    change("slow", 0.01)
    change("cut", math.inf)
    around.reset()
    assert states == ["sound", "slow", "cut"]
    change("slow", 0.01)
    around.reset()
    assert states[-1] == "sound"


def test_a_rank_that_is_frozen_for_good_stays_so(tmp_path: Path) -> None:
    ranks, around = [FakeProcess(1), FakeProcess(2)], Surroundings()
    job = FakeJob(tmp_path, alive=ranks)
    for kind in ("freeze a rank for a moment", "freeze a rank for good"):
        FAULTS[kind].act(job, around, 0.0, 0.01)
    around.reset()
    assert ranks[0].sent == [signal.SIGSTOP, signal.SIGSTOP]


def test_to_kill_nothing_is_no_fault(tmp_path: Path) -> None:
    with pytest.raises(NoVictim):
        FAULTS["kill everything"].act(FakeJob(tmp_path), Surroundings(), 0.0, 0.1)


def test_nothing_befalls_a_run_that_has_ended(tmp_path: Path) -> None:
    nemesis = nemesis_of(Weights([]), tmp_path)
    nemesis.baseline = baseline_run(tmp_path)
    save(tmp_path, 10)
    ended = FakeJob(tmp_path, asked=5, alive=[FakeProcess()])
    assert not nemesis._happens(fault("kill a rank"), ended, tmp_path, Surroundings(), before=0)


def test_a_limit_on_memory_leaves_the_hard_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def prlimit(pid: int, number: int, limits: tuple[int, int] | None = None) -> tuple[int, int]:
        given.append(limits)
        return (-1, 1000)

    monkeypatch.setattr("resource.prlimit", prlimit)
    rank = psutil.Process()
    FAULTS["little memory"].act(FakeJob(tmp_path, alive=[rank]), Surroundings(), 0.0, 0.1)
    assert given[-1] == (1000, 1000)


def test_what_linux_alone_can_do_is_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "little memory" in possible_faults()
    monkeypatch.delattr("resource.prlimit")
    assert "little memory" not in possible_faults()
    assert "little memory" in possible_faults(*NEEDS), "the draws stay as they are"


OWN, SPAWNED = ["python", "train.py"], ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(7)"]
TRACKER = ["python", "-c", "from multiprocessing.resource_tracker import main;main(7)"]
SERVER = ["python", "-c", "from multiprocessing.forkserver import main; main(8, 9)"]


@pytest.mark.parametrize(
    ("command", "below", "found"),
    [
        (OWN, [FakeProcess(2, OWN), FakeProcess(3, ["git", "log"])], [2]),
        (SPAWNED, [FakeProcess(2, [*SPAWNED, "other"]), FakeProcess(3, TRACKER)], [2]),
        (OWN, [FakeProcess(2, SERVER, [FakeProcess(3, SERVER)]), FakeProcess(4, TRACKER)], [3]),
        (SERVER, [FakeProcess(2, SERVER)], [2]),
    ],
    ids=["forked", "spawned", "by a fork server", "of a forked rank"],
)
def test_processes_that_load_data_are_found(command: list[str], below: list[FakeProcess], found: list[int]) -> None:
    rank: Any = FakeProcess(1, command, below)
    assert [worker.pid for worker in loader_workers(rank)] == found


@pytest.mark.parametrize(
    ("variables", "number"),
    [({"RANK": "3", "SLURM_PROCID": "0"}, 3), ({"OMPI_COMM_WORLD_RANK": "1"}, 1), ({"RANK": "none"}, None), ({}, None)],
)
def test_the_number_of_a_rank_is_what_its_launcher_says(
    variables: dict[str, str], number: int | None, tmp_path: Path
) -> None:
    rank: Any = FakeProcess(variables=variables)
    assert FakeJob(tmp_path).number_of(rank) == number


@pytest.mark.parametrize(
    ("kinds", "hit", "code", "output", "wrong"),
    [
        (["kill a rank"], 1, LOST, "error: rank 1 is silent: it was training", ""),
        (["kill a rank"], 1, LOST, "error: rank 0 is silent: it was training", "no line that has the cause"),
        (["kill a rank", "stop"], 1, LOST, "error: rank 0 is silent: it was training", ""),
        (["kill a rank"], None, LOST, "error: rank 0 is silent: it was training", ""),
        (["kill a rank"], 1, KILLED, "Signal 9 (SIGKILL) received by PID 7", ""),
        (["freeze a rank for good"], 0, REFUSED, "error: rank 1 could not meet the others", ""),
        (["kill a loader worker"], 1, LOST, "rank 0: a process that loads its data has gone", "no line that has"),
        (["full disk"], None, REFUSED, "error: a.pt could not be written: No space left on device", ""),
        (["full disk"], None, REFUSED, "error: a.pt could not be written: Input/output error", "no line that has"),
        (["failing disk", "full disk"], None, REFUSED, "error: b could not be written: Input/output error", ""),
        (["slow disk"], None, REFUSED, "error: a.pt could not be written: No space left on device", "exit code 2"),
        (["kill a rank"], 1, LOST, f"rank 1 has ended\n{TRACEBACK}", "a traceback"),
        (["little memory"], None, LOST, f"a collective has failed\n{TRACEBACK}error: rank 0 does not come", ""),
        (["kill a rank"], 1, LOST, f"a collective has failed\n{TRACEBACK}rank 1 has ended\n{TRACEBACK}", "a traceback"),
        (["stop twice", "take a machine"], None, LOST, "a node is lost: the actor died", ""),
        (["data that no worker can send"], 1, REFUSED, "error: data.py: samples 1: Can't pickle local object", ""),
        (["data that no worker can send"], 1, REFUSED, f"{TRACEBACK}error: data.py: Can't pickle it", "a traceback"),
        (
            ["data that no worker can send"],
            1,
            LOST,
            "error: rank 1 does not come: it is loading data",
            "no line that has",
        ),
        (
            ["data that never comes"],
            1,
            LOST,
            "error: rank 1: it has waited 30 s for samples 4, from the worker with process ID 7",
            "",
        ),
        (
            ["data that never comes"],
            1,
            LOST,
            "error: rank 0 has waited 30 s for sample 4, from worker 0",
            "no line that",
        ),
        (["data that never comes"], None, LOST, "error: rank 0 has waited 30 s for sample 4, from worker 0", ""),
        (["freeze a loader for good"], 1, LOST, "error: rank 1 does not come: it is loading data, after step 5", ""),
        (["freeze a loader for good"], 1, LOST, "error: rank 1 does not come: it is evaluating", "no line that has"),
        (["few open files"], 1, REFUSED, "error: data.py: Too many open files: ulimit -n 65536 lets", ""),
        (["few open files"], 1, LOST, "error: rank 1: a process that loads its data has gone", "no line that has"),
        (["full shared memory"], None, REFUSED, "error: data.py: /dev/shm is full: give it more", ""),
        (["full shared memory"], None, LOST, "error: rank 1: a process that loads its data has gone", "no line that"),
        (["CPU quota"], None, LOST, "error: rank 1 does not come: it is training", "exit code 69"),
    ],
)
def test_the_cause_that_is_said_is_the_true_one(
    kinds: list[str], hit: int | None, code: int, output: str, wrong: str
) -> None:
    said = unexpected_failure([fault(kind) for kind in kinds], hit, code, output, hides=())
    assert wrong in said
    assert bool(wrong) == bool(said)


def test_what_has_changed_nothing_has_not_happened() -> None:
    kinds = ["kill a rank", "few open files", "data that never comes", "full disk", "CPU quota"]
    faults = [fault(kind) for kind in kinds]
    assert [each.kind for each in took_effect(faults, {"stuck", "throttled"}, LOST)] == [
        "kill a rank",
        "few open files",
        "data that never comes",
        "CPU quota",
    ]
    assert [each.kind for each in took_effect(faults, {"full"}, DONE)] == ["kill a rank", "full disk"]


def test_a_run_with_a_quota_may_take_longer() -> None:
    assert slowed([fault("stop"), fault("CPU quota")]) > slowed([fault("stop")]) == slowed([]) == 1.0


def test_what_is_asked_for_alone_leaves_old_seeds_as_they_are() -> None:
    kinds = possible_faults(*{*Need} - {Need.LOADER, Need.SHM, Need.QUOTA})
    assert kinds == [*FAULTS][: len(kinds)]
    assert kinds[-1] == "take a machine"


@pytest.mark.parametrize(("victim", "number", "stopped"), [(0.0, 0, [2]), (0.5, 1, [4]), (0.001, None, [2, 4])])
def test_what_loads_data_is_frozen_for_one_rank_or_for_all(
    victim: float, number: int | None, stopped: list[int], tmp_path: Path
) -> None:
    workers = [FakeProcess(pid, OWN) for pid in (2, 4)]
    ranks = [FakeProcess(1, OWN, workers[:1], {"RANK": "0"}), FakeProcess(3, OWN, workers[1:], {"RANK": "1"})]
    around = Surroundings()
    FAULTS["freeze a loader for good"].act(FakeJob(tmp_path, alive=ranks), around, victim, 0.1)
    assert around.hit == number
    assert [worker.pid for worker in workers if worker.sent == [signal.SIGSTOP]] == stopped


def test_without_a_process_that_loads_data_none_fails(tmp_path: Path) -> None:
    with pytest.raises(NoVictim):
        FAULTS["few open files"].act(FakeJob(tmp_path, alive=[FakeProcess(1, OWN)]), Surroundings(), 0.0, 0.1)


def test_the_parts_of_a_checkpoint_are_compared_whatever_they_are() -> None:
    one = {"model": 1, "update": 2, "progress": {"step": 5, "epoch": 1}, "config": "here"}
    other = {"model": 1, "update": 3, "scaler": 4, "progress": {"step": 5, "epoch": 2}, "code": "there"}
    assert invariants.differing_parts(one, other) == ["progress", "scaler", "update"]
    assert invariants.differing_counts(one, other) == ["epoch"]


def test_other_numbers_of_processes_may_change_values_but_no_steps() -> None:
    of_baseline = invariants.only_steps({"loss": [(5, 1.0), (10, 0.5)]})
    assert invariants.wrong_records(invariants.only_steps({"loss": [(5, 1.1), (10, 0.4)]}), of_baseline) == []
    assert invariants.wrong_records(invariants.only_steps({"loss": [(5, 1.1)]}), of_baseline) == [
        "loss is not recorded at step 10"
    ]


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "fuse: device not found\nTraceback (most recent call last):\n  File 1\nRuntimeError: 1\n",
            "fuse: device not found",
        ),
        ("Traceback (most recent call last):\n  File 1\nOSError: no libfuse\n", "OSError: no libfuse"),
        ("", "it says nothing"),
    ],
)
def test_what_fuse_says_itself_is_the_reason(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "disk.log").write_text(log)
    assert reason_in(tmp_path / "disk.log") == reason


def test_records_go_to_no_tracker_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI", "DATA"):
        monkeypatch.setenv(name, "of the user")
    variables = environment()
    assert variables["WANDB_MODE"] == "offline"
    assert variables["DATA"] == "of the user"
    assert not {"WANDB_DIR", "MLFLOW_TRACKING_URI"} & variables.keys()


def test_a_package_that_reads_runs_must_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch", "wandb"}
    monkeypatch.setattr("generator.cli.chaos.find_spec", lambda name: name if name in found else None)
    for logger, missing in (("console", "numpy"), ("wandb", "numpy"), ("mlflow", "numpy mlflow")):
        with pytest.raises(SelectionError, match=f"-m pip install {missing}$"):
            check_packages(logger)


def test_what_cannot_be_here_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with said_if_missing("no CPU time is short"):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS), "/sys/fs/cgroup/cpu/ddp-chaos")
    said = capsys.readouterr().err.replace("\n", " ")
    assert said.startswith("no CPU time is short: [Errno 30] Read-only file system")


def test_what_cannot_be_here_is_left_out_of_what_is_drawn() -> None:
    kinds = possible_faults(*NEEDS)
    for seed in range(50):
        drawn = draw(seed, 8, kinds)
        assert drawn.fitted(kinds, (1, 2, 4)) == drawn
        fitted = drawn.fitted(possible_faults(), (1, 2))
        assert [each for each in fitted.faults if FAULTS[each.kind].need.name in ("DISK", "CLOCK", "LAUNCHER")] == []
        assert {each.number for each in fitted.faults} <= {each.number for each in drawn.faults}
        assert all(start.processes in (1, 2) and start.faults for start in fitted.starts)


@dataclass
class Verdicts:
    """A nemesis of which it is known what it finds."""

    found: list[Verdict]
    schedule: Schedule = field(default_factory=lambda: Schedule(7, [Start(2, {}, [fault("kill a rank", 3)])]))

    def drawn(self, seed: int) -> Schedule:
        """Return the same for every seed."""
        return self.schedule

    def run(self, schedule: Schedule) -> Verdict:
        """Return the next one."""
        return self.found.pop(0)

    def run_until(self, faults: int, seed: int) -> list[Verdict]:
        """Return all."""
        return self.found


def test_what_is_repeated_is_tried_twice_unless_nothing_of_it_can_be_here() -> None:
    nemesis: Any = Verdicts([Verdict(Schedule(7, [])), Verdict(Schedule(7, []), wrong=["lost"])])
    assert [verdict.wrong for verdict in repeated(nemesis, 7, {3})] == [[], ["lost"]]
    assert [*repeated(nemesis, 7, {4})] == []


def test_a_command_that_repeats_nothing_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nemesis = Verdicts([Verdict(Schedule(7, []))] * 2)
    monkeypatch.setattr("generator.cli.chaos.prepare", lambda *about: nemesis)
    for numbers in ("3", "4"):
        done = CliRunner().invoke(app, ["chaos", ".", "--seed", "7", "--only", numbers])
        assert done.exit_code == 1
        assert done.stderr.splitlines()[-1] == "none of these faults of seed 7 has happened here"
    assert nemesis.found == []


def test_a_smaller_run_shows_what_is_wrong_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    nemesis: Any = Verdicts([Verdict(Schedule(7, []), wrong=["exit code 1 after a stop\nTraceback"])])
    assert fails(nemesis, nemesis.schedule)
    assert capsys.readouterr().err == "with 3 alone: exit code 1 after a stop\n"


def test_a_kind_that_is_drawn_often_must_happen() -> None:
    start = Start(2, {}, [fault("kill a rank"), fault("stop", 1)])
    drawn = Verdict(Schedule(1, [start]), [StartResult(start, [start.faults[1]], 75, 1.0)])
    nemesis: Any = Verdicts([drawn] * OFTEN)
    with pytest.raises(AssertionError, match=f"never happened: kill a rank, drawn {OFTEN} times"):
        befall(nemesis, OFTEN, seed=1)


def test_a_kind_need_not_happen_in_starts_that_were_not_needed() -> None:
    first, second = Start(2, {}, [fault("stop")]), Start(2, {}, [fault("kill a rank", 1)])
    done_at_once = Verdict(Schedule(1, [first, second]), [StartResult(first, [*first.faults], 0, 1.0)])
    nemesis: Any = Verdicts([done_at_once] * OFTEN)
    assert befall(nemesis, OFTEN, seed=1) == {"stop": OFTEN}


def test_the_errors_of_a_disk_are_those_of_the_system() -> None:
    for kind, number in (("full disk", errno.ENOSPC), ("failing disk", errno.EIO), ("read-only disk", errno.EROFS)):
        said = f"error: a.pt could not be written: {os.strerror(number)}"
        assert unexpected_failure([fault(kind)], None, REFUSED, said, hides=()) == ""
