"""Writes a model directory: `config.json` and one safetensors file, each whole or not at all.

Owns the order of the two and nothing of what is in them. Knows no kind of model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from pilotfish.models.huggingface import SINGLE_FILE


def write_model(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor], *, file: str = SINGLE_FILE
) -> None:
    """Writes both files; the configuration last, so that a directory that has one is complete.

    Args:
        path: made if it is not there.
        values: of `config.json`.
        tensors: by the names they are to have.
        file: the name of the tensors' file.

    Raises:
        OSError: they cannot be written; nothing half written bears its name.
    """
    path.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _write(path / file, save(contiguous, metadata={"format": "pt"}))
    _write(path / "config.json", (json.dumps(values, indent=2) + "\n").encode())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".partial")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
