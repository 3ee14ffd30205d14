"""A back-off table: what followed the last tokens most often in the target's own texts, follows again.

Owns the table's file and its look-up. The longest context that is known decides, as in Katz's back-off models, with the
share of its most frequent successor as confidence. The table never changes, so a draft is a function of the committed
tokens, and it costs microseconds. `pilotfish train pool` makes tables; knows nothing of how.

A table is a directory. `config.json` names the target by its checksum. `table.safetensors` has, for each context length
n, `keys.n` (int32, rising: the hash of a context), `next.n` (int32: the successor) and `share.n` (float16). Hashes may
collide, which drafts a wrong token and does no other harm.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.errors import ModelNotFoundError, UnsupportedModelError
from pilotfish.models.huggingface import read_json
from pilotfish.models.keys import ConfigKeys
from pilotfish.models.safetensors_file import SafetensorsFile
from pilotfish.terms import EMPTY_DRAFT, Draft

MODEL_TYPE = "pilotfish_backoff_table"
TABLE_FILE = "table.safetensors"
_MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


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


class BackoffTable:
    """A table in memory.

    Args:
        orders: by context length the sorted keys, their successors and these successors' shares.
    """

    def __init__(self, orders: dict[int, tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]]) -> None:
        self.orders = dict(sorted(orders.items(), reverse=True))

    def successor(self, tokens: Sequence[int]) -> tuple[int, float] | None:
        """What most often followed the longest known end of `tokens`, and its share."""
        for length, (keys, successors, shares) in self.orders.items():
            if len(tokens) < length:
                continue
            key = context_hash(tokens[len(tokens) - length :])
            place = int(keys.searchsorted(key))
            if place < len(keys) and keys[place] == key:
                return int(successors[place]), float(shares[place])
        return None

    @property
    def longest(self) -> int:
        """Tokens of the longest contexts."""
        return max(self.orders, default=0)


def load_table(name: str | Path, fingerprint: str) -> BackoffTable:
    """A table for one target.

    Raises:
        ModelNotFoundError: there is no such directory, or a file is missing in it.
        UnsupportedModelError: it is no table, or another target's.
        CorruptModelError: the file is damaged.
    """
    path = Path(name).expanduser()
    if not path.is_dir() or not (path / TABLE_FILE).is_file():
        raise ModelNotFoundError(
            f"no back-off table {str(name)!r}: expected a directory that `pilotfish train pool` made"
        )
    keys = ConfigKeys(read_json(path / "config.json"))
    if keys.get("model_type") != MODEL_TYPE:
        raise UnsupportedModelError(f"{path}: model_type {keys.get('model_type')!r}; expected {MODEL_TYPE!r}")
    if keys.text("target_fingerprint") != fingerprint:
        raise UnsupportedModelError(
            f"{path}: made for the target with checksum {keys.text('target_fingerprint')[:16]}, this one's is "
            f"{fingerprint[:16]}; another model's token ids mean nothing: make one with `pilotfish train pool`"
        )
    file = SafetensorsFile(path / TABLE_FILE)
    lengths = sorted(int(key.removeprefix("keys.")) for key in file.tensors if key.startswith("keys."))
    return BackoffTable(
        {
            length: (
                file.read(f"keys.{length}").numpy(),
                file.read(f"next.{length}").numpy(),
                file.read(f"share.{length}").float().numpy(),
            )
            for length in lengths
        }
    )


class BackoffDrafter(Drafter):
    """Drafts a chain from a table, each token after those before it; ends where no context is known."""

    def __init__(self, table: BackoffTable) -> None:
        self._table = table

    def begin(self, request: int, capacity: int) -> None:
        """Nothing to prepare."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        return [self._propose(job) for job in jobs]

    def _propose(self, job: DraftJob) -> Draft:
        longest = self._table.longest
        path = list(job.tokens[-longest:]) if longest else []
        drafted: list[int] = []
        shares: list[float] = []
        while len(drafted) < job.draft_len:
            found = self._table.successor(path)
            if found is None or found[0] >= job.sampler.vocab_size:
                break
            drafted.append(found[0])
            shares.append(found[1])
            path = [*path, found[0]][-longest:]
        return Draft.chain(drafted, confidence=shares) if drafted else EMPTY_DRAFT

    def observe(self, observation: Observation) -> None:
        """Nothing to learn: the table is fixed."""

    def end(self, request: int) -> None:
        """Nothing to drop."""
