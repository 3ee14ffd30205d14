"""Prompt lookup against a search written the slow way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.drafters.base import DraftJob
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.errors import SpeculativeConfigError
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler

SAMPLER = Sampler(SamplingParams(seed=0), 8)


def draft(drafter, tokens, draft_len, request=0):
    (proposed,) = drafter.propose([DraftJob(request, tokens, 1, draft_len, SAMPLER, True)])
    assert proposed.is_chain
    assert proposed.probs is None
    return list(proposed.tokens)


def searched(tokens, draft_len, shortest, longest):
    """Longest suffix first, latest occurrence first, copying from what was copied."""
    for n in range(longest, shortest - 1, -1):
        for place in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[place - n : place] == tokens[-n:]:
                text = list(tokens)
                for _ in range(draft_len):
                    text.append(text[place])
                    place += 1
                return text[len(tokens) :]
    return []


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 40), max_size=4),
    shortest=st.integers(1, 3),
    more=st.integers(0, 2),
    draft_len=st.integers(1, 6),
)
def test_draft_equals_a_search_however_the_text_grew(text, cuts, shortest, more, draft_len):
    drafter = NgramDrafter(shortest, shortest + more)
    drafter.begin(0, 100)
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        tokens = text[:cut]
        assert draft(drafter, tokens, draft_len) == searched(tokens, draft_len, shortest, shortest + more)


def test_periodic_text_is_followed_at_full_length():
    drafter = NgramDrafter(2, 4)
    drafter.begin(0, 100)
    assert draft(drafter, [5, 1, 2, 5, 1, 2], 7) == [5, 1, 2, 5, 1, 2, 5]


def test_requests_do_not_see_each_other():
    drafter = NgramDrafter(2, 4)
    drafter.begin(0, 100)
    drafter.begin(1, 100)
    assert draft(drafter, [1, 2, 3, 1, 2], 2, request=0) == [3, 1]
    assert draft(drafter, [1, 2], 2, request=1) == []
    drafter.end(0)
    assert draft(drafter, [1, 2, 4, 1, 2], 1, request=1) == [4]


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (3, 2), (-1, -1)])
def test_lengths_out_of_order_are_refused(shortest, longest):
    with pytest.raises(SpeculativeConfigError, match="prompt_lookup_min"):
        NgramDrafter(shortest, longest)
