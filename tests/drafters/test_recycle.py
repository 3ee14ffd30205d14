"""Token recycling: what is learnt, from which rows, and what is drafted from it."""

import pytest
import torch

from pilotfish.drafters.base import DraftJob, Observation, Successors
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.successors import successors
from pilotfish.errors import SpeculativeConfigError
from pilotfish.sampling.highest import highest_tokens
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT, Draft
from tests.drafters.common import propose

SAMPLER = Sampler(SamplingParams(seed=0), 64)


def row(token, ids, shares=None, previous=None):
    return Successors(previous, token, tuple(ids), tuple(shares or [1 / len(ids)] * len(ids)))


def learnt(*rows, request=0, **options):
    drafter = RecycleDrafter(**options)
    drafter.begin(request, 100)
    drafter.observe(Observation(request, [0, 1], {}, successors=rows))
    return drafter


def test_chain_follows_the_first_favourites():
    drafter = learnt(row(1, [2, 9]), row(2, [3, 9]), row(3, [1, 9], [0.75, 0.25]))
    draft = propose(drafter, [0, 1], 5, SAMPLER)
    assert draft.tokens == (2, 3, 1, 2, 3)
    assert draft.is_chain
    assert draft.probs is None
    assert draft.confidence == (0.5, 0.5, 0.75, 0.5, 0.5)


def test_unknown_token_is_not_continued():
    drafter = learnt(row(1, [2]))
    assert propose(drafter, [0, 7], 3, SAMPLER) == EMPTY_DRAFT
    assert propose(drafter, [0, 1], 3, SAMPLER).tokens == (2,)


def test_latest_row_counts_and_two_tokens_say_more_than_one():
    drafter = learnt(row(1, [2], previous=5), row(1, [3], previous=6))
    assert propose(drafter, [5, 1], 1, SAMPLER).tokens == (2,)
    assert propose(drafter, [6, 1], 1, SAMPLER).tokens == (3,)
    assert propose(drafter, [7, 1], 1, SAMPLER).tokens == (3,)


def test_tree_grows_the_likeliest_path_first():
    drafter = learnt(
        row(1, [2, 3], [0.6, 0.4]), row(2, [4, 5], [0.5, 0.5]), row(3, [6, 7], [0.9, 0.1]), nodes_per_depth=2
    )
    draft = propose(drafter, [0, 1], 2, SAMPLER)
    assert draft.tokens == (2, 3, 6, 4)
    assert draft.parents == (-1, -1, 1, 0)
    (limited,) = drafter.propose([DraftJob(0, [0, 1], 1, 2, SAMPLER, True, max_nodes=3)])
    assert limited.tokens == (2, 3, 6)


def test_requests_share_a_table_only_where_asked():
    for shared in (False, True):
        drafter = learnt(row(1, [2]), shared=shared)
        drafter.begin(1, 100)
        assert propose(drafter, [0, 1], 1, SAMPLER, request=1).tokens == ((2,) if shared else ())
        drafter.end(0)
        drafter.begin(2, 100)
        assert propose(drafter, [0, 1], 1, SAMPLER, request=2).tokens == ((2,) if shared else ())


def test_table_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr("pilotfish.drafters.recycle.TABLE_TOKENS", 3)
    drafter = learnt(*(row(token, [token + 1]) for token in range(10)))
    assert propose(drafter, [20, 6], 1, SAMPLER) == EMPTY_DRAFT
    assert propose(drafter, [20, 7], 5, SAMPLER).tokens == (8, 9, 10)


def test_rows_of_a_tree_know_the_token_before_them():
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    draft = Draft((5, 6, 7), (-1, -1, 1))
    found = successors([3, 4], draft, highest_tokens(logits.numpy(), 8, 3))
    assert [(own.previous, own.token) for own in found] == [(3, 4), (4, 5), (4, 6), (6, 7)]
    for own, values in zip(found, logits[:, :8], strict=True):
        best = values.sort(descending=True)
        assert list(own.ids) == best.indices[:3].tolist()
        assert own.shares == pytest.approx(best.values[:3].softmax(0).tolist())
    assert successors([4], Draft(), highest_tokens(logits[:1].numpy(), 8, 1))[0].previous is None


def test_number_of_successors_must_be_positive():
    with pytest.raises(SpeculativeConfigError, match="at least 1"):
        RecycleDrafter(successors=0)
