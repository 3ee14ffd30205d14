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

    def test_included_stop_string(self, target, known, end):
        start = max(0, end - 2)
        stop = letters(known[1][start : end + 1])
        plain, speculative = both(target, known, stop=stop, include_stop_str_in_output=True)
        check(plain, speculative, end, FinishReason.STOP)
        assert speculative.ending.text == letters(known[1][: end + 1])
        assert speculative.ending.stopped_by == plain.ending.stopped_by == stop

    def test_included_stop_token(self, target, known, end):
        plain, speculative = both(
            target, known, stop_token_ids=[known[1][end]], include_stop_str_in_output=True, logprobs=0
        )
        check(plain, speculative, end, FinishReason.STOP)
        assert speculative.ending.text == letters(known[1][: end + 1])
        assert speculative.ending.stopped_by == known[1][end]
        assert len(speculative.logprobs) == end + 1, "nothing after the end leaks"

    def test_stop_string_of_the_first_tokens_is_none_before_min_tokens(self, target, known, end):
        """A stop string completed by the last of the first `min_tokens` tokens is passed over; the next one counts."""
        answer = known[1]
        stops = [letters(answer[end : end + 1]), letters(answer[end + 1 : end + 2])]
        plain, speculative = both(target, known, stop=stops, min_tokens=end + 1)
        check(plain, speculative, end + 1, FinishReason.STOP)
        assert speculative.ending.text == letters(answer[: end + 1])

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
        for early, late in itertools.combinations(range(5), 2):
            plain, speculative = both(target, known, **ends[first](early), **ends[second](late))
            check(plain, speculative, early, FinishReason.LENGTH if first == "budget" else FinishReason.STOP)


def test_two_ends_with_one_token_are_one_end(target, known):
    answer = known[1]
    for place in range(5):
        plain, speculative = both(
            target, known, eos_ids=(answer[place],), stop_token_ids=[answer[place]], max_tokens=place + 1
        )
        check(plain, speculative, place, FinishReason.STOP)
        stop = letters(answer[place : place + 1])
        plain, speculative = both(target, known, stop=stop, max_tokens=place + 1)
        check(plain, speculative, place, FinishReason.STOP)


@pytest.mark.parametrize("least", [1, 2, 4, 5, 7, 12])
def test_min_tokens_past_the_eos_changes_the_answer_as_plain_decoding_does(target, known, least):
    """The drafter knows the answer without `min_tokens`: from the first masked end on it is wrong, and says EOS."""
    seed, answer = known
    for place in (0, 1, 3, 4, 6):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12, min_tokens=least)
        (plain,) = run(tiny_engine(target, eos_ids=(answer[place],)), [PROMPT], params)
        drafter = replay(answer, len(PROMPT))
        (speculative,) = run(tiny_engine(target, drafter, DRAFT_LEN, eos_ids=(answer[place],)), [PROMPT], params)
        assert speculative.output == plain.output
        assert speculative.ending.text == plain.ending.text
        assert speculative.finish_reason is plain.finish_reason
        assert answer[place] not in speculative.output[:least]
        assert len(speculative.output) > least or speculative.finish_reason is FinishReason.LENGTH


def test_context_limit_inside_a_block_at_every_place(known):
    for room in range(1, 8):
        target = tiny_target(context_length=len(PROMPT) + room)
        params = SamplingParams(temperature=1.0, seed=3, logprobs=0)
        (plain,) = run(tiny_engine(target), [PROMPT], params)
        (speculative,) = run(tiny_engine(target, replay(plain.output, 3), DRAFT_LEN), [PROMPT], params)
        assert len(speculative.logprobs) == len(speculative.output) == room
        assert speculative.output == plain.output
        assert speculative.finish_reason is FinishReason.LENGTH


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


def test_stop_string_that_is_complete_first_wins_wherever_tokens_split_it():
    """ "bc" is complete before "abcd" is, whether the letters come one by one or as one token."""
    for pieces in (["a", "b", "c", "d"], ["abcd"], ["ab", "cd"], ["a", "bcd"]):
        detokenizer = Detokenizer(lambda ids, own=pieces: "".join(own[place] for place in ids), [])
        cut = Ending(SamplingParams(stop=["abcd", "bc", "c"]), (), 9, detokenizer)
        for token in range(len(pieces)):
            if cut.push(token) is not None:
                break
        assert cut.text == "a"
        assert cut.stopped_by == "bc"


def test_included_stop_string_need_not_be_held_back():
    held = Ending(
        SamplingParams(stop=letters([1, 2]), include_stop_str_in_output=True), (), 9, Detokenizer(letters, [])
    )
    shown = []
    for token in [7, 1, 2]:
        held.push(token)
        shown.append(held.release())
    assert shown == [letters([7]), letters([1]), letters([2])]
    assert held.text == letters([7, 1, 2])


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
