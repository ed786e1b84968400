"""Which checkpoints of a folder are whole: its manifest.json tells what the bytes of each one must be."""

import json
from pathlib import Path
from typing import Any

from .exits import UserError
from .files import sha256_of, whole_file


class Manifest:
    """What is known of the checkpoints of a folder, by the SHA-256 of their bytes, in the order of saving.

    A checkpoint is entered before it gets its name, and what it replaces stays in until the next one is entered: so
    every file that is there is known, whenever the program is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "manifest.json"

    def read(self) -> dict[str, dict[str, Any]]:
        """The entries by their digests; none where there is no manifest. Raises UserError where it is damaged."""
        try:
            known: dict[str, dict[str, Any]] = json.loads(self.path.read_text())
            # What has no file is no entry: this is an error then.
            return {sha256: {"file": entry["file"], **entry} for sha256, entry in known.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path} is damaged: delete it to go on without verifying checkpoints") from error

    def enter(self, sha256: str, entry: dict[str, Any]) -> None:
        """Add a checkpoint that is about to get its name, and forget those that are gone.

        The one before and the best ones stay: last.pt and best.pt outlive the numbered files that they are names of.
        """
        known = self.read() or {sha256_of(file): {"file": file.name} for file in sorted(self.folder.glob("*.pt"))}
        before = [*known][-1:]
        kept = {
            key: one
            for key, one in known.items()
            if key in before or one.get("best") or (self.folder / one["file"]).exists()
        }
        kept.pop(sha256, None)  # to come last
        with whole_file(self.path) as file:
            file.write((json.dumps({**kept, sha256: entry}, indent=2) + "\n").encode())

    def problem(self, checkpoint: Path) -> str | None:
        """Say what is wrong with a file; None where its bytes are known, or where nothing is known of such a file."""
        known = self.read()
        names = {entry["file"] for entry in known.values()} | {"last.pt", "best.pt"}
        if not known or checkpoint.name not in names or sha256_of(checkpoint) in known:
            return None
        sizes = [entry["size"] for entry in known.values() if entry["file"] == checkpoint.name and "size" in entry]
        size = checkpoint.stat().st_size
        if sizes and size not in sizes:
            return f"{checkpoint} is damaged: it has {size} bytes, and {sizes[-1]} were written"
        return f"{checkpoint} is damaged: its bytes are not those that {self.path.name} tells of"

    def numbered(self) -> list[Path]:
        """The numbered checkpoints of the folder, in the order of saving."""
        saved = {entry["file"]: place for place, entry in enumerate(self.read().values())}
        files = self.folder.glob("step-*.pt")
        return sorted(files, key=lambda file: (saved.get(file.name, -1), file.stat().st_mtime_ns))

    def newest_first(self) -> list[Path]:
        """The checkpoints of the folder: last.pt, then the other numbered ones from the newest on."""
        last, numbered = self.folder / "last.pt", self.numbered()[::-1]
        return [last, *(file for file in numbered if not file.samefile(last))] if last.is_file() else numbered
