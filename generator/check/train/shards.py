"""Reads a checkpoint of a project that shards its model: whole tensors, of the safetensors files of all ranks."""

import hashlib
import json
from operator import itemgetter
from pathlib import Path
from typing import Any


def read_whole(path: Path) -> dict[str, Any]:
    """Return a checkpoint, with whole tensors in place of the stand-ins of sharded ones.

    Raises ValueError if the files are not those that the checkpoint names.
    """
    import torch
    from safetensors import safe_open

    checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if "shards" not in checkpoint:
        return checkpoint
    rows: dict[str, list[tuple[int, torch.Tensor]]] = {}
    shards = checkpoint.pop("shards")
    folder = path.with_name(shards["folder"])
    if {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()} != shards["files"]:
        raise ValueError(f"{folder} has other files than {path.name} names")
    for shard in folder.iterdir():
        with safe_open(shard, framework="pt") as file:
            places = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for key in [*file.keys()]:
                rows.setdefault(key, []).append((places[key]["saved_offsets"][0], file.get_tensor(key)))
    tensors = {key: torch.cat([part for _, part in sorted(parts, key=itemgetter(0))]) for key, parts in rows.items()}
    found: dict[str, Any] = with_tensors(checkpoint, tensors)
    return found


def with_tensors(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, dict) and "sharded_tensor" in value:
        tensor = tensors[value["sharded_tensor"]]
        assert (list(tensor.shape), tensor.dtype) == (value["shape"], value["dtype"])
        return tensor
    if isinstance(value, dict):
        return {key: with_tensors(each, tensors) for key, each in value.items()}
    return [with_tensors(each, tensors) for each in value] if isinstance(value, list) else value
