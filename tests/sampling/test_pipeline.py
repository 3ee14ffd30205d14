import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pilotfish.sampling import Prefix, SamplingParams, build_pipeline
from pilotfish.sampling.truncation import Greedy, Temperature, TopK, TopP

PROPERTY = settings(max_examples=150, deadline=None, derandomize=True)


def prefixes(rows):
    return [Prefix((1, 2, 3), 2, (4,) * row) for row in range(rows)]


def scores(logits, **options):
    return build_pipeline(SamplingParams(**options)).scores(logits, prefixes(len(logits)))


def laws(logits, **options):
    return build_pipeline(SamplingParams(**options)).laws(logits, prefixes(len(logits)))


def support(row):
    return {token for token, score in enumerate(row.tolist()) if score > -math.inf}


def by_rank(row):
    """Token ids from the best; equal scores by lowest id."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


def random_logits(rows, vocab, seed=0, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


# Few distinct values, so that most rows have ties; wide ones, so that some tokens have no mass at all.
tied_rows = st.integers(2, 40).flatmap(
    lambda vocab: st.lists(
        st.lists(st.sampled_from([-200.0, -3.0, -1.0, 0.0, 0.5, 2.0]), min_size=vocab, max_size=vocab),
        min_size=1,
        max_size=5,
    )
)
options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 1e-300, 1e-9, 0.3, 1.0, 4.0]),
        "top_k": st.sampled_from([-1, 0, 1, 2, 5, 100]),
        "top_p": st.sampled_from([1e-6, 0.3, 0.5, 0.9, 0.999, 1.0]),
    }
)


@PROPERTY
@given(rows=tied_rows, chosen=options)
def test_pipeline_gives_each_row_the_same_bits_alone_and_together(rows, chosen):
    logits = torch.tensor(rows)
    for function in (scores, laws):
        together = function(logits, **chosen)
        for row in range(len(rows)):
            alone = function(logits[row : row + 1], **chosen)[0]
            assert alone.numpy().tobytes() == together[row].numpy().tobytes()


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 40},
        {"top_p": 0.9},
        {"temperature": 3.0, "top_p": 0.999},
        {"temperature": 0.7, "top_k": 500, "top_p": 0.95},
        {"temperature": 0},
    ],
)
def test_pipeline_is_row_invariant_at_a_real_vocabulary_in_a_padded_buffer(chosen):
    logits = random_logits(9, 49_152 + 13)[:, :49_152]
    together = laws(logits, **chosen)
    for rows in ([4], [8, 0], [1, 2, 3]):
        assert torch.equal(laws(logits[rows], **chosen), together[rows])


@PROPERTY
@given(rows=tied_rows, chosen=options)
def test_laws_are_laws_and_their_support_is_that_of_the_scores(rows, chosen):
    logits = torch.tensor(rows)
    found = laws(logits, **chosen)
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(len(rows)))
    assert not (found[scores(logits, **chosen) == -math.inf] != 0).any()


@PROPERTY
@given(rows=tied_rows, k=st.integers(1, 50))
def test_top_k_keeps_exactly_the_k_best_and_ties_by_lowest_id(rows, k):
    logits = torch.tensor(rows)
    for row, kept in zip(logits, scores(logits, top_k=k), strict=True):
        assert support(kept) == set(by_rank(row)[:k])
        assert all(kept[token] == row[token] for token in support(kept))


@PROPERTY
@given(rows=tied_rows, mass=st.floats(1e-3, 0.9999), temperature=st.sampled_from([0.5, 1.0, 3.0, 60.0]))
def test_top_p_keeps_the_smallest_best_set_that_reaches_the_mass(rows, mass, temperature):
    tempered = scores(torch.tensor(rows), temperature=temperature)
    kept = scores(torch.tensor(rows), temperature=temperature, top_p=mass)
    for before, after, probs in zip(tempered, kept, tempered.softmax(-1).tolist(), strict=True):
        ranked = by_rank(before)
        found = support(after)
        assert found == set(ranked[: len(found)])
        total = sum(probs[token] for token in ranked[: len(found)])
        without_last = sum(probs[token] for token in ranked[: len(found) - 1])
        assert without_last < mass
        assert total >= mass or len(found) == len(ranked)


def test_top_p_includes_the_token_that_crosses_and_no_other():
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    assert support(scores(logits, top_p=0.5)[0]) == {0}
    assert support(scores(logits, top_p=0.5001)[0]) == {0, 1}
    assert support(scores(logits, top_p=0.8)[0]) == {0, 1, 2}  # 2 and 3 are tied: the lower id
    assert support(scores(logits, top_p=1e-9)[0]) == {0}


def test_top_p_keeps_everything_where_rounding_leaves_the_law_short():
    logits = torch.zeros(1, 3000)
    kept = scores(logits, top_p=math.nextafter(1.0, 0.0))
    assert len(support(kept[0])) >= 2999


@pytest.mark.parametrize("gap", [3.0, 8.0, 14.0])
def test_top_p_looks_as_deep_as_it_must(gap):
    # One token high above a flat floor of which half is needed: the first looks find a single candidate.
    logits = torch.zeros(1, 20_000)
    logits[0, 17] = gap
    best = float(logits.softmax(-1)[0, 17])
    found = sorted(support(scores(logits, top_p=best + 0.5 * (1 - best))[0]) - {17})
    assert len(found) == pytest.approx(10_000, rel=0.01)
    assert found == [token for token in range(20_000) if token != 17][: len(found)]


def test_top_k_goes_before_top_p():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # After top_k = 2 the law is 4/7, 3/7: 0.55 is reached by one token; of the full law it takes two.
    assert support(scores(logits, top_k=2, top_p=0.55)[0]) == {0}
    assert support(scores(logits, top_p=0.55)[0]) == {0, 1}


def test_temperature_goes_before_top_p():
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert support(scores(logits, top_p=0.7)[0]) == {0, 1}
    assert support(scores(logits, top_p=0.7, temperature=0.5)[0]) == {0}


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1e-40, 1e-9])
def test_temperature_towards_zero_is_argmax(temperature):
    logits = torch.cat([random_logits(4, 1000, scale=30.0), torch.full((1, 1000), -1e30)])
    logits[4, 7] = 1e30
    found = laws(logits, temperature=temperature)
    assert torch.equal(found, torch.nn.functional.one_hot(logits.argmax(-1), 1000).float())


def test_temperature_zero_breaks_ties_by_lowest_id():
    assert laws(torch.tensor([[1.0, 3.0, 3.0, 3.0]]), temperature=0).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_are_float32_whatever_the_logits(dtype):
    logits = random_logits(2, 50).to(dtype)
    for chosen in ({}, {"temperature": 0.5}, {"temperature": 0}, {"top_k": 3, "top_p": 0.5}):
        assert scores(logits, **chosen).dtype == torch.float32


def test_pipeline_does_not_change_its_input():
    logits = random_logits(3, 100)
    before = logits.clone()
    laws(logits, temperature=0.5, top_k=10, top_p=0.8)
    assert torch.equal(logits, before)


def test_options_that_are_off_have_no_step():
    assert build_pipeline(SamplingParams()).steps == ()
    assert build_pipeline(SamplingParams(temperature=0, top_k=3, top_p=0.5)).steps == (Greedy(),)
    full = build_pipeline(SamplingParams(top_p=0.5, top_k=3, temperature=0.7))
    assert full.steps == (TopK(3), Temperature(0.7), TopP(0.5))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("chosen", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"top_k": 40}, [TopKLogitsWarper(40)]),
        ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
        (
            {"temperature": 1.3, "top_k": 200, "top_p": 0.8},
            [TemperatureLogitsWarper(1.3), TopKLogitsWarper(200), TopPLogitsWarper(0.8)],
        ),
    ],
)
def test_pipeline_agrees_with_transformers(chosen, warpers, seed):
    logits = random_logits(6, 5000, seed)
    expected = logits
    for warper in warpers:
        expected = warper(None, expected)
    found = scores(logits, **chosen)
    assert torch.equal(found > -math.inf, expected > -math.inf)
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=1e-5, atol=1e-9)
