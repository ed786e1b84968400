"""The data of an owner, which in loader workers does what it is told: code that Python runs there when it starts."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from generator.chaos import faulty_dataset

STATES = {
    "sound": "as it is",
    "unsendable": "what it returns cannot be pickled, so no process can send it to another",
    "stuck": "it never returns",
}


@dataclass
class Data:
    """What tells the data how to be."""

    orders: Path
    known: int = 0

    @property
    def variables(self) -> Mapping[str, str]:
        """What lets a program have such data."""
        places = [str(self.orders.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(places), faulty_dataset.ORDERS: str(self.orders)}

    def set_state(self, state: str, workers: Iterable[int] = ()) -> None:
        """Be so from now on in processes with these IDs, and sound in others."""
        assert state in STATES
        self.orders.write_text(" ".join([state, *map(str, workers)]))

    def states_met(self) -> set[str]:
        """Return the states that have changed a call since this was asked last."""
        file = self.orders.with_name(f"{self.orders.name}.met")
        told = file.read_text().splitlines() if file.exists() else []
        new, self.known = told[self.known :], len(told)
        return {*new}


def faulty_data(place: Path) -> Data:
    """Return what tells the data of jobs, by files in a new folder."""
    place.mkdir()
    shutil.copy(faulty_dataset.__file__, place / "sitecustomize.py")
    data = Data(place / "orders")
    data.set_state("sound")
    return data
