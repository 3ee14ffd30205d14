"""The promise: ids with speculation equal ids without, whatever drafts, however long, in whatever company."""

import pytest

from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.models.base import Segment
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import EMPTY_DRAFT, Draft
from tests.engine.tiny import ScriptedDrafter, replay, run, similar_draft, tiny_engine, tiny_target

PROMPTS = [[3], [5, 6, 7, 5, 6, 7, 5, 6], list(range(40)), [9, 9, 9], [1, 2, 3, 4, 5, 1, 2]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, seed=1),
    SamplingParams(temperature=0.7, max_tokens=24, seed=2),
    SamplingParams(temperature=1.0, max_tokens=24, seed=3),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=4),
    SamplingParams(temperature=1.0, top_k=40, max_tokens=24, seed=5),
]
DRAFTERS = {
    "ngram": lambda: NgramDrafter(1, 3),
    "draft_model": lambda: DraftModelDrafter(similar_draft()),
}


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def plain_by_params(target):
    return [run(tiny_engine(target), PROMPTS, params) for params in PARAMS]


@pytest.mark.parametrize("draft_len", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_speculation_leaves_ids_text_and_endings_unchanged(target, plain_by_params, kind, draft_len):
    drafted = accepted = 0
    for params, plain in zip(PARAMS, plain_by_params, strict=True):
        speculative = run(tiny_engine(target, DRAFTERS[kind](), draft_len), PROMPTS, params)
        for before, after in zip(plain, speculative, strict=True):
            assert after.output == before.output
            assert after.ending.text == before.ending.text
            assert after.finish_reason is before.finish_reason
            drafted += after.counters.drafted_tokens
            accepted += after.counters.accepted_tokens
    assert drafted > accepted > 0, "drafts were both accepted and rejected"


@pytest.mark.parametrize("kind", list(DRAFTERS))
def test_batch_leaves_each_request_as_it_is_alone(target, kind):
    alone = [run(tiny_engine(target), [prompt], params)[0] for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        engine = tiny_engine(target, DRAFTERS[kind](), 3)
        batch = run(engine, [PROMPTS[i] for i in order], [PARAMS[i] for i in order])
        assert [request.output for request in batch] == [alone[i].output for i in order]


def test_tree_drafts_are_walked_along_the_targets_choices(target):
    params = SamplingParams(temperature=1.0, seed=8, max_tokens=20)
    (plain,) = run(tiny_engine(target), [[3, 4]], params)

    def script(tokens, draft_len):
        right = plain.output[len(tokens) - 2 :][:2]
        if len(right) < 2:
            return EMPTY_DRAFT
        wrong = [(token + 1) % 64 for token in right]
        # Two children of the root, the wrong one first; the right one has a wrong and a right child.
        return Draft((wrong[0], right[0], wrong[1], right[1]), (-1, -1, 1, 1))

    (tree,) = run(tiny_engine(target, ScriptedDrafter(script), 4), [[3, 4]], params)
    assert tree.output == plain.output
    assert tree.counters.tokens_per_round > 2, "the right branch was found in nearly every round"


def test_perfect_drafts_are_accepted_whole(target):
    params = SamplingParams(temperature=1.0, seed=8, max_tokens=20)
    (plain,) = run(tiny_engine(target), [[3, 4]], params)
    drafter = replay(plain.output, 2)
    (perfect,) = run(tiny_engine(target, drafter, 4), [[3, 4]], params)
    assert perfect.output == plain.output
    assert perfect.counters.rounds == 4
    assert perfect.counters.accepted_per_position == [4, 4, 4, 4]
    assert perfect.from_draft == [True, True, True, True, False] * 4
    assert drafter.asked == [4, 4, 4, 4]


def test_drafts_never_exceed_what_may_still_be_delivered(target):
    (plain,) = run(tiny_engine(target), [[3]], SamplingParams(temperature=0, max_tokens=6))
    drafter = replay(plain.output, 1)
    (request,) = run(tiny_engine(target, drafter, 8), [[3]], SamplingParams(temperature=0, max_tokens=6))
    assert drafter.asked == [5]
    assert request.output == plain.output


def test_drafter_observes_what_was_committed_and_its_hidden_states(target):
    params = SamplingParams(temperature=0, max_tokens=12)
    (plain,) = run(tiny_engine(target), [[3, 4, 5]], params)
    drafter = replay(plain.output, 3)
    drafter.hidden_boundaries = (1, 2)
    run(tiny_engine(target, drafter, 3), [[3, 4, 5]], params)
    whole = target.open(32)
    expected = target.forward([Segment(whole, [3, 4, 5, *plain.output])], capture=(1, 2)).hidden
    rows = 0
    for observation in drafter.observed:
        count = observation.hidden[1].shape[0]
        for boundary in (1, 2):
            assert observation.hidden[boundary].sub(expected[boundary][rows : rows + count]).abs().max() < 1e-4
        rows += count
        assert rows == len(observation.tokens) - 1, "every cached row was shown once, prompt included"


def test_prompt_longer_than_a_chunk_is_read_in_chunks(target, monkeypatch):
    params = SamplingParams(temperature=0, max_tokens=10)
    prompts = [list(range(60)), [1, 2, 3], list(range(30, 0, -1))]
    whole = [request.output for request in run(tiny_engine(target), prompts, params)]
    monkeypatch.setattr("pilotfish.engine.scheduler.PROMPT_ROWS", 7)
    monkeypatch.setattr("pilotfish.drafters.draft_model.CATCH_UP_ROWS", 5)
    chunked = run(tiny_engine(target, DraftModelDrafter(similar_draft()), 3), prompts, params)
    assert [request.output for request in chunked] == whole


@pytest.mark.parametrize("verification", ["rejection", "block", "traversal"])
def test_ratio_rules_are_greedy_decoding_at_temperature_0(target, verification):
    params = SamplingParams(temperature=0, max_tokens=24)
    plain = run(tiny_engine(target), PROMPTS, params)
    drafter = DraftModelDrafter(similar_draft())
    speculative = run(tiny_engine(target, drafter, 4, verification=verification), PROMPTS, params)
    assert [request.output for request in speculative] == [request.output for request in plain]
    assert sum(request.counters.accepted_tokens for request in speculative) > 0


def test_draft_model_with_a_shorter_context_stops_drafting_and_generation_goes_on(target):
    params = SamplingParams(temperature=0, max_tokens=40)
    (plain,) = run(tiny_engine(target), [[3, 4]], params)
    drafter = DraftModelDrafter(similar_draft(context_length=16))
    (request,) = run(tiny_engine(target, drafter, 4), [[3, 4]], params)
    assert request.output == plain.output
    assert request.counters.drafted_tokens > 0
    assert not any(request.from_draft[16:])
