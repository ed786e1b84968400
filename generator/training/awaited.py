"""Imports, in the process that ranks are forked from, what its parent names in a file once it knows that."""

import importlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from .variables import MODULES


def import_what_is_named() -> None:
    """Wait for the file, and import what it names; end where the parent has gone."""
    file, parent = Path(os.environ[MODULES]), os.getppid()
    while not file.exists():
        if os.getppid() != parent:
            sys.exit()
        time.sleep(0.01)
    for name in file.read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)


import_what_is_named()
