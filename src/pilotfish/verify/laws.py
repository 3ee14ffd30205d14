"""Arithmetic that the ratio rules share: rows as laws in float64, excess mass, inversion.

Knows no rule. p = target, q = draft. A row is used as the law it is drawn from: divided by its float64 sum. float32
probabilities add up to 1 only within rounding, and a rule that took them as they are would be exact only so far.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pilotfish.errors import SpeculativeConfigError
from pilotfish.terms import Draft


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


def normalised(row: Float[Tensor, "vocab"]) -> Float64[Tensor, "vocab"]:
    """The law a row stands for, in float64."""
    law = row.double()
    return law / law.sum()


def draft_law(draft: Draft, node: int, like: Float[Tensor, "vocab"]) -> Float64[Tensor, "vocab"]:
    """The law (q) that a node's token was drawn from; a point mass where the draft has no laws."""
    if draft.probs is not None:
        return normalised(draft.probs[node].to(like.device))
    law = torch.zeros_like(like, dtype=torch.float64)
    law[draft.tokens[node]] = 1.0
    return law


def ratio(target_prob: float, draft_prob: float) -> float:
    """p / q of a drafted token, 0 where p = 0. Infinite where q = 0: such a token cannot have been drawn."""
    if target_prob == 0:
        return 0.0
    return target_prob / draft_prob if draft_prob > 0 else float("inf")


def excess(
    weight: float, target_law: Float64[Tensor, "vocab"], law: Float64[Tensor, "vocab"]
) -> Float64[Tensor, "vocab"]:
    """`[weight p - q]+`, not normalised."""
    return torch.sub(target_law * weight, law).clamp_(min=0.0)


def survival(mass: float, weight: float) -> float:
    """`D / (D + 1 - P)`, and 1 where the denominator is 0 (then P = 1 and the laws agree)."""
    denominator = mass + (1.0 - weight)
    return mass / denominator if denominator > 0 else 1.0


def residual_law(
    weight: float, target_law: Float64[Tensor, "vocab"], law: Float64[Tensor, "vocab"]
) -> Float64[Tensor, "vocab"]:
    """`norm([weight p - q]+)`; p itself where nothing is left, a case that has probability 0 but for rounding."""
    rest = excess(weight, target_law, law)
    mass = rest.sum()
    return rest / mass if mass > 0 else target_law


def invert(law: Float64[Tensor, "vocab"], uniform: float) -> int:
    """The token at a uniform in (0, 1) of the cumulative law; never one of probability 0."""
    cumulative = law.cumsum(0)
    # The first token whose cumulative mass exceeds the threshold has mass of its own. Rounding may lift the threshold
    # to the whole mass; then it is the last token with mass, where the cumulative one stops growing.
    total = cumulative[-1]
    threshold = torch.minimum(total * uniform, torch.nextafter(total, torch.zeros_like(total)))
    return int(torch.searchsorted(cumulative, threshold, right=True))
