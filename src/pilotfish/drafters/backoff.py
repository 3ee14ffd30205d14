"""A back-off table: what the target thought likely after the last tokens in its own texts, it thinks likely again.

Owns the table's file and its look-up. The table never changes, so a draft is a function of the committed tokens, and it
costs microseconds. `pilotfish train pool` makes tables, `lookup.py` drafts from them; knows nothing of either.

A table is a directory. `config.json` names the target by its checksum. `table.safetensors` has, for each context length
n, one entry per context in `keys.n` (int32, rising: the hash of a context), `width.n` (uint8: how many successors),
`seen.n` (uint8: class of how often the context was seen, see `seen_class`), and one entry per successor, the likeliest
of a context first, in `next.n` (int16, the lower half of the id, or int32 where ids need it) and `share.n` (uint8: the
root of the probability, 255 for 1). Hashes may collide, which drafts a wrong token and does no other harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pilotfish.errors import CorruptModelError, ModelNotFoundError, UnsupportedModelError
from pilotfish.models.huggingface import read_json
from pilotfish.models.keys import ConfigKeys
from pilotfish.models.safetensors_file import SafetensorsFile

MODEL_TYPE = "pilotfish_backoff_table"
FORMAT = 2
TABLE_FILE = "table.safetensors"
LONGEST_CONTEXT = 8
_SEEN = (2, 4, 16, 128)
"""From so many times on a context is of the next class."""
_DTYPES = {"keys": ("I32",), "width": ("U8",), "seen": ("U8",), "next": ("I16", "I32"), "share": ("U8",)}
"""The tensors of a context length, and how each is stored."""
_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def seen_class(times: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Of how often contexts were seen: once, a few times, and so on; what an entry's shares can be relied on for."""
    return np.searchsorted(_SEEN, times, side="right").astype(np.uint8)


def context_hash(context: Sequence[int]) -> int:
    """The key of a context: its 64-bit mix's upper half, as a signed 32-bit number."""
    mixed = len(context)
    for token in context:
        mixed = ((mixed ^ token) * _MULTIPLIER) & _WORD
        mixed ^= mixed >> 29
    upper = mixed >> 32
    return upper - (1 << 32) if upper >= 1 << 31 else upper


def context_hashes(contexts: NDArray[np.int64]) -> NDArray[np.int32]:
    """`context_hash` of each row."""
    mixed = np.full(len(contexts), contexts.shape[1], dtype=np.uint64)
    for column in contexts.T:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(_MULTIPLIER)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32).view(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class TableOrder:
    """The contexts of one length.

    Attributes:
        keys: sorted hashes, one per context.
        starts: where each context's successors begin; one more entry for where the last ones end.
        successors, shares: the likeliest of a context first, with their probabilities.
        seen: class of how often each context was seen.
    """

    keys: NDArray[np.int32]
    starts: NDArray[np.int32]
    successors: NDArray[np.int32]
    shares: NDArray[np.float32]
    seen: NDArray[np.uint8]

    def __len__(self) -> int:
        """Contexts."""
        return len(self.keys)

    def find(self, context: Sequence[int]) -> int | None:
        """The entry of a context of this length."""
        key = context_hash(context)
        place = int(self.keys.searchsorted(key))
        return place if place < len(self.keys) and self.keys[place] == key else None

    def successors_of(self, entry: int) -> tuple[list[int], list[float]]:
        """The successors of an entry, and their shares."""
        run = slice(int(self.starts[entry]), int(self.starts[entry + 1]))
        return self.successors[run].tolist(), self.shares[run].tolist()


class BackoffTable:
    """A table in memory.

    Args:
        orders: by context length; at most `LONGEST_CONTEXT`.
    """

    def __init__(self, orders: dict[int, TableOrder]) -> None:
        assert all(1 <= length <= LONGEST_CONTEXT for length in orders), "lengths are checked where they are given"
        self.orders = dict(sorted(orders.items(), reverse=True))


def load_table(name: str | Path, fingerprint: str) -> BackoffTable:
    """A table for one target.

    Raises:
        ModelNotFoundError: there is no such directory, or a file is missing in it.
        UnsupportedModelError: it is no table, of another version, or another target's.
        CorruptModelError: the file is damaged.
    """
    path = Path(name).expanduser()
    if not path.is_dir() or not (path / TABLE_FILE).is_file():
        raise ModelNotFoundError(
            f"no back-off table {str(name)!r}: expected a directory that `pilotfish train pool` made"
        )
    keys = ConfigKeys(read_json(path / "config.json"))
    if keys.get("model_type") != MODEL_TYPE or keys.get("format") != FORMAT:
        raise UnsupportedModelError(
            f"{path}: model_type {keys.get('model_type')!r}, format {keys.get('format')!r}; expected {MODEL_TYPE!r}, "
            f"{FORMAT}: make it again with `pilotfish train pool`"
        )
    if keys.text("target_fingerprint") != fingerprint:
        raise UnsupportedModelError(
            f"{path}: made for the target with checksum {keys.text('target_fingerprint')[:16]}, this one's is "
            f"{fingerprint[:16]}; another model's token ids mean nothing: make one with `pilotfish train pool`"
        )
    file = SafetensorsFile(path / TABLE_FILE)
    lengths = [length for length in range(1, LONGEST_CONTEXT + 1) if f"keys.{length}" in file.tensors]
    known = {f"{name}.{length}" for name in _DTYPES for length in lengths}
    if unknown := file.tensors.keys() - known:
        raise CorruptModelError(
            f"{file.path}: tensor {min(unknown)!r} has no place in a table of contexts of up to {LONGEST_CONTEXT} "
            "tokens; make the table again with `pilotfish train pool`"
        )
    return BackoffTable({length: _read(file, length) for length in lengths})


def _read(file: SafetensorsFile, length: int) -> TableOrder:
    columns = []
    for kind, dtypes in _DTYPES.items():
        name = f"{kind}.{length}"
        stored = file.tensors.get(name)
        if stored is None or stored.dtype not in dtypes or len(stored.shape) != 1:
            got = "is missing" if stored is None else f"is {stored.dtype} of shape {list(stored.shape)}"
            raise CorruptModelError(
                f"{file.path}: tensor {name!r} {got}; expected a row of {' or '.join(dtypes)}: make the table again "
                "with `pilotfish train pool`"
            )
        columns.append(file.read(name).numpy())
    keys, widths, seen, successors, shares = columns
    if successors.dtype == np.int16:
        successors = successors.view(np.uint16)
    starts = np.concatenate([[0], np.cumsum(widths, dtype=np.int64)])
    fits = len(widths) == len(seen) == len(keys) and len(shares) == len(successors) == starts[-1]
    if not fits or (keys[1:] <= keys[:-1]).any() or (seen > len(_SEEN)).any() or starts[-1] >= 1 << 31:
        raise CorruptModelError(
            f"{file.path}: the tensors of context length {length} do not fit each other; make the table again with "
            "`pilotfish train pool`"
        )
    roots = shares.astype(np.float32) / np.float32(255.0)
    return TableOrder(keys, starts.astype(np.int32), successors.astype(np.int32), roots * roots, seen)


def stored(order: TableOrder, vocab_size: int) -> dict[str, NDArray[np.generic]]:
    """What `_read` reads, by name without the length."""
    narrow = vocab_size <= 1 << 16
    return {
        "keys": order.keys,
        "width": np.diff(order.starts).astype(np.uint8),
        "seen": order.seen,
        "next": order.successors.astype(np.uint16).view(np.int16) if narrow else order.successors,
        "share": np.rint(np.sqrt(order.shares) * 255.0).astype(np.uint8),
    }
