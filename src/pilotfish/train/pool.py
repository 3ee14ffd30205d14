"""A back-off table of a data set: what the target thinks likely after each few tokens.

Owns the counting and the choice of what is worth its bytes; the file is `drafters/backoff.py`'s. Where the target's
laws are known (the hidden states were kept), a context's shares are the mean of the laws it was seen with: one row of
text then says what else could have come, and a table of laws is worth one of several times as many counted tokens.
Otherwise the tokens the target chose are counted. Either way, what is foretold is the target's own.

An entry is worth the probability it moves from where the next shorter context would put it, for as often as the context
came; the entries worth most per byte are kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pilotfish.drafters.backoff import (
    FORMAT,
    LONGEST_CONTEXT,
    MODEL_TYPE,
    TABLE_FILE,
    BackoffTable,
    TableOrder,
    context_hashes,
    seen_class,
    stored,
)
from pilotfish.drafters.lookup_index import index_factory
from pilotfish.errors import InvalidInputError
from pilotfish.models.writing import write_model

SUCCESSORS = 6
"""Most successors of an entry: more were measured to bring next to nothing."""
LEAST_SHARE = 0.02
CONTEXT_BYTES = 6
SUCCESSOR_BYTES = 3
"""Of the file, with ids of two bytes."""
BATCH = 1 << 22
"""Pairs of context and successor that are sorted at a time."""
DISCOUNT = 0.5
"""Taken off the times a context was seen: what came once may never come again."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A conversation.

    Attributes:
        tokens: ids.
        chosen: which of them the target chose.
        law: at each token but the last the target's likeliest next ids and their probabilities, `[row, count]`.
    """

    tokens: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    law: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """The candidates of one context length, with what each is worth, and the pairs of key and successor, sorted."""

    entries: TableOrder
    worth: NDArray[np.float64]
    pairs: NDArray[np.int64]
    pair_shares: NDArray[np.float32]


def build_table(texts: Sequence[Text], *, orders: Sequence[int], max_bytes: int, min_count: int = 1) -> BackoffTable:
    """The table of some texts.

    Args:
        orders: context lengths.
        max_bytes: of the file, about.
        min_count: contexts seen less often are left out.

    Raises:
        InvalidInputError: a length or size is out of range, or there is no text.
    """
    smallest = CONTEXT_BYTES + SUCCESSOR_BYTES
    if not orders or not 1 <= min(orders) <= max(orders) <= LONGEST_CONTEXT or max_bytes < smallest or min_count < 1:
        raise InvalidInputError(
            f"orders {list(orders)}, max_bytes {max_bytes}, min_count {min_count}: expected lengths of 1 to "
            f"{LONGEST_CONTEXT}, room for an entry of {smallest} bytes, and a count of at least 1"
        )
    if not any(text.chosen.any() for text in texts):
        raise InvalidInputError("the texts have no answer token: make more data with `pilotfish train data`")
    found: dict[int, _Order] = {}
    shorter: tuple[int, _Order] | None = None
    for length in sorted(set(orders)):
        found[length] = _order(texts, length, min_count, shorter)
        shorter = length, found[length]
    sizes = {n: CONTEXT_BYTES + SUCCESSOR_BYTES * np.diff(order.entries.starts) for n, order in found.items()}
    density = np.concatenate([order.worth / sizes[n] for n, order in found.items()])
    ranking = np.argsort(-density, kind="stable")
    filled = np.cumsum(np.concatenate(list(sizes.values()))[ranking])
    kept = np.zeros(len(density), dtype=bool)
    kept[ranking[(filled <= max_bytes) & (density[ranking] > 0.0)]] = True
    table, start = {}, 0
    for length, order in found.items():
        table[length] = _selected(order.entries, kept[start : start + len(order.entries)])
        start += len(order.entries)
    return BackoffTable(table)


def _rows(
    texts: Sequence[Text], length: int, shorter: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]]:
    """Of each text: keys of the contexts, keys of their shorter ends, successors and weights `[row, count]`."""
    for text in texts:
        if len(text.tokens) <= length:
            continue
        # Row j stands at token j and foretells token j + 1.
        places = np.arange(length - 1, len(text.tokens) - 1)
        if text.law is None:
            places = places[text.chosen[places + 1]]
            ids = text.tokens[places + 1, None].astype(np.int32)
            weights = np.ones((len(places), 1), dtype=np.float32)
        else:
            ids, weights = text.law[0][places], text.law[1][places]
        windows = np.lib.stride_tricks.sliding_window_view(text.tokens, length)[places - length + 1]
        ends = windows[:, length - shorter :] if shorter else windows[:, :0]
        yield context_hashes(windows), context_hashes(ends), ids, weights


def _order(texts: Sequence[Text], length: int, min_count: int, shorter: tuple[int, _Order] | None) -> _Order:
    rows = list(_rows(texts, length, shorter[0] if shorter else 0))
    if not rows:
        none = np.zeros(0, dtype=np.int32)
        nothing = TableOrder(none, np.zeros(1, np.int32), none, none.astype(np.float32), none.astype(np.uint8))
        return _Order(nothing, none.astype(np.float64), none.astype(np.int64), none.astype(np.float32))
    keys = np.concatenate([row[0] for row in rows])
    ends = np.concatenate([row[1] for row in rows])
    width = max(row[2].shape[1] for row in rows)
    ids = np.concatenate([_widened(row[2], width) for row in rows])
    weights = np.concatenate([_widened(row[3], width) for row in rows])
    # In the order of the keys and in parts that end with a key, so that memory stays bounded.
    order = np.argsort(keys, kind="stable")
    keys, ends, ids, weights = keys[order], ends[order], ids[order], weights[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    seen = np.diff(np.r_[starts, len(keys)])
    parts, begin = [], 0
    while begin < len(starts):
        stop = max(begin + 1, int(np.searchsorted(starts, starts[begin] + BATCH // width)))
        last = starts[stop] if stop < len(starts) else len(keys)
        part = slice(int(starts[begin]), int(last))
        parts.append(_shares(keys[part], ids[part], weights[part], keys[starts[begin:stop]], seen[begin:stop]))
        begin = stop
    heads, tails, shares = (np.concatenate(column) for column in zip(*parts, strict=True))
    own = keys[starts]
    widths = np.bincount(own.searchsorted(heads), minlength=len(own))
    entries = TableOrder(own, np.r_[0, np.cumsum(widths)].astype(np.int32), tails, shares, seen_class(seen))
    pairs = heads.astype(np.int64) << 32 | tails
    sorting = np.argsort(pairs)
    before = np.zeros(len(tails), dtype=np.float32)
    if shorter is not None and len(shorter[1].pairs):
        sought = np.repeat(ends[starts], widths).astype(np.int64) << 32 | tails
        place = shorter[1].pairs.searchsorted(sought).clip(0, len(shorter[1].pairs) - 1)
        before = np.where(shorter[1].pairs[place] == sought, shorter[1].pair_shares[place], 0.0).astype(np.float32)
    moved = np.bincount(np.repeat(np.arange(len(own)), widths), np.maximum(shares - before, 0.0), len(own))
    worth = np.where(seen >= min_count, moved * (seen - DISCOUNT), 0.0)
    return _Order(entries, worth, pairs[sorting], shares[sorting])


def _shares(
    keys: NDArray[np.int32],
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
    own: NDArray[np.int32],
    seen: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    """Keys, successors and mean shares of some whole contexts: by key, the likeliest first, of equals the lowest id.

    Args:
        keys, ids, weights: of the rows.
        own, seen: the contexts' different keys, and how many rows each has.
    """
    pairs = (keys.astype(np.int64)[:, None] << 32 | ids).ravel()
    flat = weights.ravel()
    order = np.argsort(pairs, kind="stable")
    pairs = pairs[order]
    starts = np.flatnonzero(np.r_[True, pairs[1:] != pairs[:-1]])
    sums = np.add.reduceat(flat[order].astype(np.float64), starts)
    heads = (pairs[starts] >> 32).astype(np.int32)
    tails = (pairs[starts] & 0xFFFFFFFF).astype(np.int32)
    shares = (sums / seen[own.searchsorted(heads)]).astype(np.float32)
    order = np.lexsort((tails, -shares, heads))
    heads, tails, shares = heads[order], tails[order], shares[order]
    ranks = np.arange(len(heads)) - np.searchsorted(heads, heads)
    kept = (ranks < SUCCESSORS) & (shares >= LEAST_SHARE)
    return heads[kept], tails[kept], shares[kept]


def _widened(values: NDArray[Any], width: int) -> NDArray[Any]:
    """Further columns of the first one's ids, or of no weight."""
    missing = width - values.shape[1]
    fill = np.zeros_like(values[:, :1]) if values.dtype == np.float32 else values[:, :1]
    return np.concatenate([values, *[fill] * missing], axis=1) if missing else values


def _selected(order: TableOrder, kept: NDArray[np.bool_]) -> TableOrder:
    widths = np.diff(order.starts)
    members = np.repeat(kept, widths)
    starts = np.r_[0, np.cumsum(widths[kept])].astype(np.int32)
    return TableOrder(order.keys[kept], starts, order.successors[members], order.shares[members], order.seen[kept])


def save_table(table: BackoffTable, path: Path, *, fingerprint: str, vocab_size: int) -> None:
    """Writes a table's directory.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {}
    for length, order in table.orders.items():
        for name, column in stored(order, vocab_size).items():
            tensors[f"{name}.{length}"] = torch.from_numpy(column.copy())
    values: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "target_fingerprint": fingerprint,
        "vocab_size": vocab_size,
        "entries": {str(length): len(order) for length, order in table.orders.items()},
    }
    write_model(path, values, tensors, file=TABLE_FILE)


def table_tokens_per_round(table: BackoffTable, texts: Sequence[Text], sizes: int) -> tuple[float, ...]:
    """Tokens per round that a table alone gives on texts of the target, with drafts of 1 to `sizes` nodes.

    Goes through the answers round by round, as the engine does at the text's own choices.
    """
    index = index_factory(table)()
    found = []
    for nodes in range(1, sizes + 1):
        tokens = rounds = 0
        for text in texts:
            ids, own = text.tokens.tolist(), text.chosen.tolist()
            place = 0
            while place < len(ids):
                if not own[place]:
                    place += 1
                    continue
                context = ids[max(0, place - LONGEST_CONTEXT) : place]
                drafted, parents, _ = index.propose(context, nodes, nodes, 1 << 31, 0.0, True)
                accepted = _accepted(drafted, parents, ids, own, place)
                delivered = sum(own[place : place + accepted + 1])
                tokens, rounds, place = tokens + delivered, rounds + 1, place + accepted + 1
        found.append(tokens / max(rounds, 1))
    return tuple(found)


def _accepted(drafted: Sequence[int], parents: Sequence[int], ids: list[int], own: list[bool], place: int) -> int:
    """How many of the tokens from `place` on a tree foretells."""
    nodes = {pair: node for node, pair in enumerate(zip(parents, drafted, strict=True))}
    at, accepted = -1, 0
    while place + accepted < len(ids) and own[place + accepted]:
        node = nodes.get((at, ids[place + accepted]))
        if node is None:
            break
        at, accepted = node, accepted + 1
    return accepted
