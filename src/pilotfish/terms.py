"""Frozen nouns shared by the rooms: `Draft`, `PartialPass`, `Verdict`, `FinishReason`.

Owns their meaning and their validation, and no other logic. Knows no model, no sampling, no rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

ROOT = -1
"""The parent of a draft's first tokens: the pending token, the last committed one."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end-of-sequence id, a stop token or a stop string."""
    LENGTH = "length"
    """The token budget or the context is used up."""
    CANCELLED = "cancelled"
    """The caller took the request back."""
    DEADLINE = "deadline"
    """The time the caller gave it is over."""


@dataclass(frozen=True, slots=True)
class PartialPass:
    """Rows of the coming pass that a drafter has already run through the target's first layers.

    Attributes:
        layers: how many layers, counted from the first.
        hidden: `[row, hidden]` the target's states after them, of the first rows of the request's segment: its unread
            committed tokens, then the draft's nodes in order. The last nodes may be missing.
    """

    layers: int
    hidden: "Tensor"


@cache
def _chain_parents(nodes: int) -> tuple[int, ...]:
    return tuple(range(-1, nodes - 1))


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed in one round: a chain, or a tree through `parents`.

    Attributes:
        tokens: the token at each node.
        parents: for each node the index of an earlier node, or `ROOT`. Siblings stand in draw order.
        probs: `[node, vocab]`, row i exactly the law (q) that node i's token was drawn from; `None` means that every
            token was certain given its path (a point mass: n-gram, suffix, argmax or noise-coupled drafts).
        confidence: for each node, from 0 to 1, how likely the drafter holds it to be accepted once its parent is; used
            to decide how much of a draft is worth verifying, never whether a token is right. `None` claims nothing.
        partial: what of the pass the drafter has run already, where it drafts with the target's own layers.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: "Tensor | None" = None
    confidence: tuple[float, ...] | None = None
    partial: PartialPass | None = None

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents), "one parent per node"
        assert self.is_chain or all(ROOT <= parent < node for node, parent in enumerate(self.parents)), (
            "parents precede children"
        )
        assert self.probs is None or self.probs.shape[0] == len(self.tokens), "one law per node"
        assert self.confidence is None or len(self.confidence) == len(self.tokens), "one confidence per node"

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        probs: "Tensor | None" = None,
        confidence: Sequence[float] | None = None,
        partial: PartialPass | None = None,
    ) -> "Draft":
        """A draft in which each token follows the one before."""
        claimed = None if confidence is None else tuple(confidence)
        return cls(tuple(tokens), _chain_parents(len(tokens)), probs, claimed, partial)

    @property
    def is_chain(self) -> bool:
        return self.parents == _chain_parents(len(self.parents))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule made of a draft: the accepted path and the target's own next token.

    Attributes:
        path: accepted nodes from the root downwards.
        next_token: the target's own token after the path (the residual or the bonus token).
    """

    path: tuple[int, ...]
    next_token: int

    def tokens(self, draft: Draft) -> tuple[int, ...]:
        """Accepted tokens followed by the target's own."""
        return (*(draft.tokens[node] for node in self.path), self.next_token)


EMPTY_DRAFT = Draft()
