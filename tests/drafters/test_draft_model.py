"""The draft model's own state: it reads each committed token once, and never keeps a rejected one."""

import pytest
import torch

from pilotfish.drafters.base import DraftJob, Observation
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.models.base import Segment
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT
from tests.engine.tiny import VOCAB, tiny_target

GREEDY = Sampler(SamplingParams(temperature=0, seed=0), VOCAB)
SAMPLED = Sampler(SamplingParams(temperature=1, top_k=5, seed=0), VOCAB)


@pytest.fixture
def model():
    return tiny_target()


def propose(drafter, tokens, draft_len, sampler=GREEDY, coupled=True):
    (draft,) = drafter.propose([DraftJob(0, tokens, 1, draft_len, sampler, coupled)])
    return draft


def greedy_continuation(model, tokens, count):
    tokens = list(tokens)
    for _ in range(count):
        sequence = model.open(64)
        logits = model.forward([Segment(sequence, tokens, logits_from=len(tokens) - 1)]).logits
        model.close(sequence)
        tokens.append(int(logits.argmax()))
    return tokens[-count:]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 4])
def test_cache_holds_committed_tokens_whatever_was_accepted(model, accepted):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    tokens = [3, 4, 5]
    draft = propose(drafter, tokens, 4)
    assert list(draft.tokens) == greedy_continuation(model, tokens, 4)
    committed = [*tokens, *draft.tokens[:accepted], 60]  # 60: the target's own token
    drafter.observe(Observation(0, committed, {}))
    assert model.length(0) == len(tokens) + min(accepted, 3), "the last drafted token is never read"
    assert list(propose(drafter, committed, 4).tokens) == greedy_continuation(model, committed, 4)


def test_drafter_that_was_not_asked_catches_up(model):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    propose(drafter, [3, 4], 2)
    drafter.observe(Observation(0, [3, 4, 7], {}))
    drafter.observe(Observation(0, [3, 4, 7, 8, 9], {}))
    assert list(propose(drafter, [3, 4, 7, 8, 9], 3).tokens) == greedy_continuation(model, [3, 4, 7, 8, 9], 3)


def test_tokens_of_another_drafter_are_kept_only_where_they_agree(model):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    draft = propose(drafter, [3, 4], 4)
    committed = [3, 4, draft.tokens[0], (draft.tokens[1] + 1) % VOCAB, 7]
    drafter.observe(Observation(0, committed, {}))
    assert model.length(0) == 3
    assert list(propose(drafter, committed, 2).tokens) == greedy_continuation(model, committed, 2)


def test_reported_law_is_the_one_drawn_from(model):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    draft = propose(drafter, [3, 4], 3, SAMPLED, coupled=False)
    assert draft.probs.shape == (3, VOCAB)
    for node, token in enumerate(draft.tokens):
        assert (draft.probs[node] > 0).sum() == 5, "top_k applies to the draft's law too"
        assert draft.probs[node, token] > 0
        assert SAMPLED.draw(draft.probs[node], position=2 + node, start=2) == token
    assert torch.allclose(draft.probs.sum(-1), torch.ones(3))


def test_full_context_drafts_nothing(model):
    drafter = DraftModelDrafter(tiny_target(context_length=8))
    drafter.begin(0, 64)
    assert len(propose(drafter, [1] * 7, 4)) == 2, "the last drafted token is never read, so it may exceed the context"
    assert len(propose(drafter, [1] * 8, 4)) == 1
    assert propose(drafter, [1] * 9, 4) == EMPTY_DRAFT


def test_ended_request_frees_its_sequence(model):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    propose(drafter, [3, 4], 2)
    drafter.end(0)
    from pilotfish.errors import RowsError

    with pytest.raises(RowsError):
        model.length(0)


def test_draft_cut_shorter_than_it_was_drawn_leaves_the_pending_token_to_be_read(model):
    drafter = DraftModelDrafter(model)
    drafter.begin(0, 64)
    draft = propose(drafter, [3, 4], 4)
    # Only the first token was verified, and the target's own choice was the second, which had been read ahead.
    committed = [3, 4, *draft.tokens[:2]]
    drafter.observe(Observation(0, committed, {}))
    assert model.length(0) == 3
    assert list(propose(drafter, committed, 3).tokens) == greedy_continuation(model, committed, 3)
