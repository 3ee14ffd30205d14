"""The target's favourites after each row of a verify pass, as drafters that recycle them are told.

Owns the way from logits to `Successors`. Called by the engine once a round's verdict is known; knows no drafter.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.drafters.base import Successors
from pilotfish.errors import ExecutorUnavailableError
from pilotfish.models.native_executor import native_module
from pilotfish.terms import ROOT, Draft


def successors(
    tokens: Sequence[int], draft: Draft, logits: Float[Tensor, "row vocab"], count: int, vocab_size: int
) -> tuple[Successors, ...]:
    """What the target thought likely at the pending token and at each node of a draft.

    Args:
        tokens: the committed tokens before the round; the last is the pending one.
        draft: what was verified.
        logits: row 0 at the pending token, row i + 1 at node i; columns may be padded.
        count: how many favourites per row.
        vocab_size: real columns.
    """
    rows = top_ids(logits, vocab_size, min(count, vocab_size))
    values = logits.gather(1, torch.tensor(rows, dtype=torch.int64, device=logits.device)).tolist()
    found = [Successors(tokens[-2] if len(tokens) > 1 else None, tokens[-1], tuple(rows[0]), _shares(values[0]))]
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        previous = tokens[-1] if parent == ROOT else draft.tokens[parent]
        found.append(Successors(previous, token, tuple(rows[node + 1]), _shares(values[node + 1])))
    return tuple(found)


def top_ids(logits: Float[Tensor, "row vocab"], vocab_size: int, count: int) -> list[list[int]]:
    """The columns of the `count` highest logits of each row, highest first, of equals the lowest column."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous():
        return _native_or_torch()(logits, vocab_size, count)
    return top_ids_by_torch(logits, vocab_size, count)


def top_ids_by_torch(logits: Float[Tensor, "row vocab"], vocab_size: int, count: int) -> list[list[int]]:
    """`top_ids` by a stable sort: the reference."""
    ids: list[list[int]] = logits[:, :vocab_size].sort(dim=-1, descending=True, stable=True).indices[:, :count].tolist()
    return ids


@cache
def _native_or_torch() -> Callable[[Tensor, int, int], list[list[int]]]:
    try:
        native = native_module()
    except ExecutorUnavailableError:
        return top_ids_by_torch

    def natively(logits: Tensor, vocab_size: int, count: int) -> list[list[int]]:
        ids: list[list[int]] = native.top_rows(logits.detach(), vocab_size, count)
        return ids

    return natively


def _shares(values: Sequence[float]) -> tuple[float, ...]:
    weights = [math.exp(value - values[0]) for value in values]
    whole = math.fsum(weights)
    return tuple(weight / whole for weight in weights)
