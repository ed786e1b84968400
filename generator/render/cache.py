"""Remembers verdicts between runs of the command, and facts about a template until its files change."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from generator.answers.questions import TEMPLATE
from generator.render.project import read_files

FOLDER = TEMPLATE / ".cache"
PARTIALS = "partials"


class Cache:
    """A folder of verdicts, each under what it is about and a key that holds all that it depends on."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def read(self, about: str, key: str) -> Any:
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


class Remembered:
    """Facts about a template, each with the partials that were read for it: an edit of others leaves it."""

    def __init__(self, cache: Cache | None, about: str, template: Path, parts: Sequence[str]) -> None:
        """Of the template, facts about this topic depend on these parts, and on their own partials."""
        self.cache = cache
        self.about = about
        self.partials = digests(template, [PARTIALS])
        # Where a partial comes or goes, Jinja may choose another one.
        self.basis = [metadata.version("copier"), digests(template, parts), sorted(self.partials)]

    def read(self, name: str) -> Any:
        known = self.cache.read(self.about, self._key(name)) if self.cache else None
        if known is None or any(self.partials.get(path) != digest for path, digest in known["partials"].items()):
            return None
        return known["fact"]

    def write(self, name: str, fact: Any, partials: Iterable[str]) -> None:
        """Keep a fact that was found out by reading these partials, given by their paths in the template."""
        if self.cache:
            read = {path: self.partials[path] for path in partials}
            self.cache.write(self.about, self._key(name), {"fact": fact, "partials": read})

    def _key(self, name: str) -> str:
        return hashlib.sha256(json.dumps([name, *self.basis]).encode()).hexdigest()


def digests(template: Path, parts: Iterable[str]) -> dict[str, str]:
    """Return hashes of all files of some parts of a template, by path."""
    found = {}
    for part in parts:
        own = template / part
        files = read_files(own) if own.is_dir() else {"": (False, own.read_bytes())}
        for path, file in files.items():
            found[f"{part}/{path}"] = hashlib.sha256(repr(file).encode()).hexdigest()
    return found
