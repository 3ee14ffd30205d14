"""Losses between a drafter's law and the target's, per row, and the acceptance probability they are about.

Owns the formulas, as pure functions. The target's law p may lack the mass outside the draft vocabulary: then its row
sums to less than 1, and acceptance counts what is there. LK: https://arxiv.org/abs/2602.23881. Total variation is
1 - acceptance, and its gradient vanishes where the laws hardly meet, hence a warm-up with cross-entropy.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pilotfish.train.options import Loss

NEEDS_WHOLE_LAW: frozenset[Loss] = frozenset({"tv", "nla", "lk"})
"""Losses that need to know how much of the target's law lies outside the draft vocabulary."""
_TINY = 1e-8
_LK_DECAY = 3.0


def cross_entropy(
    draft_logits: Float[Tensor, "row draft_vocab"], target_probs: Float[Tensor, "row draft_vocab"]
) -> Float[Tensor, " row"]:
    """`- sum p log q`, p made to sum to 1 over the draft vocabulary."""
    mass = target_probs.sum(-1).clamp_min(_TINY)
    matched: Tensor = torch.linalg.vecdot(target_probs, draft_logits) / mass
    return draft_logits.logsumexp(-1) - matched


def acceptance(
    draft_probs: Float[Tensor, "row draft_vocab"], target_probs: Float[Tensor, "row draft_vocab"]
) -> Float[Tensor, " row"]:
    """`sum min(p, q)`: the probability that a token drawn from q is accepted."""
    return torch.minimum(draft_probs, target_probs).sum(-1)


def loss_rows(
    kind: Loss, draft_logits: Float[Tensor, "row draft_vocab"], target_probs: Float[Tensor, "row draft_vocab"]
) -> Float[Tensor, " row"]:
    """The loss of each row.

    Args:
        kind: see `TrainOptions.loss`.
        target_probs: over the draft vocabulary.
    """
    if kind == "ce":
        return cross_entropy(draft_logits, target_probs)
    accepted = acceptance(draft_logits.softmax(-1), target_probs)
    if kind == "tv":
        return 1.0 - accepted
    if kind == "nla":
        return -accepted.clamp_min(_TINY).log()
    # The divergence differs from the cross-entropy by the target's entropy, which has no gradient.
    share = torch.exp(-_LK_DECAY * accepted.detach())
    entropy: Tensor = torch.special.entr(target_probs / target_probs.sum(-1, keepdim=True).clamp_min(_TINY)).sum(-1)
    divergence = cross_entropy(draft_logits, target_probs) - entropy
    return share * divergence + (1.0 - share) * (1.0 - accepted)
