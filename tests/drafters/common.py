"""What tests of several drafters share."""

from pilotfish.drafters.base import DraftJob


def propose(drafter, tokens, draft_len, sampler, *, request=0, prompt_length=1, coupled=True, sequence=None):
    """One request's draft."""
    (draft,) = drafter.propose(
        [DraftJob(request, tokens, prompt_length, draft_len, sampler, coupled, sequence=sequence)]
    )
    return draft


def foretold(table, tokens):
    """What a table has after the longest end of `tokens` that it knows."""
    for length, order in table.orders.items():
        entry = order.find(tokens[-length:]) if len(tokens) >= length else None
        if entry is not None:
            return order.successors_of(entry)
    return None
