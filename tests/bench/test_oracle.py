"""The best choice in hindsight, on answers short enough to try every way by hand or by force."""

import random

import pytest

from pilotfish.bench.oracle import Hindsight, Watch, _soonest, agreeing, oracle_figures
from pilotfish.sampling.params import SamplingParams
from pilotfish.terms import Draft

COSTS = {"passes": [{"rows": 1, "seconds": 1.0}, {"rows": 17, "seconds": 2.6}]}
"""Each drafted row adds 0.1 s."""


def test_agreement_follows_the_best_path():
    assert agreeing(Draft.chain([5, 6, 7]), [5, 6, 9]) == 2
    assert agreeing(Draft.chain([5, 6]), [5, 6]) == 2
    assert agreeing(Draft((5, 8, 6), (-1, -1, 1)), [8, 6, 1]) == 2
    assert agreeing(Draft(), [1]) == 0


def test_plain_steps_where_nothing_agrees():
    figures = oracle_figures([Hindsight({"ngram": (0,) * 6}, {"ngram": 0.1})], 2.0, COSTS)
    assert figures["speedup"] == pytest.approx(1.0)
    assert figures["tokens_per_second"] == pytest.approx(0.5)
    assert figures["rounds_by_drafter"] == {"plain": 5}


def test_rounds_are_those_that_end_soonest():
    """Five tokens after the first. Greedily: two drafted ones from the second, then two plain steps, in three rounds.
    Better: a plain step first, then three drafted ones, in two."""
    answer = Hindsight({"a": (0, 2, 3, 0, 0, 0), "b": (0, 0, 3, 0, 0, 0)}, {"a": 0.5, "b": 0.0})
    figures = oracle_figures([answer], 2.0, COSTS)
    assert figures["draft_sizes"] == {"0": 1, "3": 1}
    assert figures["rounds_by_drafter"] == {"b": 1, "plain": 1}, "of equal drafters the quick one"
    assert figures["speedup"] == pytest.approx(5 * 2.0 / (2.0 + 2.3))
    assert figures["tokens_per_round"] == 2.5


def test_draft_that_costs_more_than_it_brings_is_left_out():
    answer = Hindsight({"slow": (0, 1, 1, 0)}, {"slow": 5.0})
    assert oracle_figures([answer], 2.0, COSTS)["draft_sizes"] == {"0": 3}


def test_no_way_is_faster():
    """Against every sequence of choices."""
    numbers = random.Random(1)

    def fastest(answer, place, length):
        if place >= length:
            return 0.0
        best = 2.0 + fastest(answer, place + 1, length)
        for name, reach in answer.reach.items():
            for taken in range(1, min(reach[place], length - place - 1) + 1):
                cost = 2.0 + 0.1 * taken + answer.draft_seconds[name] * taken
                best = min(best, cost + fastest(answer, place + taken + 1, length))
        return best

    for _ in range(50):
        length = numbers.randint(2, 9)
        reach = {name: tuple(numbers.choice((0, 0, 1, 2, 4)) for _ in range(length)) for name in "ab"}
        answer = Hindsight(reach, {"a": 0.3, "b": 0.9})
        seconds, rounds = _soonest(answer, 2.0, [0.1 * taken for taken in range(17)])
        assert seconds == pytest.approx(fastest(answer, 1, length))
        assert sum(1 + taken for _, taken in rounds) == length - 1


def test_answer_of_one_token_has_no_rounds():
    assert oracle_figures([Hindsight({"a": (3,)}, {"a": 0.0})], 2.0, COSTS) is None
    assert oracle_figures([], 2.0, COSTS) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_watched_drafter_agrees_as_often_as_one_in_use(llm, temperature):
    """At a fixed length the recorded reach, walked as rounds, gives the accepted tokens of the engine itself."""
    prompt = llm.tokenizer.encode("The shark looks once, and once more the shark looks once, and once more")
    # Of three tokens the next is guessed often enough.
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, allowed_token_ids=(50, 51, 52))
    used = {"method": "suffix", "num_speculative_tokens": 3}
    (output,) = llm.with_speculation(used).generate(prompt, params)
    completion = output.outputs[0]
    watch = Watch(llm, used)
    for _ in range(2):  # and again, with an engine that has served
        reach = watch.answer(prompt, params, len(completion.token_ids)).reach["suffix"]
        place, accepted = 0, 0
        while place < len(reach):
            taken = min(3, reach[place], len(reach) - place - 1)
            accepted, place = accepted + taken, place + taken + 1
        assert accepted == completion.metrics.accepted_tokens
    assert accepted > 0
