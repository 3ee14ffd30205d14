"""Options that make tokens impossible: allowed and banned ids, bad words, repeated n-grams, early ends, grammars.

They come after everything that changes logits, so that nothing brings a masked token back.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.sampling.grammar import GrammarConstraint
from pilotfish.sampling.history import Followers
from pilotfish.sampling.prefix import Prefix
from pilotfish.sampling.step import Step


class AllowedTokens(Step):
    """Masks all tokens but these."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        masked = torch.full_like(logits, -torch.inf)
        masked[:, self._ids] = logits[:, self._ids]
        return masked


class BannedTokens(Step):
    """Masks these tokens, in the first `until` tokens of the output or always."""

    def __init__(self, ids: Iterable[int], until: int | None = None) -> None:
        self._ids = np.array(sorted(set(ids)), dtype=np.int64)
        self._until = until

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row, prefix in zip(logits.numpy(), prefixes, strict=True):
            if self._until is None or prefix.output_length < self._until:
                row[self._ids] = -np.inf
        return logits


class BannedSequences(Step):
    """Masks the last token of each sequence where the output ends with the others."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._sequences = [(tuple(sequence[:-1]), sequence[-1]) for sequence in sequences]

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row, prefix in zip(logits.numpy(), prefixes, strict=True):
            for start, last in self._sequences:
                if prefix.last_output(len(start)) == start:
                    row[last] = -np.inf
        return logits


class NoRepeatNgram(Step):
    """Masks each token that would complete an n-gram which prompt and output already have."""

    def __init__(self, size: int) -> None:
        self._context = size - 1
        self._followers = Followers(size - 1)

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row, prefix in zip(logits.numpy(), prefixes, strict=True):
            self._followers.follow(prefix)
            row[list(self._banned(prefix))] = -np.inf
        return logits

    def _banned(self, prefix: Prefix) -> set[int]:
        context = self._context
        key = prefix.last(context)
        if len(key) < context:
            return set()
        # n-grams that end on the path: the tokens there, each with the context before it.
        recent = prefix.last(len(prefix.path) + context)
        on_path = {
            recent[place]
            for place in range(max(context, len(recent) - len(prefix.path)), len(recent))
            if recent[place - context : place] == key
        }
        return self._followers.after(key) | on_path


class GrammarMask(Step):
    """Masks what the grammar does not allow after the row's own output."""

    def __init__(self, constraint: GrammarConstraint) -> None:
        self._constraint = constraint

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row, prefix in zip(logits.numpy(), prefixes, strict=True):
            allowed = self._constraint.allowed(prefix)
            if allowed is not None:
                np.copyto(row, -np.inf, where=~allowed[: row.size])
        return logits


class DeadEnd(Step):
    """Where masks have left no token possible, the request's first end token is, so that the request ends there."""

    def __init__(self, end_id: int) -> None:
        self._end_id = end_id

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        for row in logits.numpy():
            if row.max() == -np.inf:
                row[self._end_id] = 0.0
        return logits
