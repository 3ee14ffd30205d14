"""Lookup drafting: what is counted and learnt, how it is weighed, native against Python, and the drafter's promises."""

import math
import random

import numpy as np
import pytest

from pilotfish.drafters import lookup_weights as at
from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.base import DraftJob, Observation, Successors
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.drafters.lookup_index import CHILDREN, PositionNoise, PythonLookupIndex, index_factory, native_table
from pilotfish.errors import ExecutorUnavailableError
from pilotfish.models.native_executor import native_module
from pilotfish.sampling.noise import gumbel
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT
from pilotfish.train.pool import Text, build_table
from tests.drafters.common import propose
from tests.drafters.test_backoff import table

SAMPLER = Sampler(SamplingParams(seed=0), 64)
VOCABULARY = 64


def weights(**values):
    """Weights of the linear unit alone, all zero but those named: `place` or `place_3` for the third after it."""
    found = np.zeros((at.COUNT, at.UNITS))
    for name, value in values.items():
        place, _, offset = name.partition("_")
        found[getattr(at, place) + int(offset or 0), 0] = value
    return at.LookupWeights(found, NOISE_WEIGHTS)


def logit(share):
    return math.log(share / (1 - share))


NOISE_WEIGHTS = (1.25, 0.7, -2.0, 1.5, 0.5)


def new_index(values, table=None, remembered=50):
    return PythonLookupIndex(values, table, remembered)


def probability(score):
    return pytest.approx(1 / (1 + math.exp(-score)))


def scores(index, context):
    found = index.candidates(context, VOCABULARY)
    return {token: pytest.approx(at.score(units)) for token, units in found.items()}


def test_text_says_what_followed_its_contexts_and_how_often():
    index = new_index(weights(BIAS_2=0.5, LISTED_2=1.0, LISTED_0=2.0, LISTED_1=3.0, SHARE_0=1.0, ESCAPE_1=-1.0))
    index.extend([1, 2, 3, 2, 4, 2, 4])
    # After 1 2 came 3 once; after 2 came 4 twice and 3 once.
    found = scores(index, [1, 2])
    assert found == {3: 0.5 + 1.0, 4: 0.5 + 3.0 + logit(2 / 3.5) - 1.0}
    assert scores(index, [9]) == {}


def test_favourites_of_two_tokens_of_one_and_of_a_table_add_up():
    known = table({(7,): [(3, 0.5), (5, 0.25)], (6, 7): [(5, 0.75)]}, seen=3)
    places = {"PAIR": 1.0, "PAIR_1": 1.0, "PAIR_2": -2.0, "SINGLE": 0.5, "SINGLE_2": -0.25}
    one, two = 3 * 1, 3 * (at.SEEN_CLASSES + 1)
    places |= {f"TABLE_{one}": 4.0, f"TABLE_{one + 2}": -4.0, f"TABLE_{two}": 8.0, f"TABLE_{two + 1}": 1.0}
    index = new_index(weights(**places), known)
    index.learn(6, 7, [3], [0.75])
    index.learn(2, 7, [9], [0.75])
    assert scores(index, [6, 7]) == {
        3: 1.0 + logit(0.75) - 0.25 + 4.0,
        9: -2.0 + 0.5 - 4.0,
        5: -2.0 - 0.25 + 4.0 + 8.0 + logit(0.75),
    }
    assert list(scores(index, [7])) == [9, 3, 5], "the latest row after one token counts"


def test_what_has_not_come_for_longest_makes_room():
    index = new_index(weights())
    for token in range(10, 10 + CHILDREN + 1):
        index.extend([1, token])
    index.extend([1, 11, 1, 40])
    found = index.candidates([1], VOCABULARY)
    assert 10 not in found
    assert 12 not in found, "the oldest but for 11, which came again"
    assert 11 in found


def test_oldest_favourites_are_forgotten():
    index = new_index(weights(), None, 4)
    for token in range(10):
        index.learn(-1, token, [1], [0.5])
    assert not index.candidates([0], VOCABULARY)
    assert index.candidates([9], VOCABULARY)
    assert len(index._young) + len(index._old) <= 8


def indexes(table, remembered=50):
    random_weights = np.random.default_rng(1).normal(0.0, 1.0, (at.COUNT, at.UNITS))
    shared = None if table is None else native_table(table)
    return (
        new_index(at.LookupWeights(random_weights, NOISE_WEIGHTS), table, remembered),
        native_module().LookupIndex(random_weights, NOISE_WEIGHTS, shared, remembered),
    )


def random_table(seed):
    generator = np.random.default_rng(seed)
    texts = [Text(generator.integers(0, 9, size=60), np.arange(60) > 5) for _ in range(20)]
    return build_table(texts, orders=(1, 2, 3, 4, 6), max_bytes=1 << 20)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("branching", [True, False])
def test_native_index_is_the_python_one(seed, branching):
    generator = random.Random(seed)
    slow, fast = indexes(random_table(seed) if seed % 2 else None)
    text, size = [], 9 if seed < 3 else 40  # few tokens repeat long contexts, many fill up the lists
    grown = 0
    for _ in range(150):
        fresh = [generator.randrange(size) for _ in range(generator.randrange(4))]
        text += fresh
        previous, token = generator.randrange(-1, size), generator.randrange(size)
        ids = generator.sample(range(size), 5)
        shares = [0.5, 0.25, 0.125, 0.0625, 0.0]
        for index in (slow, fast):
            index.extend(fresh)
            index.learn(previous, token, ids, shares)
        asked = (text[-10:], generator.randrange(1, 7), generator.randrange(1, 14), size - 1, 0.02, branching)
        noise = generator.choice([None, PositionNoise(generator.getrandbits(64), len(text), generator.random() * 2.5)])
        tokens, parents, confidence = slow.propose(*asked, noise)
        assert fast.propose(*asked, noise) == (tokens, parents, pytest.approx(confidence))
        assert len(slow) == len(fast) == len(text)
        assert all(token < size - 1 for token in tokens)
        grown = max(grown, len(tokens))
    assert grown > 1


def test_lengths_of_contexts_are_told_apart():
    """A first token whose bits are those of the key's beginning once gave short contexts the place of longer ones."""
    for token in range(6):
        slow, fast = indexes(None)
        for index in (slow, fast):
            index.extend([token, 7, 8, token, 7])
        asked = ([5, token], 3, 8, VOCABULARY, 0.0, True)
        assert fast.propose(*asked)[:2] == slow.propose(*asked)[:2]


def test_native_parts_refuse_what_does_not_fit():
    native = native_module()
    with pytest.raises(ValueError, match="weights"):
        native.LookupIndex(np.zeros((at.COUNT, 1)), NOISE_WEIGHTS, None, 10)
    with pytest.raises(ValueError, match="weights"):
        native.LookupIndex(weights().factors, [0.0], None, 10)
    entries = table({(7,): [(3, 0.5)]}).orders[1]
    broken = native.LookupTable()
    with pytest.raises(ValueError, match="do not fit"):
        broken.add_order(1, entries.keys, entries.starts[:1], entries.successors, entries.shares, entries.seen)
    with pytest.raises(ValueError, match="out of range"):
        broken.add_order(1, entries.keys, entries.starts + 1, entries.successors, entries.shares, entries.seen)


def test_tree_has_the_likeliest_paths_first_and_ends_where_they_are_unlikely():
    index = new_index(weights(SINGLE_1=1.0, SINGLE_2=-9.0))
    index.learn(-1, 1, [2, 3], [0.6, 0.4])
    index.learn(-1, 2, [4, 5], [0.5, 0.5])
    index.learn(-1, 3, [6, 7], [0.9, 0.1])
    tokens, parents, confidence = index.propose([1], 2, 4, VOCABULARY, 0.0, True)
    assert (tokens, parents) == ([2, 3, 6, 4], [-1, -1, 1, 0])
    assert confidence == pytest.approx([0.6, 0.4, 0.9, 0.5])
    assert index.propose([1], 2, 9, VOCABULARY, 0.29, True)[0] == [2, 3, 6, 4, 5]
    assert index.propose([1], 2, 9, VOCABULARY, 0.37, True)[0] == [2, 3]
    assert index.propose([1], 1, 9, VOCABULARY, 0.0, True)[0] == [2, 3]
    assert index.propose([1], 3, 9, VOCABULARY, 0.0, False)[:2] == ([2, 4], [-1, 0])


def test_noise_of_the_position_decides_between_equals_at_every_depth():
    index = new_index(weights(SINGLE_1=1.0, SINGLE_2=-9.0))
    for token in range(10, 60):
        index.learn(-1, token, [token + 10, token + 20], [0.5, 0.5])
    for seed in range(20):
        tokens, _, confidence = index.propose([10], 3, 3, 100, 0.0, False, PositionNoise(seed, 77, 1.0))
        context = 10
        for depth, token in enumerate(tokens):
            drawn = gumbel(seed, 77 + depth, 100)
            assert token == max((context + 10, context + 20), key=drawn.__getitem__)
            context = token
        assert len(tokens) == 3
        assert all(0 < each < 1 for each in confidence)


def test_the_more_noise_counts_the_higher_the_temperature():
    index = new_index(weights(SINGLE_1=1.0, SINGLE_2=-9.0))
    index.learn(-1, 1, [2, 3], [0.8, 0.2])

    def turned(temperature):
        noises = (PositionNoise(seed, 5, temperature) for seed in range(300))
        return sum(index.propose([1], 1, 1, 9, 0.0, True, noise)[0] == [3] for noise in noises) / 300

    assert turned(0.01) == 0
    assert 0 < turned(0.7) < turned(1.5) < 0.5


def test_what_a_text_takes_in_memory_is_planned_for():
    assert LookupDrafter().bytes_per_token > 0
    assert LookupDrafter(own_text=False).bytes_per_token == 0, "a table takes the same whatever the text"


def test_drafter_reads_the_noise_under_match_alone():
    drafter = LookupDrafter()
    observed(drafter, Successors(0, 1, (2, 3), (0.5, 0.5)))

    def drafts(temperature, coupled):
        samplers = (Sampler(SamplingParams(seed=seed, temperature=temperature), 64) for seed in range(20))
        return {propose(drafter, [0, 1], 1, sampler, coupled=coupled).tokens for sampler in samplers}

    assert len(drafts(1.0, coupled=True)) == 2
    assert len(drafts(1.0, coupled=False)) == len(drafts(0.0, coupled=True)) == 1


def test_with_noise_more_of_a_sampling_target_is_foretold():
    """A target that samples from its favourites' law: the drafter that knows the noise agrees more often."""
    law = np.array([0.4, 0.3, 0.2, 0.1])
    index = new_index(weights(SINGLE_1=1.0, SINGLE_2=-9.0))
    index.learn(-1, 1, [2, 3, 4, 5], law.tolist())
    blind = known = 0
    for seed in range(400):
        choice = 2 + int(np.argmax(np.log(law) + gumbel(seed, 9, 6)[2:]))
        blind += index.propose([1], 1, 1, 9, 0.0, True)[0] == [choice]
        known += index.propose([1], 1, 1, 9, 0.0, True, PositionNoise(seed, 9, 1.0))[0] == [choice]
    assert blind < 190, "four of ten, but for chance"
    assert known > 340


def observed(drafter, *rows):
    drafter.begin(0, 100)
    drafter.observe(Observation(0, [0, 1], {}, successors=rows))
    return drafter


def test_drafter_proposes_a_tree_under_match_and_a_chain_for_a_ratio_rule():
    drafter = observed(LookupDrafter(), Successors(None, 1, (2, 3), (0.6, 0.4)), Successors(1, 2, (4, 5), (0.8, 0.2)))
    draft = propose(drafter, [0, 1], 6, SAMPLER)
    assert not draft.is_chain
    assert draft.probs is None
    assert 3 <= len(draft) <= 6
    chain = propose(drafter, [0, 1], 6, SAMPLER, coupled=False)
    assert chain.is_chain
    assert chain.tokens[:2] == (2, 4)
    wide = observed(LookupDrafter(None, 2), Successors(None, 1, (2, 3), (0.6, 0.4)))
    assert propose(wide, [0, 1], 2, SAMPLER, coupled=False).parents == (-1, -1), "asked for, so the rule takes trees"
    (small,) = drafter.propose([DraftJob(0, [0, 1], 1, 6, SAMPLER, True, max_nodes=2)])
    assert small.tokens == draft.tokens[:2]
    assert all(token < 4 for token in propose(drafter, [0, 1], 6, Sampler(SamplingParams(seed=0), 4)).tokens)


def test_requests_share_nothing_but_the_table():
    known = table({(7,): [(8, 0.9)]})
    drafter = LookupDrafter(known)
    for request in (0, 1):
        drafter.begin(request, 100)
    drafter.observe(Observation(0, [5, 6], {}, successors=(Successors(5, 6, (9,), (1.0,)),)))
    assert propose(drafter, [1, 2, 3, 1, 2], 3, SAMPLER, request=0).tokens[:1] == (3,)
    assert propose(drafter, [5, 6], 2, SAMPLER, request=1) == EMPTY_DRAFT
    assert propose(drafter, [1, 2], 2, SAMPLER, request=1) == EMPTY_DRAFT
    assert 8 in propose(drafter, [1, 2, 7], 2, SAMPLER, request=1).tokens
    drafter.end(0)
    drafter.begin(0, 100)
    assert propose(drafter, [5, 6], 2, SAMPLER) == EMPTY_DRAFT


def test_table_alone_learns_nothing():
    drafter = LookupDrafter(table({(7,): [(8, 0.9)], (8,): [(7, 0.8)]}), own_text=False)
    assert drafter.top_successors == 0
    drafter.begin(0, 100)
    assert propose(drafter, [1, 2, 3, 1, 2], 3, SAMPLER) == EMPTY_DRAFT
    assert propose(drafter, [1, 7], 3, SAMPLER, coupled=False).tokens[:2] == (8, 7)
    # Rows that another drafter of the request asked for.
    drafter.observe(Observation(0, [1, 2], {}, successors=(Successors(1, 2, (9,), (1.0,)),)))
    assert propose(drafter, [1, 2], 3, SAMPLER) == EMPTY_DRAFT


def test_units_raise_and_lower_a_score_where_they_are_above_zero():
    values = np.zeros((at.COUNT, at.UNITS))
    values[at.BIAS] = [0.25, *[0.0] * (at.UNITS - 1)]
    values[at.SINGLE, [0, 1, at.RAISING, at.RAISING + 1, at.UNITS - 1]] = [1.0, 2.0, -4.0, 8.0, -16.0]
    values[at.SINGLE + 2, [1, at.RAISING + 1]] = [-32.0, 64.0]
    index = new_index(at.LookupWeights(values, NOISE_WEIGHTS))
    index.learn(-1, 1, [2], [0.5])
    assert scores(index, [1]) == {2: 0.25 + 1.0 + 2.0 - 8.0}


@pytest.mark.parametrize("with_table", [False, True])
def test_fitted_weights_say_the_obvious(with_table):
    fitted = at.fitted_weights(with_table)
    assert fitted.factors.shape == (at.COUNT, at.UNITS)
    assert len(fitted.noise) == at.NOISE_COUNT
    assert fitted.factors[at.TABLE :].any() == with_table, "nothing to say about a table where there is none"
    index = PythonLookupIndex(fitted, table({(7,): [(3, 0.9), (4, 0.05)]}, seen=4) if with_table else None)
    index.extend([5, 7, 8, 1, 2, 5, 7, 8, 9, 5, 7, 6, 4])
    before = index.probabilities([5, 7], VOCABULARY)
    assert before[8] > before[6], "what came twice is likelier than what came once"
    index.learn(5, 7, [6, 8], [0.9, 0.1])
    after = index.probabilities([5, 7], VOCABULARY)
    assert after[6] > before[6], "what the target likes becomes likelier"
    if with_table:
        assert before[3] > before[4], "so is what the table gives a larger share"


def test_reference_serves_where_the_extension_does_not_load(monkeypatch):
    def missing():
        raise ExecutorUnavailableError("no extension")

    monkeypatch.setattr("pilotfish.drafters.lookup_index.native_module", missing)
    assert isinstance(index_factory(BackoffTable({}))(), PythonLookupIndex)
