"""`traversal`: block verification carried over to trees of sampled children.

p = target, q = draft. Owns the rule; the laws come finished and the uniforms independent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pilotfish.terms import ROOT, Draft, Verdict
from pilotfish.verify.laws import Law, check_shapes, draft_law, excess, ratio, survival


@dataclass(frozen=True, slots=True)
class Stop:
    """A place where the walk may end.

    Attributes:
        node: the last accepted node, or `ROOT`.
        acceptance: the probability to end here, given that the walk has come here.
        law: of the next token if it does.
    """

    node: int
    acceptance: float
    law: Law


def stops(draft: Draft, target_probs: Float[Tensor, "row vocab"]) -> Iterator[Stop]:
    """The places where the walk may end, in order; the last is the root, with certainty.

    Each node comes once: when it is a leaf, or when all its children have been deleted. Lazy: what lies behind the
    place where the walk ends is not computed.
    """
    check_shapes(draft, target_probs)
    children: dict[int, list[int]] = {node: [] for node in range(ROOT, len(draft))}
    for node, parent in enumerate(draft.parents):
        children[parent].append(node)

    def visit(node: int, weight: float) -> Iterator[Stop]:
        target_law = Law.of(target_probs[node + 1])
        for child in children[node]:
            # Siblings in draw order, each against the law it was drawn from, given that those before it are gone.
            law = draft_law(draft, child, target_law)
            yield from visit(child, min(1.0, weight * ratio(target_law, law, draft.tokens[child])))
            rest = excess(weight, target_law, law)
            weight = survival(rest, weight)
            target_law = rest or target_law
        yield Stop(node, weight, target_law)

    return visit(ROOT, 1.0)


def traversal(
    draft: Draft, target_probs: Float[Tensor, "row vocab"], accept: Float[Tensor, "node"], resample: float
) -> Verdict:
    """Tests the leftmost path as a whole, and deletes leaf after leaf until a path is accepted.

    Theorem (Weng et al., https://arxiv.org/abs/2505.12398): the emitted tokens have law p. On a chain the rule is
    block verification.

    A child x of u starts with P(x) = min(1, P(u) p(x) / q(x)). A leaf is accepted, with everything above it, with
    probability P; where it is not, it is deleted, and its parent goes on with p <- norm([P p - q]+), of mass S, and
    P <- S / (S + 1 - P). The root always holds.

    Children drawn with or without replacement need no switch, because each carries the law it was drawn from
    (`Draft.probs`): with replacement siblings have the same row; without, row i is q with the tokens of the earlier
    siblings removed, normalised. Deterministic children first and a sampled one last works the same way.

    Siblings are visited in draw order. Sorting them, or dropping one after seeing its token, breaks the theorem.

    Cost: O(vocabulary) per deleted node. 8 rows at vocabulary 152k take under 10 ms on one core, in one request or in
    eight, so there is no second form for batches.

    Args:
        draft: a tree or a chain. Without `probs` every token counts as drawn from its own point mass.
        target_probs: row 0 at the root, row i + 1 at node i.
        accept: uniforms in (0, 1), independent of the draft's draws and of each other.
        resample: a uniform in (0, 1), independent of all the others.
    """
    uniforms = accept.tolist()
    assert len(uniforms) == len(draft), "one uniform per node"
    stop = next(
        stop for stop in stops(draft, target_probs) if stop.node == ROOT or uniforms[stop.node] < stop.acceptance
    )
    path: list[int] = []
    node = stop.node
    while node != ROOT:
        path.append(node)
        node = draft.parents[node]
    return Verdict(tuple(reversed(path)), stop.law.draw(resample))
