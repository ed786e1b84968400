"""What show() of task.py returns after an evaluation: images, histograms and texts, for the page and for a logger."""

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .data_loading import EvaluationLoader
from .exits import UserError
from .optional_functions import optional
from .storage import replace_file

MOST = 16  # images or texts of one name
IN_ROW, MARGIN = 8, 2  # images in a row, and the pixels between them
BINS = 40
# By name: images in uint8 of shape (n, height, width, 3), values of shape (n,), or a list of texts.
Media = dict[str, Any]


def shown(model: nn.Module, batches: EvaluationLoader) -> Media:
    """Return what show(model, batch) returns for the first batch of a set; nothing if task.py has no show().

    Every rank calls it. Raises UserError if it returns what cannot be shown.
    """
    show = optional("show")
    if show is None:
        return {}
    batch, _ = next(iter(batches))
    returned = show(model, batch)
    if not isinstance(returned, Mapping):
        raise UserError(f"task.py: show() must return a dict, not {type(returned).__name__}")
    media = {str(name): media_of(name, value) for name, value in returned.items()}
    return {name: value for name, value in media.items() if len(value)}


def media_of(name: str, value: Any) -> Any:
    """Return images, values or texts as Media has them. Raises UserError if they are none."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return [*value[:MOST]]
    with suppress(TypeError, ValueError):  # an array of objects
        value = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
    value = value.to_dense() if isinstance(value, Tensor) else value
    if isinstance(value, Tensor) and value.dim() == 1:
        values = value.detach().to("cpu", torch.float64).numpy()
        return values[np.isfinite(values)]
    if isinstance(value, Tensor) and value.dim() == 3:
        value = value[None]
    if isinstance(value, Tensor) and value.dim() == 4 and value.shape[1] in (1, 3):
        if find_spec("PIL") is None:
            raise UserError(f'task.py: show() returns images, "{name}", which need Pillow: pip install pillow')
        images = value[:MOST].detach().cpu()
        if images.dtype != torch.uint8:
            images = images.float().nan_to_num().clamp(0, 1).mul(255).round().byte()
        return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
    wanted = "images of shape (n, 1 or 3, height, width), values of shape (n,), or texts"
    raise UserError(f'task.py: show() must return {wanted}, and "{name}" is of {found}')


def in_rows(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return one image of several, on white."""
    number, height, width, _ = images.shape
    columns = max(1, min(number, IN_ROW))
    height, width = height + MARGIN, width + MARGIN
    page = np.full((-(-number // columns) * height, columns * width, 3), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = i // columns * height, i % columns * width
        page[top : top + height - MARGIN, left : left + width - MARGIN] = image
    return page


def bars(values: NDArray[np.float64]) -> str:
    """Return a histogram of finite values, as SVG."""
    try:
        with np.errstate(all="ignore"):
            counts, edges = np.histogram(values, BINS)
    except ValueError:  # the range is too large or too small for so many
        counts, edges = np.array([len(values)]), np.array([values.min(), values.max()])
    heights, parts = 100 * counts / max(1, counts.max()), []
    for i, (count, height, low, high) in enumerate(zip(counts, heights, edges[:-1], edges[1:], strict=True)):
        box = f'x="{8 * i}" y="{100 - height:.1f}" width="7" height="{height:.1f}"'
        parts.append(f"<rect {box}><title>{low:.4g} to {high:.4g}: {count:,}</title></rect>")
    for x, anchor, edge in ((0, "start", edges[0]), (8 * BINS, "end", edges[-1])):
        parts.append(f'<text x="{x}" y="114" style="text-anchor: {anchor}">{edge:.4g}</text>')
    box = f'viewBox="0 0 {8 * BINS} 120" font-size="11" fill="#0072b2"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(parts)}</svg>'


def write_media(folder: Path, name: str, value: Any) -> None:
    """Write what was shown, in place of what was shown before under this name. Raises OSError or UserError."""
    file = re.sub(r"[^\w.-]|^(?=\.|$)", "_", name)  # which is no hidden file, and never ".."
    folder.mkdir(exist_ok=True)
    if isinstance(value, list):
        replace_file(folder / f"{file}.txt", "\n\n".join(value).encode(errors="backslashreplace"))
    elif value.ndim == 1:
        replace_file(folder / f"{file}.svg", bars(value).encode())
    else:
        replace_file(folder / f"{file}.png", png(in_rows(value)))


def png(image: NDArray[np.uint8]) -> bytes:
    """Return the file of an image."""
    from PIL import Image  # which only projects with images need

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()
