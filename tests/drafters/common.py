"""What tests of several drafters share."""

from pilotfish.drafters.base import DraftJob


def propose(drafter, tokens, draft_len, sampler, *, request=0, prompt_length=1, coupled=True, sequence=None):
    """One request's draft."""
    (draft,) = drafter.propose(
        [DraftJob(request, tokens, prompt_length, draft_len, sampler, coupled, sequence=sequence)]
    )
    return draft
