"""A trace of a few steps: what the CPU and the GPU do when, and what waits for what."""

import logging
from pathlib import Path

from torch import profiler

from .config import Config
from .launcher import World

WAIT, WARM_UP, RECORDED = 8, 2, 5  # steps: the first ones are not like the others, nor are the profiler's first ones


class NoProfiler:
    """Takes steps and records nothing: so the loop need not ask whether to."""

    def step(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Profiler(NoProfiler):
    """Records some steps of this rank and writes the trace to a file, in the format of chrome://tracing."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = WAIT + WARM_UP + RECORDED
        self.profile = profiler.profile(
            schedule=profiler.schedule(wait=WAIT, warmup=WARM_UP, active=RECORDED, repeat=1),
            on_trace_ready=self._write,
        )
        self.profile.start()

    def step(self) -> None:
        """Count a step of the optimizer that is complete."""
        if self.left:
            self.left -= 1
            self.profile.step()

    def close(self) -> None:
        """Write what there is of a trace where the run ends before its last step."""
        if self.left:
            self.profile.stop()
        if self.left > RECORDED:  # the profiler had not begun
            logging.warning("no trace: --profile takes %d steps of a start", WAIT + WARM_UP + RECORDED)

    def _write(self, profile: profiler.profile) -> None:
        profile.export_chrome_trace(str(self.file))
        logging.info("trace: %s, to be opened at https://ui.perfetto.dev", self.file)


def make_profiler(config: Config, world: World) -> NoProfiler:
    """Give rank 0 a profiler, where --profile asks for it."""
    return Profiler(config.run_dir / "trace.json.gz") if config.profile and world.is_main else NoProfiler()
