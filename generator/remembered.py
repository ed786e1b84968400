"""What is known of a template from before, for as long as the files that decide it are the same."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .cache import Cache
from .trees import read_tree

PARTIALS = "partials"


class Remembered:
    """Facts about a template: each has its own list of the partials that were read to find it out.

    An edit of one partial leaves all facts that do not depend on it. Any other edit leaves none.
    """

    def __init__(self, cache: Cache | None, about: str, template: Path, parts: Sequence[str]) -> None:
        """Of the template, facts about this topic depend on these parts, and on their own partials."""
        self.cache = cache
        self.about = about
        self.partials = digests(template, [PARTIALS])
        # Where a partial comes or goes, Jinja may choose another one.
        self.basis = [metadata.version("copier"), digests(template, parts), sorted(self.partials)]

    def read(self, name: str) -> Any:
        """Give a fact, or None where it is not known, or no longer."""
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
    """Give hashes of all files of some parts of a template, by path."""
    found = {}
    for part in parts:
        if (template / part).is_dir():
            for path, file in read_tree(template / part).items():
                found[f"{part}/{path}"] = hashlib.sha256(repr(file).encode()).hexdigest()
        else:
            found[part] = hashlib.sha256((template / part).read_bytes()).hexdigest()
    return found
