"""Suffix drafting: the index against counting by hand, native against Python, and the drafter's promises."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.drafters.base import DraftJob
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.drafters.suffix_index import SEPARATOR, PythonSuffixIndex, suffix_index
from pilotfish.drafters.suffix_pool import SuffixPool
from pilotfish.errors import SpeculativeConfigError
from pilotfish.models.native_executor import native_module
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT
from tests.drafters.common import propose

SAMPLER = Sampler(SamplingParams(seed=0), 8)
INDEXES = {"python": PythonSuffixIndex, "native": lambda depth: native_module().SuffixIndex(depth)}


def occurrences(text, string):
    return [end for end in range(len(string), len(text) + 1) if text[end - len(string) : end] == list(string)]


def children(text, string):
    """Following tokens as (count, latest place, token), the favourite first."""
    followers = Counter(text[end] for end in occurrences(text, string) if end < len(text) and text[end] != SEPARATOR)
    latest = {text[end]: end for end in occurrences(text, string) if end < len(text)}
    return sorted(((count, latest[token], token) for token, count in followers.items()), reverse=True)


def counted_chain(text, context, draft_len, nodes, factor, min_prob):
    """SuffixDecoding's rule as its paper states it, every count taken by looking through the text."""
    best = ([], [], [], 0.0)
    for length in range(len(context), 0, -1):
        string, survival, score, tokens, shares = list(context[-length:]), 1.0, 0.0, [], []
        while len(tokens) < min(draft_len, nodes, int(factor * length)):
            following = children(text, string)
            if not following:
                break
            share = following[0][0] / len(occurrences(text, string))
            survival *= share
            if survival < min_prob:
                break
            tokens.append(following[0][2])
            shares.append(share)
            score += survival
            string.append(following[0][2])
        if score > best[3]:
            best = (tokens, list(range(-1, len(tokens) - 1)), shares, score)
    return best


def counted_tree(text, context, draft_len, nodes, factor, min_prob):
    best = ([], [], [], 0.0)
    for length in range(len(context), 0, -1):
        tokens, parents, shares, score = [], [], [], 0.0
        waiting = []

        def expand(string, survival, parent, level):
            if level > min(draft_len, int(factor * length)):  # noqa: B023
                return
            for count, latest, token in children(text, string):
                share = count / len(occurrences(text, string))
                if survival * share >= min_prob:
                    waiting.append((-survival * share, -latest, token, share, [*string, token], parent, level))  # noqa: B023

        expand(list(context[-length:]), 1.0, -1, 1)
        while waiting and len(tokens) < nodes:
            waiting.sort()
            negative, _, token, share, string, parent, level = waiting.pop(0)
            tokens.append(token)
            parents.append(parent)
            shares.append(share)
            score -= negative
            expand(string, -negative, len(tokens) - 1, level + 1)
        if score > best[3]:
            best = (tokens, parents, shares, score)
    return best


TEXTS = st.lists(st.integers(SEPARATOR, 3), min_size=1, max_size=30)


@pytest.mark.parametrize("kind", list(INDEXES))
@pytest.mark.parametrize("branching", [False, True])
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 30), max_size=3),
    context=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    own=st.booleans(),
    draft_len=st.integers(1, 5),
    nodes=st.integers(1, 6),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    min_prob=st.sampled_from([0.01, 0.1, 0.4]),
)
def test_index_scores_as_counting_does(kind, branching, text, cuts, context, own, draft_len, nodes, factor, min_prob):
    index = INDEXES[kind](16)
    start = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        index.extend(text[start:cut])
        start = cut
    assert len(index) == len(text)
    if own:
        context = [token for token in text[-6:] if token != SEPARATOR] or context
    counted = counted_tree if branching else counted_chain
    tokens, parents, shares, score = index.propose(context, draft_len, nodes, factor, min_prob, branching)
    expected = counted(text, context, draft_len, nodes, factor, min_prob)
    assert score == pytest.approx(expected[3])
    assert (tokens, parents) == expected[:2]
    assert shares == pytest.approx(expected[2])


@pytest.mark.parametrize("letters", [1, 2, 3, 40])
@pytest.mark.parametrize("branching", [False, True])
def test_native_index_equals_the_reference_beyond_the_depth(letters, branching):
    native, reference = INDEXES["native"](24), INDEXES["python"](24)
    text = random.Random(letters).choices(range(letters), k=300)
    text += text[40:120] + text[10:60]
    for token in text:
        native.extend([token])
        reference.extend([token])
    for end in range(100, len(text), 9):
        got = native.propose(text[end - 12 : end], 12, 20, 1.0, 0.05, branching)
        expected = reference.propose(text[end - 12 : end], 12, 20, 1.0, 0.05, branching)
        assert got == expected


def test_index_works_without_the_extension(monkeypatch):
    from pilotfish.errors import ExecutorUnavailableError

    def missing():
        raise ExecutorUnavailableError("not built")

    monkeypatch.setattr("pilotfish.drafters.suffix_index.native_module", missing)
    assert isinstance(suffix_index(), PythonSuffixIndex)


def test_repeating_text_is_copied_with_rising_confidence():
    drafter = SuffixDrafter()
    drafter.begin(0, 100)
    draft = propose(drafter, [5, 1, 2, 3, 5, 1, 2], 4, SAMPLER)
    assert draft.tokens == (3, 5, 1), "a context of three tokens is followed three tokens deep"
    assert draft.confidence == (0.5, 1.0, 1.0), "one sighting is worth one half; what followed it then is certain"
    again = propose(drafter, [5, 1, 2, 3, 5, 1, 2, 9, 1, 2, 3, 8, 1, 2], 4, SAMPLER)
    assert again.tokens[0] == 3
    assert again.confidence[0] == 2 / 4, "followed so twice of four times"


def test_tree_keeps_both_continuations_the_likelier_first():
    drafter = SuffixDrafter(nodes_per_depth=2)
    drafter.begin(0, 100)
    text = [1, 2, 3, 7, 1, 2, 4, 7, 1, 2, 4, 6, 1, 2]
    draft = propose(drafter, text, 2, SAMPLER)
    assert draft.tokens == (4, 6, 7, 3)
    assert draft.parents == (-1, 0, 0, -1)
    assert draft.confidence == (0.5, 0.5, 0.5, 0.25)
    (limited,) = drafter.propose([DraftJob(0, text, 1, 2, SAMPLER, True, max_nodes=1)])
    assert limited.tokens == (4,)


@pytest.mark.parametrize("nodes_per_depth", [1, 3])
def test_draft_after_any_history_is_that_of_a_fresh_drafter(nodes_per_depth):
    rng = random.Random(nodes_per_depth)
    for _ in range(8):
        drafter = SuffixDrafter(nodes_per_depth)
        drafter.begin(0, 200)
        tokens = rng.choices(range(4), k=5)
        for _ in range(10):
            if rng.random() < 0.7:  # it is not asked in every round
                draft = propose(drafter, tokens, rng.randrange(1, 6), SAMPLER)
                tokens.extend(draft.tokens[: rng.randrange(len(draft) + 1)])
            tokens.append(rng.randrange(4))
        fresh = SuffixDrafter(nodes_per_depth)
        fresh.begin(0, 200)
        assert propose(drafter, tokens, 5, SAMPLER) == propose(fresh, tokens, 5, SAMPLER)


def test_requests_do_not_see_each_other():
    drafter = SuffixDrafter()
    drafter.begin(0, 100)
    drafter.begin(1, 100)
    assert len(propose(drafter, [1, 2, 3, 1, 2], 2, SAMPLER, request=0)) > 0
    assert propose(drafter, [1, 2], 2, SAMPLER, request=1) == EMPTY_DRAFT
    drafter.end(0)
    assert propose(drafter, [1, 2, 4, 1, 2], 1, SAMPLER, request=1).tokens == (4,)


def test_pool_lends_outputs_of_ended_requests_but_not_their_prompts():
    pool = SuffixPool("team-a")
    drafter = SuffixDrafter(pool=pool)
    drafter.begin(0, 100)
    tokens = [7, 6, 7, 5]  # all but the last are prompt when it is first asked
    drafter.propose([DraftJob(0, tokens, 4, 2, SAMPLER, True)])
    tokens.extend([1, 2, 3, 4])
    drafter.end(0)
    assert len(pool) == 4
    drafter.begin(1, 100)
    assert propose(drafter, [0, 1, 2], 2, SAMPLER, request=1).tokens == (3, 4)
    assert propose(drafter, [0, 1, 2, 7], 2, SAMPLER, request=1) == EMPTY_DRAFT
    other = SuffixDrafter(pool=SuffixPool("team-b"))
    other.begin(1, 100)
    assert propose(other, [0, 1, 2], 2, SAMPLER, request=1) == EMPTY_DRAFT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_spec_factor": 0.0}, "suffix_decoding_max_spec_factor=0.0"),
        ({"min_token_prob": 0.0}, "suffix_decoding_min_token_prob=0.0"),
        ({"min_token_prob": 1.5}, "suffix_decoding_min_token_prob=1.5"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(SpeculativeConfigError, match=message):
        SuffixDrafter(**options)
