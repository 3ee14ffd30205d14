"""A back-off table of a data set's answers: what the target most often says after each few tokens.

Owns the counting and the choice of what is worth its bytes; the file is `drafters/backoff.py`'s. An entry is worth how
many more of the answers' tokens it foretells than the shorter context it would back off to; the best ones are kept.
Contexts reach back into the prompt; what is foretold is always the target's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pilotfish.drafters.backoff import MODEL_TYPE, TABLE_FILE, BackoffTable, context_hashes
from pilotfish.errors import InvalidInputError
from pilotfish.models.writing import write_model

BYTES_PER_ENTRY = 10
REFINEMENT = 0.05
"""Worth, per occurrence, of an entry that foretells the same as the shorter context: only the confidence is better."""

Text = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Token ids of a conversation, and which of them the target chose."""


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The candidates of one context length; `gain` is what an entry is worth."""

    keys: NDArray[np.int32]
    successors: NDArray[np.int32]
    shares: NDArray[np.float32]
    gain: NDArray[np.float64]


def build_table(texts: Sequence[Text], *, orders: Sequence[int], max_bytes: int, min_count: int = 2) -> BackoffTable:
    """The table of some texts.

    Args:
        orders: context lengths.
        max_bytes: of the file, about.
        min_count: contexts seen less often are left out.

    Raises:
        InvalidInputError: a length or size is not positive, or there is no text.
    """
    if not orders or min(orders) < 1 or max_bytes < BYTES_PER_ENTRY or min_count < 1:
        raise InvalidInputError(
            f"orders {list(orders)}, max_bytes {max_bytes}, min_count {min_count}: expected lengths of at least 1, "
            f"room for an entry of {BYTES_PER_ENTRY} bytes, and a count of at least 1"
        )
    if not any(chosen.any() for _, chosen in texts):
        raise InvalidInputError("the texts have no answer token: make more data with `pilotfish train data`")
    shorter: _Order | None = None
    found: dict[int, _Order] = {}
    for length in sorted(set(orders)):
        shorter = found[length] = _order(texts, length, min_count, shorter)
    gains = np.concatenate([order.gain for order in found.values()])
    room = max_bytes // BYTES_PER_ENTRY
    least = np.partition(gains, -room)[-room] if len(gains) > room else 0.0
    table = {}
    for length, order in found.items():
        kept = (order.gain > least) if len(gains) > room else (order.gain > 0)
        table[length] = (order.keys[kept], order.successors[kept], order.shares[kept])
    return BackoffTable(table)


def _order(texts: Iterable[Text], length: int, min_count: int, shorter: _Order | None) -> _Order:
    contexts, successors = [], []
    for tokens, chosen in texts:
        places = np.flatnonzero(chosen)
        places = places[places >= length]
        windows = np.lib.stride_tricks.sliding_window_view(tokens, length) if len(tokens) >= length else None
        if windows is None or not len(places):
            continue
        rows = windows[places - length]
        contexts.append(context_hashes(rows))
        successors.append(tokens[places])
    if not contexts:
        empty = np.zeros(0, dtype=np.int32)
        return _Order(empty, empty, empty.astype(np.float32), empty.astype(np.float64))
    keys = np.concatenate(contexts)
    following = np.concatenate(successors)
    pairs = (keys.astype(np.int64) << 32) | following
    unique, counts = np.unique(pairs, return_counts=True)
    heads = (unique >> 32).astype(np.int32)
    tails = (unique & 0xFFFFFFFF).astype(np.int32)
    # Best successor first within each context; of equals the lowest id.
    order = np.lexsort((tails, -counts, heads))
    heads, tails, counts = heads[order], tails[order], counts[order]
    starts = np.flatnonzero(np.r_[True, heads[1:] != heads[:-1]])
    totals = np.add.reduceat(counts, starts)
    best, best_counts, own = tails[starts], counts[starts], heads[starts]
    gain = best_counts.astype(np.float64)
    if shorter is not None and len(shorter.keys):
        gain = gain - _foretold(texts, length, shorter, own) + REFINEMENT * best_counts
    kept = totals >= min_count
    return _Order(own[kept], best[kept], (best_counts / totals).astype(np.float32)[kept], gain[kept])


def _foretold(texts: Iterable[Text], length: int, shorter: _Order, own: NDArray[np.int32]) -> NDArray[np.float64]:
    """How many of each context's successors the next shorter order foretells."""
    right = np.zeros(len(own))
    shorter_length = length - 1
    for tokens, chosen in texts:
        places = np.flatnonzero(chosen)
        places = places[places >= length]
        if not len(places):
            continue
        long_keys = context_hashes(np.lib.stride_tricks.sliding_window_view(tokens, length)[places - length])
        windows = np.lib.stride_tricks.sliding_window_view(tokens, shorter_length)
        short_keys = context_hashes(windows[places - shorter_length])
        place = shorter.keys.searchsorted(short_keys).clip(0, len(shorter.keys) - 1)
        hit = (shorter.keys[place] == short_keys) & (shorter.successors[place] == tokens[places])
        np.add.at(right, own.searchsorted(long_keys), hit.astype(np.float64))
    return right


def save_table(table: BackoffTable, path: Path, *, fingerprint: str, vocab_size: int) -> None:
    """Writes a table's directory.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {}
    for length, (keys, successors, shares) in table.orders.items():
        tensors[f"keys.{length}"] = torch.from_numpy(keys.copy())
        tensors[f"next.{length}"] = torch.from_numpy(successors.copy())
        tensors[f"share.{length}"] = torch.from_numpy(shares.copy()).to(torch.float16)
    values: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "target_fingerprint": fingerprint,
        "vocab_size": vocab_size,
        "entries": {str(length): len(keys) for length, (keys, _, _) in table.orders.items()},
    }
    write_model(path, values, tensors, file=TABLE_FILE)


def table_tokens_per_round(table: BackoffTable, texts: Sequence[Text], depths: int) -> tuple[float, ...]:
    """Tokens per round that a table gives on texts of the target, at draft lengths 1 to `depths`.

    Goes through the answers round by round, as the engine does at the text's own choices.
    """
    found = []
    for draft_len in range(1, depths + 1):
        tokens = rounds = 0
        for ids, chosen in texts:
            text, own = ids.tolist(), chosen.tolist()
            place = 0
            while place < len(text):
                if not own[place]:
                    place += 1
                    continue
                accepted = _accepted(table, text, own, place, draft_len)
                delivered = sum(own[place : place + accepted + 1])
                tokens, rounds, place = tokens + delivered, rounds + 1, place + accepted + 1
        found.append(tokens / max(rounds, 1))
    return tuple(found)


def _accepted(table: BackoffTable, text: list[int], own: list[bool], place: int, draft_len: int) -> int:
    """How many of the tokens from `place` on a draft of this length foretells."""
    for ahead in range(draft_len):
        at = place + ahead
        if at >= len(text) or not own[at]:
            return ahead
        found = table.successor(text[max(0, at - table.longest) : at])
        if found is None or found[0] != text[at]:
            return ahead
    return draft_len
