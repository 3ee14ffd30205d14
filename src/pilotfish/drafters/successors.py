"""The target's favourites after each row of a verify pass, as drafters that recycle them are told.

Owns the way from a draft and the highest logits of its rows to `Successors`. Called by the engine once a round's
verdict is known; knows no drafter.
"""

from collections.abc import Sequence

from pilotfish.drafters.base import Successors
from pilotfish.sampling.highest import HighestTokens
from pilotfish.terms import ROOT, Draft


def successors(tokens: Sequence[int], draft: Draft, highest: HighestTokens) -> tuple[Successors, ...]:
    """What the target thought likely at the pending token and at each node of a draft.

    Args:
        tokens: the committed tokens before the round; the last is the pending one.
        draft: what was verified.
        highest: row 0 at the pending token, row i + 1 at node i.
    """
    pending = tokens[-1]
    rows = zip(highest.ids, highest.shares, strict=True)
    ids, shares = next(rows)
    found = [Successors(tokens[-2] if len(tokens) > 1 else None, pending, tuple(ids), tuple(shares))]
    for token, parent, (ids, shares) in zip(draft.tokens, draft.parents, rows, strict=True):
        found.append(Successors(pending if parent == ROOT else draft.tokens[parent], token, tuple(ids), tuple(shares)))
    return tuple(found)
