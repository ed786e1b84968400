"""Remembers verdicts between two runs of the command, in one JSON file each."""

import json
import os
from pathlib import Path
from typing import Any

from .questions import TEMPLATE

FOLDER = TEMPLATE / ".cache"


class Cache:
    """A folder of verdicts, each under what it is about and a key that holds all that it depends on."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def read(self, about: str, key: str) -> Any:
        """Give a verdict, or None where there is none that can be read."""
        try:
            return json.loads(self._file(about, key).read_text())
        except (OSError, ValueError):
            return None

    def write(self, about: str, key: str, verdict: Any) -> None:
        """Keep a verdict; another process sees all of it or nothing."""
        file = self._file(about, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(verdict))
        temporary.replace(file)

    def _file(self, about: str, key: str) -> Path:
        return self.folder / about / key[:2] / f"{key}.json"
