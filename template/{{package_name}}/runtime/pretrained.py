"""Weights that a URL names, such as hf://ORG/MODEL: each node keeps them in the cache of torch."""

import fcntl
import json
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch.hub

from .checkpoint import IN_FOLDERS
from .exits import UserError
from .remote import MANIFEST, Mirror, described, file_system, get_file
from .weights import named_by_index

INDEX = ".index.json"  # the end of the name of a file that names others
OF_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".json", ".tar")  # suffixes; another URL is of a folder
ABOUT = "downloaded.json"  # what the files of a folder were in the remote place


def place_of_url(url: str) -> Path:
    """Return where weights lie once they are downloaded: a file, or a folder for the URL of a folder."""
    folder = folder_of_url(url)
    file = folder / file_name(url)
    return file if file.is_file() else folder


def folder_of_url(url: str) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", f"{file_name(url)}-{sha256(url.encode()).hexdigest()[:16]}")


def file_name(url: str) -> str:
    return Path(urlsplit(url).path).name or urlsplit(url).netloc


def download(url: str) -> Path:
    """Bring weights to this machine unless they are here, and return their place. Others that ask for them wait.

    A file gets its name when it is whole. Raises UserError if the place cannot be reached, or has no weights.
    """
    folder = folder_of_url(url)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "downloading", "w") as held:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(held, fcntl.LOCK_EX)
        known = folder / ABOUT
        try:
            with described(url, "--init-from"):
                files, root = file_system(url)
                if Path(file_name(url)).suffix in OF_FILES:
                    bring(files, {file_name(url): root}, root.rpartition("/")[0], folder)
                elif files.exists(f"{root}/{MANIFEST}"):
                    Mirror(url, folder, keep=1).fetch(resumes=True, follows=True)  # it may be another run
                else:
                    bring(files, {name: f"{root}/{name}" for name in best_of(files, root)}, root, folder)
        except UserError as error:
            if not known.is_file():
                raise
            print(f"warning: {error}; the weights that were downloaded before are used", file=sys.stderr)
    return place_of_url(url)


def best_of(files: Any, root: str) -> list[str]:
    """Return which weights to take of a folder. Raises UserError if it has none."""
    there = {Path(each).name for each in files.ls(root, detail=False)}
    found = [name for name in IN_FOLDERS if name in there][:1]
    if not found:
        raise UserError(f"there is none of {', '.join(IN_FOLDERS)} in --init-from {root}")
    return found


def bring(files: Any, wanted: dict[str, str], parent: str, folder: Path) -> None:
    """Bring files, each from its path, and the shards that an index among them names, unless they are here already."""
    known, forms = folder / ABOUT, {}
    before = json.loads(known.read_text()) if known.is_file() else {}
    while wanted:
        name, path = wanted.popitem()
        forms[name] = files.ukey(path)
        if before.get(name) != forms[name] or not (folder / name).is_file():
            print(f"downloading {path} to {folder}", file=sys.stderr)
            known.unlink(missing_ok=True)  # what is here is a mix of two versions, until all is here
            get_file(files, path, folder / name)
        if name.endswith(INDEX):
            wanted |= {shard: f"{parent}/{shard}" for shard in named_by_index(folder / name) if shard not in forms}
    known.write_text(json.dumps(forms))
