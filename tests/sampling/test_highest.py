"""The highest tokens of a row: native against a stable sort, and as the greedy choice against the pipeline."""

import numpy as np
import pytest
import torch

from pilotfish import _native
from pilotfish.errors import RowsError
from pilotfish.sampling import Prefix, Sampler, SamplingParams
from pilotfish.sampling.highest import highest_by_numpy, highest_tokens


def rows_of(kind, size):
    generator = torch.Generator().manual_seed(size)
    return (
        {
            "normal": torch.randn(3, size, generator=generator),
            "ties": torch.randint(0, 3, (3, size), generator=generator).float(),
            "zeros of both signs": torch.randn(3, size, generator=generator).sign().clamp(max=0) * 0.0,
            "rising": torch.arange(size).float().expand(3, size),
            "falling": -torch.arange(size).float().expand(3, size),
            "masked": torch.full((3, size), -torch.inf),
            "nearly masked": torch.full((3, size), -torch.inf).index_fill(1, torch.tensor([size // 2]), -1e30),
        }[kind]
        .contiguous()
        .numpy()
    )


KINDS = ("normal", "ties", "zeros of both signs", "rising", "falling", "masked", "nearly masked")


@pytest.mark.parametrize("size", [1, 7, 63, 64, 65, 255, 257, 1000, 5000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isa", _native.instruction_sets())
def test_native_tokens_equal_a_stable_sort(size, kind, isa):
    rows = rows_of(kind, size)
    _native.select_isa(isa)
    try:
        for count in {1, 8, 20}:
            for real in {size, max(1, size - 3)}:
                found, expected = highest_tokens(rows, real, count), highest_by_numpy(rows, real, count)
                assert found.ids == expected.ids
                assert found.regular
                assert expected.regular
                if kind != "masked":
                    for own, shares in zip(found.shares, expected.shares, strict=True):
                        assert own == pytest.approx(shares, rel=1e-14)
    finally:
        _native.select_isa("auto")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 63, 64, 170, 199])
def test_rows_with_a_number_that_is_none_are_told_apart(bad, place):
    rows = rows_of("normal", 200)
    rows[1, place] = bad
    assert not highest_tokens(rows, 200, 1).regular
    assert highest_tokens(rows, place or 200, 1).regular is (place > 0)
    assert not highest_by_numpy(rows, 200, 1).regular


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "masked"])
def test_first_of_the_highest_is_the_greedy_choice(kind):
    rows = rows_of(kind, 1000)
    sampler = Sampler(SamplingParams(temperature=0, seed=1), 990)
    assert sampler.takes_highest
    found = highest_tokens(rows, 990, 8)
    assert [ids[0] for ids in found.ids] == sampler.choices(torch.from_numpy(rows), [Prefix((1,), 1)] * 3)


@pytest.mark.parametrize("options", [{"temperature": 1}, {"logit_bias": {1: 2.0}}, {"banned_token_ids": [3]}])
def test_choice_is_not_simply_the_highest_where_an_option_acts(options):
    assert not Sampler(SamplingParams(**{"temperature": 0, "seed": 1, **options}), 990).takes_highest


def test_more_tokens_than_columns_are_refused():
    with pytest.raises(RowsError, match="rows have 4"):
        _native.top_rows(np.zeros((1, 4), dtype=np.float32), 5, 1)
    with pytest.raises(RowsError, match="the 3 highest of 2"):
        _native.top_rows(np.zeros((1, 4), dtype=np.float32), 2, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [None, np.nan, np.inf])
def test_known_maxima_change_nothing(kind, bad):
    rows = rows_of(kind, 1000).copy()
    if bad is not None:
        rows[1, 400] = bad
    padded = np.concatenate([rows, np.zeros((3, 24), dtype=np.float32)], axis=1)
    maxima = padded.reshape(3, 32, 32).max(axis=2)
    maxima[np.isnan(maxima)] = np.inf
    for count in (1, 8, 20):
        found, expected = highest_tokens(padded, 1000, count, maxima), highest_tokens(padded, 1000, count)
        assert (found.ids, found.regular) == (expected.ids, expected.regular)
        assert np.array_equal(found.shares, expected.shares, equal_nan=True)
    if kind == "normal" and bad is None:
        hidden = np.full_like(maxima, -np.inf)
        hidden[:, 3] = maxima[:, 3]
        found = highest_tokens(padded, 960, 1, hidden).ids
        assert found == [[96 + int(row[96:128].argmax())] for row in padded], "they are what is gone by"
    with pytest.raises(RowsError, match="maxima is 2"):
        highest_tokens(padded, 1000, 1, maxima[:2])
