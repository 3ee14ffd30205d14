"""Arithmetic that the ratio rules share: rows as laws in float64, excess mass, inversion.

Knows no rule. p = target, q = draft. A row is used as the law it is drawn from: divided by its float64 sum. float32
probabilities add up to 1 only within rounding, and a rule that took them as they are would be exact only so far.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import Draft


@dataclass(frozen=True, slots=True)
class Law:
    """A probability law as weights and their sum; the division is left to whoever needs it.

    Attributes:
        weights: not negative, float32 or float64.
        total: their float64 sum, above 0.
    """

    weights: Float[Tensor, "vocab"]
    total: float

    @classmethod
    def of(cls, row: Float[Tensor, "vocab"]) -> "Law":
        """The law a row of probabilities stands for."""
        return cls(row, float(row.sum(dtype=torch.float64)))

    def prob(self, token: int) -> float:
        return float(self.weights[token]) / self.total

    def scaled(self, weight: float) -> Float64[Tensor, "vocab"]:
        """A new tensor of all probabilities times `weight`."""
        return self.weights.to(torch.float64, copy=True).mul_(weight / self.total)

    def draw(self, uniform: float) -> int:
        """The token at a uniform in (0, 1) of the cumulative law; never one of probability 0."""
        cumulative = self.weights.cumsum(0, dtype=torch.float64)
        # The first token whose cumulative mass exceeds the threshold has mass of its own. Rounding may lift the
        # threshold to the whole mass; then it is the last token with mass, where the cumulative one stops growing.
        whole = cumulative[-1]
        threshold = torch.minimum(whole * uniform, torch.nextafter(whole, torch.zeros_like(whole)))
        return int(torch.searchsorted(cumulative, threshold, right=True))


def require_chain(draft: Draft, rule: str) -> None:
    """Refuses a tree for a rule that is made for chains.

    Raises:
        SpeculativeConfigError: the draft branches.
    """
    if not draft.is_chain:
        raise SpeculativeConfigError(
            f"verification {rule!r} takes chains only, and the drafter proposed a tree; "
            "use 'match' or 'traversal', or a drafter that proposes chains"
        )


def check_shapes(draft: Draft, target_probs: Float[Tensor, "row vocab"]) -> None:
    """Our own invariant: a row at the root and one per node, over one vocabulary."""
    assert target_probs.shape[0] == len(draft) + 1, "one target law at the root and one per node"
    assert draft.probs is None or draft.probs.shape[1] == target_probs.shape[1], "both laws over one vocabulary"


def draft_law(draft: Draft, node: int, target_law: Law) -> Law:
    """The law (q) that a node's token was drawn from; a point mass where the draft has no laws."""
    if draft.probs is not None:
        return Law.of(draft.probs[node].to(target_law.weights.device))
    weights = torch.zeros_like(target_law.weights)
    weights[draft.tokens[node]] = 1.0
    return Law(weights, 1.0)


def ratio(target_law: Law, law: Law, token: int) -> float:
    """p(x) / q(x) of a drafted token, 0 where p = 0. Infinite where q = 0: such a token cannot have been drawn."""
    target_prob, draft_prob = target_law.prob(token), law.prob(token)
    if target_prob == 0:
        return 0.0
    return target_prob / draft_prob if draft_prob > 0 else float("inf")


def excess(weight: float, target_law: Law, law: Law) -> Law | None:
    """norm([weight p - q]+), its mass before the division as `total`; `None` where nothing is left."""
    rest = target_law.scaled(weight).sub_(law.scaled(1.0)).clamp_(min=0.0)
    mass = float(rest.sum())
    return Law(rest, mass) if mass > 0 else None


def survival(rest: Law | None, weight: float) -> float:
    """D / (D + 1 - P) with D the mass of the excess; 1 where the denominator is 0 (P = 1 and the laws agree)."""
    mass = rest.total if rest is not None else 0.0
    denominator = mass + (1.0 - weight)
    return mass / denominator if denominator > 0 else 1.0
