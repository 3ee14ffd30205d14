"""Shards of a data set: conversations to bytes, and single conversations back. `dataset.py` explains the tensors.

Owns the files' content. Knows no manifest beyond the entry of the shard.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float16, Int32, Int64
from torch import Tensor

from pilotfish.errors import CorruptModelError, DataSetError
from pilotfish.models.safetensors_file import SafetensorsFile
from pilotfish.train.manifest import ShardEntry


@dataclass(slots=True)
class FinishedConversation:
    """A conversation as the generator hands it over.

    Attributes:
        number: in the whole data set.
        prompt_hash: of its opening prompt, see `prompts.prompt_hash`.
        temperature: of its answers.
        tokens, loss_mask: one entry per token.
        turns: answers.
        ended: the last answer ended by itself.
        hidden: states by boundary at all tokens but the last.
    """

    number: int
    prompt_hash: int
    temperature: float
    tokens: list[int]
    loss_mask: list[bool]
    turns: int
    ended: bool
    hidden: dict[int, Float16[Tensor, "row hidden"]] = field(default_factory=dict)


def shard_name(index: int) -> str:
    """The file name of a shard."""
    return f"shard-{index:05d}.safetensors"


def shard_bytes(conversations: Sequence[FinishedConversation], boundaries: Sequence[int], hidden_size: int) -> bytes:
    """The content of a shard's file; equal conversations give equal bytes."""
    from safetensors.torch import save

    lengths = [len(each.tokens) for each in conversations]
    starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    tensors: dict[str, Tensor] = {
        "tokens": torch.tensor([token for each in conversations for token in each.tokens], dtype=torch.int32),
        "loss_mask": torch.tensor([own for each in conversations for own in each.loss_mask], dtype=torch.bool),
        "starts": starts,
        "number": torch.tensor([each.number for each in conversations], dtype=torch.int64),
        "prompt_hash": torch.tensor([each.prompt_hash for each in conversations], dtype=torch.int64),
        "temperature": torch.tensor([each.temperature for each in conversations], dtype=torch.float32),
        "turns": torch.tensor([each.turns for each in conversations], dtype=torch.int32),
        "ended": torch.tensor([each.ended for each in conversations], dtype=torch.bool),
    }
    for boundary in boundaries:
        rows = [each.hidden[boundary] for each in conversations]
        assert all(len(own) == length - 1 for own, length in zip(rows, lengths, strict=True)), "all tokens but the last"
        tensors[f"hidden.{boundary}"] = torch.cat([torch.empty(0, hidden_size, dtype=torch.float16), *rows])
    return cast(bytes, save(tensors))


class ShardReader:
    """Reads one shard; what is small once and whole, hidden states by the conversation.

    Raises:
        DataSetError: the file is missing, has another length, or (with `verify`) another checksum than the manifest
            says.
    """

    def __init__(self, directory: Path, entry: ShardEntry, *, verify: bool = True) -> None:
        path = directory / entry.file
        advice = "fetch or make the data set again"
        try:
            if path.stat().st_size != entry.size:
                raise DataSetError(f"{path}: {path.stat().st_size} bytes, expected {entry.size}: {advice}")
            if verify:
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                if found != entry.sha256:
                    raise DataSetError(f"{path}: sha256 {found[:16]}, expected {entry.sha256[:16]}: {advice}")
            self._file = SafetensorsFile(path)
        except FileNotFoundError:
            raise DataSetError(f"{path} is missing: {advice}") from None
        except CorruptModelError as error:
            raise DataSetError(str(error)) from None

    @cached_property
    def tokens(self) -> Int32[Tensor, " token"]:
        return self._file.read("tokens")

    @cached_property
    def loss_mask(self) -> Bool[Tensor, " token"]:
        return self._file.read("loss_mask")

    @cached_property
    def prompt_hashes(self) -> Int64[Tensor, " conversation"]:
        return self._file.read("prompt_hash")

    @cached_property
    def _small(self) -> Mapping[str, list[int] | list[float]]:
        return {name: self._file.read(name).tolist() for name in ("starts", "number", "temperature")}

    def bounds(self, place: int) -> tuple[int, int]:
        """Where a conversation begins and ends in `tokens`."""
        starts = self._small["starts"]
        return int(starts[place]), int(starts[place + 1])

    def number(self, place: int) -> int:
        return int(self._small["number"][place])

    def temperature(self, place: int) -> float:
        return float(self._small["temperature"][place])

    def hidden(self, boundary: int, place: int) -> Float16[Tensor, "row hidden"]:
        """One conversation's states at a stored boundary; only they are read from the disk."""
        start, stop = self.bounds(place)
        whole = self._file.tensors[f"hidden.{boundary}"]
        width, rows = whole.shape[1], stop - start - 1
        offset = whole.start + 2 * width * (start - place)
        values = np.fromfile(self._file.path, np.float16, rows * width, offset=offset)
        return torch.from_numpy(values.reshape(rows, width))
