"""The target's pass where a drafter has run a part of it: the layers that are done are not run again.

Owns how partial passes and whole ones share one round. Knows rows and layers; nothing of what they mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pilotfish.models.base import Executor, PassOutput, Segment
from pilotfish.terms import PartialPass


def run_pass(
    target: Executor, segments: Sequence[Segment], partials: Sequence[PartialPass | None], capture: Sequence[int]
) -> PassOutput:
    """The target's pass over `segments`, each from node 0, continuing what drafters have begun.

    Where the first rows of some segments have been through the first layers, the other rows are run through those,
    and then all rows through the rest. On an exact executor that gives the bits of a single pass.

    Args:
        target: its sequences hold the nodes that the partial passes ran.
        segments: the whole pass.
        partials: what has been run of each segment, `None` for nothing; all through equally many layers.
        capture: layer boundaries. Where one lies before that of the partial passes, everything is run anew, as their
            states there were not kept.
    """
    begun = [partial for partial in partials if partial is not None]
    boundary = max((partial.layers for partial in begun), default=0)
    assert all(partial.layers == boundary for partial in begun), "one exit layer in a round"
    if not begun or any(wanted < boundary for wanted in capture):
        return target.forward(segments, capture=capture)
    done = [
        0 if partial is None else min(partial.hidden.shape[0], len(segment.tokens))
        for segment, partial in zip(segments, partials, strict=True)
    ]
    rest = [
        _rows_from(segment, first) for segment, first in zip(segments, done, strict=True) if first < len(segment.tokens)
    ]
    fresh = target.forward(rest, layers=(0, boundary), capture=(boundary,)).hidden[boundary] if rest else None
    hidden: list[Tensor] = []
    start = 0
    for segment, partial, first in zip(segments, partials, done, strict=True):
        if partial is not None:
            hidden.append(partial.hidden[:first])
        if fresh is not None:
            stop = start + len(segment.tokens) - first
            hidden.append(fresh[start:stop])
            start = stop
    return target.forward(
        segments, layers=(boundary, target.config.num_layers), hidden_in=torch.cat(hidden), capture=capture
    )


def _rows_from(segment: Segment, first: int) -> Segment:
    """The segment without its first rows, and without logits."""
    return Segment(
        segment.sequence,
        segment.tokens[first:],
        None if segment.parents is None else segment.parents[first:],
        first_node=first,
        logits_from=len(segment.tokens) - first,
    )
