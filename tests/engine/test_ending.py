"""Every way to end, at every place of an accepted block: one cut for text, ids, counters and caches."""

import itertools

import pytest

from pilotfish.engine.detokenizer import Detokenizer
from pilotfish.engine.ending import Ending
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import Draft, FinishReason
from tests.engine.tiny import ScriptedDrafter, letters, replay, run, tiny_engine, tiny_target

PROMPT = [3, 4, 5]
DRAFT_LEN = 4


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def known(target):
    """A sampled answer without repeated tokens at its start, so that each end has one place."""
    for seed in range(100):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12)
        (request,) = run(tiny_engine(target), [PROMPT], params)
        if len(set(request.output)) == 12:
            return seed, request.output
    raise AssertionError("no seed gives an answer of distinct tokens")


def both(target, known, eos_ids=(), **options):
    """The same request plainly and with a perfect drafter, after which the cache is checked."""
    seed, answer = known
    params = SamplingParams(temperature=1.0, seed=seed, **{"max_tokens": 12, **options})
    (plain,) = run(tiny_engine(target, eos_ids=eos_ids), [PROMPT], params)
    kept = []
    keep = target.keep
    target.keep = lambda sequence, path: (kept.append(len(path)), keep(sequence, path))[1]
    try:
        drafter = replay(answer, len(PROMPT))
        (speculative,) = run(tiny_engine(target, drafter, DRAFT_LEN, eos_ids=eos_ids), [PROMPT], params)
    finally:
        del target.keep
    assert sum(kept) == len(speculative.tokens) - 1, "the cache holds all but the pending token"
    assert not drafter.open, "the drafter was told of the end"
    return plain, speculative


# A block is four drafted tokens and the bonus.
PLACES = {"first": 0, "middle": 2, "last": 3, "bonus": 4, "second block": 6}


def check(plain, speculative, end, reason):
    assert len(plain.output) == end + 1
    assert speculative.output == plain.output
    assert speculative.ending.text == plain.ending.text
    assert "".join(speculative.pieces) == speculative.ending.text
    assert plain.finish_reason is speculative.finish_reason is reason
    counters = speculative.counters
    assert counters.delivered_tokens == len(speculative.output) == len(speculative.from_draft)
    assert counters.accepted_tokens == sum(speculative.from_draft) == sum(counters.accepted_per_position)
    assert counters.rounds == end // 5 + 1


@pytest.mark.parametrize("end", PLACES.values(), ids=PLACES)
class TestEndInsideABlock:
    def test_eos(self, target, known, end):
        plain, speculative = both(target, known, eos_ids=(known[1][end],))
        check(plain, speculative, end, FinishReason.STOP)
        assert speculative.ending.text == letters(known[1][:end]), "an end token has no text"

    def test_stop_token(self, target, known, end):
        plain, speculative = both(target, known, stop_token_ids=[known[1][end]])
        check(plain, speculative, end, FinishReason.STOP)

    def test_stop_string_of_one_token(self, target, known, end):
        plain, speculative = both(target, known, stop=letters(known[1][end : end + 1]))
        check(plain, speculative, end, FinishReason.STOP)
        assert speculative.ending.text == letters(known[1][:end])

    def test_stop_string_across_tokens(self, target, known, end):
        start = max(0, end - 2)
        plain, speculative = both(target, known, stop=["absent", letters(known[1][start : end + 1])])
        check(plain, speculative, end, FinishReason.STOP)
        assert speculative.ending.text == letters(known[1][:start])

    def test_budget(self, target, known, end):
        plain, speculative = both(target, known, max_tokens=end + 1)
        check(plain, speculative, end, FinishReason.LENGTH)
        assert speculative.ending.text == letters(known[1][: end + 1])


def test_context_limit_ends_with_length():
    target = tiny_target(context_length=16)
    params = SamplingParams(temperature=1.0, seed=3)
    (plain,) = run(tiny_engine(target), [PROMPT], params)
    assert len(plain.tokens) == 16
    assert plain.finish_reason is FinishReason.LENGTH
    (speculative,) = run(tiny_engine(target, replay(plain.output, 3), DRAFT_LEN), [PROMPT], params)
    assert speculative.output == plain.output
    assert speculative.finish_reason is FinishReason.LENGTH


def test_earliest_of_two_ends_in_one_block_wins(target, known):
    answer = known[1]
    ends = {
        "eos": lambda place: {"eos_ids": (answer[place],)},
        "token": lambda place: {"stop_token_ids": [answer[place]]},
        "string": lambda place: {"stop": letters(answer[place : place + 1])},
        "budget": lambda place: {"max_tokens": place + 1},
    }
    for first, second in itertools.permutations(ends, 2):
        plain, speculative = both(target, known, **ends[first](1), **ends[second](3))
        check(plain, speculative, 1, FinishReason.LENGTH if first == "budget" else FinishReason.STOP)


def test_ignored_eos_does_not_end(target, known):
    plain, speculative = both(target, known, eos_ids=(known[1][2],), ignore_eos=True)
    assert plain.output == speculative.output == known[1]


def test_rejected_drafted_eos_does_not_end(target, known):
    seed, answer = known
    eos = next(token for token in range(64) if token not in answer)
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12)
    drafter = ScriptedDrafter(lambda tokens, draft_len: Draft.chain([eos]))
    (request,) = run(tiny_engine(target, drafter, 1, eos_ids=(eos,)), [PROMPT], params)
    assert request.output == answer
    assert request.counters.accepted_tokens == 0
    assert request.counters.drafted_tokens > 0


def ending(stop, budget=100):
    return Ending(SamplingParams(stop=stop), (), budget, Detokenizer(letters, []))


def test_possible_stop_string_is_held_back_until_decided():
    held = ending(letters([1, 2, 3]))
    shown = []
    for token in [7, 1, 2, 9, 1, 2, 3]:
        held.push(token)
        shown.append(held.release())
    assert shown == [letters([7]), "", "", letters([1, 2, 9]), "", "", ""]
    assert held.reason is FinishReason.STOP
    assert held.text == letters([7, 1, 2, 9])


def test_held_back_text_is_released_at_another_end():
    held = ending(letters([1, 2, 3]), budget=2)
    shown = []
    for token in [1, 2]:
        held.push(token)
        shown.append(held.release())
    assert "".join(shown) == held.text == letters([1, 2])


def test_stop_string_that_a_flush_completes_still_stops():
    def decode(ids):
        return "".join("\ufffd" if token == 0 else chr(0x100 + token) for token in ids)

    cut = Ending(SamplingParams(stop="\ufffd"), (), 2, Detokenizer(decode, []))
    assert cut.push(5) is None
    assert cut.push(0) is FinishReason.STOP
    assert cut.text == chr(0x105)
