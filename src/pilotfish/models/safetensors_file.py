"""Reads tensors out of safetensors files, checked byte for byte before the first is used.

Owns the format: 8 bytes of length, a JSON header, then the data (https://github.com/huggingface/safetensors). The
header is read here rather than through the `safetensors` package because that package's errors name no tensor.
"""

import hashlib
import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pilotfish.errors import CorruptModelError

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INTEGER_DTYPES = {
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
ITEM_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """Where a tensor lies: `start` and `stop` are offsets in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """An opened safetensors file.

    Attributes:
        tensors: by name, in the order in which they lie in the file.
        digest: a checksum of the header and the file's size.

    Raises:
        CorruptModelError: the header is damaged or the file is not as long as it says; names the first tensor that
            does not fit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
                raise CorruptModelError(
                    f"{path}: header: a file of {size} bytes cannot hold a header of {length} bytes; fetch it again"
                )
            header = file.read(length)
        self.digest = hashlib.sha256(header + str(size).encode()).hexdigest()
        self.tensors = self._table(header, LENGTH_BYTES + length, size)

    def read(self, name: str) -> Tensor:
        """One tensor in the dtype it is stored in (one of `DTYPES` or `INTEGER_DTYPES`).

        Read anew each time: a mapping would keep the whole file in memory.

        Raises:
            CorruptModelError: the file has become shorter than it was.
        """
        tensor = self.tensors[name]
        stored = np.fromfile(self.path, np.uint8, tensor.stop - tensor.start, offset=tensor.start)
        if stored.size != tensor.stop - tensor.start:
            raise CorruptModelError(f"{self.path}: tensor {name!r}: the file was cut short while it was in use")
        return torch.from_numpy(stored).view((DTYPES | INTEGER_DTYPES)[tensor.dtype]).view(tensor.shape)

    def _table(self, header: bytes, data_start: int, size: int) -> dict[str, SafeTensor]:
        try:
            entries = json.loads(header)
            if not isinstance(entries, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptModelError(f"{self.path}: header: not JSON ({error}); fetch the file again") from None
        entries.pop("__metadata__", None)
        tensors = [(name, self._entry(name, entry, data_start)) for name, entry in entries.items()]
        tensors.sort(key=lambda item: (item[1].start, item[1].stop))
        end = data_start
        for name, tensor in tensors:
            if tensor.start != end or tensor.stop > size:
                raise CorruptModelError(
                    f"{self.path}: tensor {name!r}: bytes {tensor.start} to {tensor.stop}, expected to start at {end} "
                    f"and to end within the file's {size} bytes; the file is truncated or damaged, fetch it again"
                )
            end = tensor.stop
        if end != size:
            last = tensors[-1][0] if tensors else None
            raise CorruptModelError(
                f"{self.path}: {size - end} bytes too many after the last tensor {last!r}; fetch the file again"
            )
        return dict(tensors)

    def _entry(self, name: str, entry: Any, data_start: int) -> SafeTensor:
        try:
            dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
            numbers = (*shape, start, stop)
            if any(type(number) is not int or number < 0 for number in numbers):
                raise ValueError("sizes must be whole numbers")
            if (stop - start) * 8 != prod(shape) * ITEM_BITS[dtype]:
                raise ValueError(f"{stop - start} bytes for shape {shape} of {dtype}")
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptModelError(
                f"{self.path}: tensor {name!r}: its header entry makes no sense ({error!r}); fetch the file again"
            ) from None
        return SafeTensor(dtype, tuple(shape), data_start + start, data_start + stop)
