"""Small data for tasks that learn from files: the same on every machine, made once for all projects of a check."""

from collections.abc import Callable, Mapping
from pathlib import Path


def write_text(place: Path) -> None:
    """Write 32 letters, all equally often: more frequent ones have gradients that float16 cannot hold at first."""
    place.write_bytes(bytes(64 + 7 * number % 32 for number in range(10_000)))


def write_images(place: Path) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, number in (("train", 90), ("val", 24)):
        for i in range(number):
            pixels = rng.integers(0, 60, (16, 16)) + 90 * (i % 3)
            file = place / part / str(i % 3) / f"{i}.{'png' if i % 2 else 'jpg'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(file)


def write_table(place: Path) -> None:
    pairs = [(number * 7 % 31, number * 11 % 29) for number in range(120)]
    place.write_text("a,b,progression\n" + "".join(f"{a},{b},{3 * a - b}\n" for a, b in pairs))


# By the answer to "task". One that is not here has its data with it.
WRITERS: dict[str, Callable[[Path], None]] = {"images": write_images, "language": write_text, "tabular": write_table}


def samples_of(tasks: set[str], folder: Path) -> Mapping[str, Path]:
    """Write what tasks learn from into a folder, unless it is there; return where each one's is."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {task: folder / task for task in sorted(tasks & WRITERS.keys())}
    for task, place in written.items():
        if not place.exists():
            WRITERS[task](place)
    return written
