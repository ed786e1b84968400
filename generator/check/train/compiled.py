"""Keeps what Python compiles, by the content of a source file: projects share most of theirs, and ranks all of them."""

import hashlib
import marshal
import os
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any


def keep_compiled(folder: Path) -> None:
    """Let this process and its forks take compiled code from the folder, and add to it what they must compile."""
    sys.dont_write_bytecode = True
    compile_anew = SourceFileLoader.source_to_code

    def source_to_code(self: SourceFileLoader, data: Any, path: Any, **options: Any) -> CodeType:
        if not isinstance(data, bytes):
            return compile_anew(self, data, path, **options)
        file = folder / hashlib.sha256(data).hexdigest()
        with suppress(OSError):
            return moved(marshal.loads(file.read_bytes()), os.fspath(path))
        code = compile_anew(self, data, path, **options)
        with suppress(OSError):  # a rank may have no space, or no more files
            unfinished = file.with_name(f"{file.name}-{os.getpid()}")
            unfinished.write_bytes(marshal.dumps(code))
            unfinished.replace(file)
        return code

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[assignment, method-assign]


def moved(code: CodeType, path: str) -> CodeType:
    """Return the code with this path of its source, which tracebacks show."""
    if code.co_filename == path:
        return code
    constants = (moved(each, path) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(constants))
