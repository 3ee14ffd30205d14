"""`match`: walk the draft along the target's own choices. The default rule.

Owns nothing but the walk: the choices come finished, one per node, each made under that node's own prefix.
"""

from collections.abc import Sequence

from pilotfish.terms import ROOT, Draft, Verdict


def match(draft: Draft, choices: Sequence[int]) -> Verdict:
    """Keeps the drafted tokens that are the target's own choices, then emits the choice where the draft ends or errs.

    Theorem: the emitted tokens are the target's choices along its own path, whatever the draft was, as long as it was
    built without looking at noise that the choices do not share with plain decoding. Any drafter, tree, pruning and
    schedule is lossless, and with noise keyed by (seed, position, token) the output is the one of plain decoding with
    the same seed, bit for bit (drafter-invariant Gumbel coupling, Daliri et al., https://arxiv.org/abs/2408.07978).
    For a deterministic draft no rule accepts more.

    Args:
        draft: a chain or a tree; `probs` are not looked at.
        choices: `[row]` the target's choice at the root, then at each node.

    Returns:
        The accepted path and the target's choice after it. Of equal siblings the first is taken.
    """
    assert len(choices) == len(draft) + 1, "one choice at the root and one per node"
    path: list[int] = []
    current = ROOT
    # Parents precede children, so one pass sees every child after its parent has been accepted.
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent == current and token == choices[current + 1]:
            path.append(node)
            current = node
    return Verdict(tuple(path), choices[current + 1])
