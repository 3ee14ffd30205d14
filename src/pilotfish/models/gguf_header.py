"""The header of a GGUF file: its metadata and the table of its tensors, every length checked against the file.

Owns the byte layout of versions 2 and 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Knows no
architecture and reads no tensor. Written out here although the `gguf` package has a reader: that one makes several
NumPy views per vocabulary entry (seconds for 50,000 tokens) and reports a damaged file as whatever NumPy raises.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from pilotfish.errors import CorruptModelError, UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SMALLEST_ITEM = {STRING: 8, ARRAY: 12, **{kind: struct.calcsize(f"<{code}") for kind, code in SCALARS.items()}}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies.

    Attributes:
        type_name: the name of its GGML type, such as "Q4_1".
        shape: outermost axis first (a GGUF stores the reverse).
        offset: of its first byte in the file.
        num_bytes: what it takes up.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata by key, as plain Python values, and the tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Reads and checks the header; no tensor is touched.

    Raises:
        CorruptModelError: not a GGUF file, or one that ends before its header or a tensor does (named).
        UnsupportedModelError: a version, byte order or tensor type that we do not know.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < len(MAGIC):
            raise CorruptModelError(f"{path}: got {size} bytes, expected a GGUF file; fetch it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).header()


class _Parser:
    """A cursor over the header."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.what = "header"

    def fail(self, reason: str) -> NoReturn:
        raise CorruptModelError(f"{self.path}: {self.what}: {reason}; the file is damaged, fetch it again")

    def header(self) -> GgufHeader:
        if self.data[:4] != MAGIC:
            self.fail(f"starts with {bytes(self.data[:4])!r}, expected {MAGIC!r}")
        self.at = 4
        version = self.scalar("I")
        if version not in VERSIONS:
            big_endian = int.from_bytes(int(version).to_bytes(4, "little"), "big") in VERSIONS
            got = "big-endian byte order" if big_endian else f"GGUF version {version}"
            raise UnsupportedModelError(f"{self.path}: got {got}, expected little-endian version 2 or 3")
        num_tensors, num_keys = self.scalar("Q"), self.scalar("Q")
        metadata: dict[str, Any] = {}
        for number in range(num_keys):
            self.what = f"metadata entry {number}"
            key = self.string()
            if key in metadata:
                self.fail(f"key {key!r} comes twice")
            self.what = f"metadata {key!r}"
            metadata[key] = self.value(self.scalar("I"))
        entries = []
        for number in range(num_tensors):
            self.what = f"table entry of tensor {number}"
            entries.append(self.entry())
        self.what = "metadata 'general.alignment'"
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            self.fail(f"got {alignment!r}, expected a power of two")
        start = -(-self.at // alignment) * alignment
        return GgufHeader(metadata, self.place(entries, start, alignment))

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        self.what = f"table entry of tensor {name!r}"
        dimensions = self.scalar("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.fail(f"got {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))[::-1]
        return name, shape, self.scalar("I"), self.scalar("Q")

    def place(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, GgufTensor]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in sorted(entries, key=lambda entry: entry[3]):
            self.what = f"tensor {name!r}"
            if name in tensors:
                self.fail("comes twice")
            try:
                block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            except (ValueError, KeyError):
                raise UnsupportedModelError(f"{self.path}: {self.what} has the unknown GGML type {kind}") from None
            if min(shape) < 1 or shape[-1] % block_size:
                self.fail(f"shape {list(shape)} does not divide into blocks of {block_size}")
            num_bytes = prod(shape) // block_size * block_bytes
            if offset % alignment or start + offset + num_bytes > self.size:
                self.fail(f"bytes {start + offset} to {start + offset + num_bytes} of a file of {self.size} bytes")
            tensors[name] = GgufTensor(name, GGMLQuantizationType(kind).name, shape, start + offset, num_bytes)
        return tensors

    def take(self, count: int) -> int:
        """Moves past `count` bytes and gives the place where they start."""
        at = self.at
        if count > self.size - at:
            self.fail(f"needs {count} bytes at {at} of a file of {self.size} bytes")
        self.at = at + count
        return at

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self.data, self.take(struct.calcsize(f"<{code}")))[0]

    def string(self) -> str:
        length = self.scalar("Q")
        at = self.take(length)
        try:
            return self.data[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"the text at byte {at} is not UTF-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == STRING:
            return self.string()
        if kind != ARRAY or depth > 1:
            self.fail(f"got value type {kind}, expected 0 to 12 and at most one array within another")
        item_kind, count = self.scalar("I"), self.scalar("Q")
        # Checked before the loop, so that a damaged count costs nothing.
        if item_kind not in SMALLEST_ITEM or count * SMALLEST_ITEM[item_kind] > self.size - self.at:
            self.fail(f"an array of {count} values of type {item_kind} does not fit")
        if item_kind in SCALARS:
            code = f"<{count}{SCALARS[item_kind]}"
            return list(struct.unpack_from(code, self.data, self.take(struct.calcsize(code))))
        return [self.value(item_kind, depth + 1) for _ in range(count)]
