"""From logits to a law, in one documented order, for target and drafter alike.

Owns the order and the arithmetic of each step. Knows no noise, no model and no draft. A step is a pure function of
the row's own logits and prefix, and computes a row with the same bits whatever else is in the call: speculation turns
one decode row into many, and must not be seen.

The order (ties everywhere: the lowest id stays or wins):

| | step | what stays possible |
|---|---|---|
| 1 | temperature | all: `(logits - max) / temperature`; at 0 the most probable token alone, and 2 and 3 do nothing |
| 2 | top_k | the k most probable tokens, exactly k of them |
| 3 | top_p | the smallest set of most probable tokens whose mass after 1 and 2 reaches top_p, crossing token included |

Scores are log probabilities up to a constant per row, minus infinity where a token cannot be chosen.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.prefix import Prefix

_DEPTHS = (6.0, 12.0, 24.0, float("inf"))
"""How far below the best score top_p looks for its tokens, in nats, one after the other."""


class Step(ABC):
    """One option of the pipeline."""

    @abstractmethod
    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """New float32 logits; the ones given stay as they are. Row i may depend on row i and `prefixes[i]` only."""


@dataclass(frozen=True, slots=True)
class Greedy(Step):
    """Temperature 0: 0 for the highest logit (ties: the lowest id), minus infinity for the rest."""

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        scores = torch.full_like(logits, -torch.inf)
        return scores.scatter_(-1, logits.argmax(-1, keepdim=True), 0.0)


@dataclass(frozen=True, slots=True)
class Temperature(Step):
    """Divides the logits by a temperature above 0."""

    temperature: float

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        # The maximum goes first, so that a tiny temperature sends the others to minus infinity and leaves the best at
        # 0 instead of making inf - inf; one too small for float32 does the same without becoming 0 / 0.
        divisor = max(self.temperature, torch.finfo(torch.float32).tiny)
        return (logits - logits.amax(-1, keepdim=True)).div_(divisor)


@dataclass(frozen=True, slots=True)
class TopK(Step):
    """Keeps the `k` highest logits of each row."""

    k: int

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        if self.k >= logits.shape[-1]:
            return logits
        lowest_kept = logits.topk(self.k, dim=-1).values[:, -1:]
        kept = logits.masked_fill(logits < lowest_kept, -torch.inf)
        # `topk` breaks ties as it likes; where more than k share the last place, those with the highest ids go.
        for row, count in enumerate((logits >= lowest_kept).sum(-1).tolist()):
            if count > self.k:
                tied = (logits[row] == lowest_kept[row]).nonzero()[:, 0]
                kept[row, tied[self.k - count :]] = -torch.inf
        return kept


@dataclass(frozen=True, slots=True)
class TopP(Step):
    """Keeps the smallest set of highest probability whose mass reaches `mass`.

    The mass is that of the float32 softmax, added up from the highest in float64. Where rounding leaves the whole
    law short of `mass`, everything stays.
    """

    mass: float

    def apply(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        probs = logits.softmax(-1)
        kept = torch.full_like(logits, -torch.inf)
        for row in range(logits.shape[0]):
            tokens = self._nucleus(logits[row], probs[row])
            kept[row, tokens] = logits[row, tokens]
        return kept

    def _nucleus(self, scores: Float[Tensor, "vocab"], probs: Float[Tensor, "vocab"]) -> Int64[Tensor, "token"]:
        # Sorting the vocabulary would be the dearest thing in the pipeline. Most laws reach the mass within a few
        # nats of the best token; looking deeper only adds tokens behind those already sorted.
        highest = scores.amax()
        for depth in _DEPTHS:
            candidates = (scores >= highest - depth).nonzero()[:, 0]
            tokens = candidates[scores[candidates].sort(descending=True, stable=True).indices]
            reached = probs[tokens].cumsum(0, dtype=torch.float64) >= self.mass
            if reached[-1]:
                return tokens[: int(reached.int().argmax()) + 1]
        return tokens


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The steps of one request, in order."""

    steps: tuple[Step, ...]

    def scores(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """float32 log law of every row, up to a constant; minus infinity outside its support."""
        assert len(prefixes) == logits.shape[0], "one prefix per row"
        scores = logits.float()
        for step in self.steps:
            scores = step.apply(scores, prefixes)
        return scores

    def laws(self, logits: Float[Tensor, "row vocab"], prefixes: Sequence[Prefix]) -> Float[Tensor, "row vocab"]:
        """float32 probabilities of every row: the softmax of its scores, exactly 0 outside its support."""
        return self.scores(logits, prefixes).softmax(-1)


def build_pipeline(params: SamplingParams) -> Pipeline:
    """The steps that `params` asks for; an option that is off has none."""
    if params.greedy:
        return Pipeline((Greedy(),))
    steps: list[Step] = []
    if params.temperature != 1:
        steps.append(Temperature(params.temperature))
    if params.top_k > 0:
        steps.append(TopK(params.top_k))
    if params.top_p < 1:
        steps.append(TopP(params.top_p))
    return Pipeline(tuple(steps))
