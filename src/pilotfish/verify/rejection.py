"""`rejection`: the token rule of speculative sampling, for chains.

p = target, q = draft. Owns the rule; the laws come finished and the uniforms independent.
"""

from jaxtyping import Float
from torch import Tensor

from pilotfish.terms import Draft, Verdict
from pilotfish.verify.laws import Law, check_shapes, draft_law, excess, ratio, require_chain


def acceptance(draft: Draft, target_probs: Float[Tensor, "row vocab"]) -> tuple[float, ...]:
    """min(1, p(x) / q(x)) of each drafted token, given that those before it were accepted."""
    check_shapes(draft, target_probs)
    probabilities = []
    for node, token in enumerate(draft.tokens):
        target_law = Law.of(target_probs[node])
        probabilities.append(min(1.0, ratio(target_law, draft_law(draft, node, target_law), token)))
    return tuple(probabilities)


def next_law(draft: Draft, target_probs: Float[Tensor, "row vocab"], accepted: int) -> Law:
    """The law of the next token after `accepted` drafted ones: the residual norm([p - q]+), or p after all of them.

    Where the laws agree nothing is left and p itself serves; a rejection there has probability 0 but for rounding.
    """
    target_law = Law.of(target_probs[accepted])
    if accepted == len(draft):
        return target_law
    return excess(1.0, target_law, draft_law(draft, accepted, target_law)) or target_law


def rejection(
    draft: Draft, target_probs: Float[Tensor, "row vocab"], accept: Float[Tensor, "node"], resample: float
) -> Verdict:
    """Accepts drafted tokens one after another with probability min(1, p/q); the first failure draws the residual.

    Theorem (Leviathan et al., https://arxiv.org/abs/2211.17192; Chen et al., https://arxiv.org/abs/2302.01318): the
    emitted tokens have law p, whatever q. A position whose prefix was accepted is accepted with probability
    sum_x min(p, q) = 1 - TV(p, q).

    The test is u < p/q, strictly, and u is never 0: a token with p = 0 is never accepted.

    Cost: O(vocabulary) sums per row and one residual. 8 rows at vocabulary 152k stay well under 10 ms on one core, as
    one request or as eight, so there is no second form for batches.

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
    for uniform, probability in zip(accept.tolist(), acceptance(draft, target_probs), strict=True):
        if not uniform < probability:
            break
        accepted += 1
    return Verdict(tuple(range(accepted)), next_law(draft, target_probs, accepted).draw(resample))
