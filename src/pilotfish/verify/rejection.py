"""`rejection`: the token rule of speculative sampling, for chains.

p = target, q = draft. Owns the rule; the laws come finished and the uniforms independent.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pilotfish.terms import Draft, Verdict
from pilotfish.verify.laws import check_shapes, draft_law, invert, normalised, ratio, require_chain, residual_law


def acceptance(draft: Draft, target_probs: Float[Tensor, "row vocab"]) -> Float64[Tensor, "node"]:
    """min(1, p(x) / q(x)) of each drafted token, given that those before it were accepted."""
    check_shapes(draft, target_probs)
    if not draft.tokens:
        return torch.empty(0, dtype=torch.float64)
    tokens = torch.tensor(draft.tokens, device=target_probs.device)[:, None]
    rows = target_probs[:-1]
    target = rows.gather(-1, tokens)[:, 0].double() / rows.sum(-1, dtype=torch.float64)
    drafted = torch.ones_like(target)
    if draft.probs is not None:
        laws = draft.probs.to(target.device)
        drafted = laws.gather(-1, tokens)[:, 0].double() / laws.sum(-1, dtype=torch.float64)
    ratios = [min(1.0, ratio(p, q)) for p, q in zip(target.tolist(), drafted.tolist(), strict=True)]
    return torch.tensor(ratios, dtype=torch.float64)


def next_law(draft: Draft, target_probs: Float[Tensor, "row vocab"], accepted: int) -> Float64[Tensor, "vocab"]:
    """The law of the next token after `accepted` drafted ones: the residual norm([p - q]+), or p after all of them."""
    target_law = normalised(target_probs[accepted])
    if accepted == len(draft):
        return target_law
    return residual_law(1.0, target_law, draft_law(draft, accepted, target_law))


def rejection(
    draft: Draft, target_probs: Float[Tensor, "row vocab"], accept: Float[Tensor, "node"], resample: float
) -> Verdict:
    """Accepts drafted tokens one after another with probability min(1, p/q); the first failure draws the residual.

    Theorem (Leviathan et al., https://arxiv.org/abs/2211.17192; Chen et al., https://arxiv.org/abs/2302.01318): the
    emitted tokens have law p, whatever q. A position whose prefix was accepted is accepted with probability
    sum_x min(p, q) = 1 - TV(p, q).

    The test is u < p/q, strictly: u is never 0, and a token with p = 0 is never accepted.

    Cost: a sum per row and one residual. 8 rows at vocabulary 152k take about 1 ms on one core, in one request or in
    eight, so there is no second form for batches.

    Args:
        draft: a chain. Without `probs` every token counts as drawn from its own point mass.
        target_probs: row 0 at the root, row i + 1 at node i.
        accept: uniforms in (0, 1), independent of the draft's draws and of each other.
        resample: a uniform in (0, 1), independent of all the others.

    Raises:
        SpeculativeConfigError: the draft is a tree.
    """
    require_chain(draft, "rejection")
    accepted = 0
    for uniform, probability in zip(accept.tolist(), acceptance(draft, target_probs).tolist(), strict=True):
        if not uniform < probability:
            break
        accepted += 1
    return Verdict(tuple(range(accepted)), invert(next_law(draft, target_probs, accepted), resample))
