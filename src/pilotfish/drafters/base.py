"""The drafter's contract.

A drafter proposes tokens and is told what became of them. Whatever state it keeps is a function of the committed
tokens alone: it takes back by itself what it ran ahead. It never sees the target's logits of the current round.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pilotfish.models.base import PagedExecutor
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import Draft


@dataclass(frozen=True, slots=True)
class DraftJob:
    """One request's order for a draft.

    Attributes:
        request: the key the drafter knows the request by.
        tokens: all committed tokens, prompt and output; the last is pending (not yet in the target's cache).
        prompt_length: how many of them are prompt.
        draft_len: the most tokens to draft per path, at least 1.
        sampler: turns a drafter's logits into laws and choices, with the request's options and seed.
        coupled: draw with the target's noise, as the `match` rule likes it; otherwise from the drafter's own law with
            the draft stream, and report the law, as ratio rules need it.
        sequence: the request's number in the target's cache, for a drafter that runs the target's own layers.
        max_nodes: the most nodes of a tree; `draft_len` times the drafter's `nodes_per_depth` by default.
        other_rows: rows of the coming pass besides one for each job: text that is being read, and the pending tokens of
            requests that no draft is wanted for. What a grammar forces comes on top.
    """

    request: int
    tokens: Sequence[int]
    prompt_length: int
    draft_len: int
    sampler: Sampler
    coupled: bool
    sequence: int | None = None
    max_nodes: int | None = None
    other_rows: int = 0

    def node_budget(self, nodes_per_depth: int) -> int:
        """The most nodes of this draft, branches included."""
        whole = self.draft_len * nodes_per_depth
        return whole if self.max_nodes is None else min(whole, self.max_nodes)


@dataclass(frozen=True, slots=True)
class Successors:
    """What the target thought likely after one row that it verified, accepted or not.

    Attributes:
        previous: the token before the row's own on its path, `None` at the start of the text.
        token: the row's token.
        ids: the target's most likely next tokens by its logits, best first.
        shares: their softmax, over these ids alone.
    """

    previous: int | None
    token: int
    ids: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a round committed for one request.

    Attributes:
        request: the key.
        tokens: all committed tokens after the round; the request's own list, not a copy. What became of a draft shows
            here: what was verified may have been another drafter's, or a part of one's own.
        hidden: the target's hidden states at the rows that are now in its cache and were run in this round, by layer
            boundary, for the boundaries the drafter asked for.
        cached: how many tokens the target's cache holds now, these rows being the last of them; all but the pending
            one by default. Fewer while the prompt is still being read.
        successors: the target's favourites at the rows it verified in this round, for a drafter that asked.
    """

    request: int
    tokens: Sequence[int]
    hidden: dict[int, Float[Tensor, "node hidden"]]
    cached: int | None = None
    successors: tuple[Successors, ...] = ()

    @property
    def cached_length(self) -> int:
        """`cached`, resolved."""
        return len(self.tokens) - 1 if self.cached is None else self.cached


class Drafter(ABC):
    """Whatever proposes tokens. Serves many requests at a time."""

    hidden_boundaries: tuple[int, ...] = ()
    """Layer boundaries of the target whose hidden states `observe` wants; see `PassOutput.hidden`."""

    top_successors: int = 0
    """How many of the target's favourites after each verified row `observe` wants. They are of rounds that are over, so
    a later draft is a function of the past and any rule stays exact."""

    sequential: bool = True
    """Whether its time grows with the length of a draft, by a step of a model for each token. What only looks things up
    takes about the same for any length, and is asked for its longest draft or for none."""

    observes_end: bool = False
    """Whether `observe` is called for the round a request ends with, too: for what records rather than drafts."""

    executors: tuple[PagedExecutor, ...] = ()
    """Executors of its own, whose caches hold the requests' texts beside the target's: memory is planned for both."""

    bytes_per_token: int = 0
    """What it keeps in memory besides for each token of a request's text, where that is much."""

    nodes_per_depth: int = 1
    """A draft has at most this many nodes times `draft_len`: 1 for chains, more for trees."""

    @abstractmethod
    def begin(self, request: int, capacity: int) -> None:
        """A request starts; it will never have more than `capacity` tokens."""

    @abstractmethod
    def propose(self, jobs: Sequence[DraftJob]) -> list[Draft]:
        """One draft per job, empty where it has nothing to offer. Padding is not a draft."""

    @abstractmethod
    def observe(self, observation: Observation) -> None:
        """A round was committed, or a part of the prompt was read.

        Not called for requests that ended with it, unless `observes_end`.
        """

    @abstractmethod
    def end(self, request: int) -> None:
        """The request is over; its state is dropped."""


def highest_prob(logits: Float[Tensor, " vocab"]) -> float:
    """The highest probability of a model drafter's law, before any option: its confidence in what it draws.

    It does not look at the token that was drawn, so it may steer the length of a draft under any rule.
    """
    if logits.device.type != "cpu":
        return float((logits.amax() - logits.logsumexp(0)).exp())
    # In NumPy: on a busy machine PyTorch's threads wait for one another longer than a pass takes.
    values = logits.detach().numpy()
    return 1.0 / float(np.exp(values - values.max()).sum())
