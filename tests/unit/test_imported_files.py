"""What a program can import decides what it trains."""

from generator.render.project import imported_by

FILES = {
    "train.py": b"from package import model\nfrom package.runtime.loop import run\nimport torch\n",
    "launch.py": b"import package.runtime.jobs\n",
    "package/__init__.py": b"",
    "package/model.py": b"def build():\n    from .runtime import layers, Missing\n",
    "package/runtime/__init__.py": b"from .first import Missing\n",
    "package/runtime/first.py": b"",
    "package/runtime/loop.py": b"from ..runtime.loop import run\nfrom . import *\nimport package.broken as broken\n",
    "package/runtime/layers.py": b"",
    "package/runtime/jobs.py": b"",
    "package/broken.py": b"def import\n",
    "package/runtime/data.npz": b"",
}


def test_files_that_a_program_imports_are_found_wherever_it_does_so() -> None:
    assert imported_by("train.py", FILES) == {
        "train.py",
        "package/__init__.py",
        "package/model.py",
        "package/runtime/__init__.py",
        "package/runtime/first.py",
        "package/runtime/loop.py",
        "package/runtime/layers.py",
        "package/broken.py",
    }
