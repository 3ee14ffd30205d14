"""Figures of requests that a test can add up by hand."""

import pytest

from pilotfish.bench.load import Served
from pilotfish.bench.serve_totals import Run, ServeTotals, delivery_gaps, different_texts, percentile
from pilotfish.errors import InvalidInputError


def made(key=0, *, due=0.0, deliveries=((1.0, 1), (1.5, 2), (2.5, 1)), ended=2.5, tokens=4, text="text", **values):
    return Served(key, due, text, list(deliveries), ended, tokens, **values)


def test_percentile_is_on_the_line_between_two_values():
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0, 0.5, 1)] == [1.0, 2.5, 4.0]
    assert percentile(values, 0.95) == pytest.approx(3.85)
    assert percentile([7.0], 0.99) == 7.0
    assert values == [4.0, 1.0, 3.0, 2.0]


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1)])
def test_percentile_of_nothing_is_refused(values, share):
    with pytest.raises(InvalidInputError, match="percentile"):
        percentile(values, share)


def test_gap_is_shared_by_the_tokens_that_came_at_its_end():
    assert delivery_gaps(made()) == [(0.5, 2), (1.0, 1)]
    assert delivery_gaps(made(deliveries=((1.0, 0), (3.0, 0)))) == [(2.0, 1)]
    assert delivery_gaps(made(deliveries=())) == []


def test_totals_of_two_runs():
    first = Run((made(), made(due=0.5, ended=4.0, tokens=6, rounds=3, drafted_tokens=8, accepted_tokens=3)), 0.3)
    second = Run((made(due=10.0, deliveries=((10.5, 1),), ended=11.0, tokens=1, rounds=1),), 0.2)
    totals = ServeTotals.of([first, second])
    assert (totals.requests, totals.failed, totals.tokens, totals.seconds) == (3, 0, 11, 5.0)
    assert totals.tokens_per_second == pytest.approx(2.2)
    assert totals.requests_per_second == pytest.approx(0.6)
    assert sorted(totals.first_seconds) == [0.5, 0.5, 1.0]
    assert sorted(totals.token_seconds) == [0.25] * 4 + [1.0] * 2
    assert sorted(totals.gap_seconds) == [0.5, 0.5, 1.0, 1.0]
    assert sorted(totals.request_seconds) == [1.0, 2.5, 3.5]
    record = totals.as_dict()
    assert record["inter_token_latency"]["p50"] == 0.25
    assert record["inter_token_latency"]["mean"] == pytest.approx(0.5)
    assert record["acceptance_rate"] == pytest.approx(3 / 8)
    assert record["mean_acceptance_length"] == pytest.approx(11 / 4)
    assert record["client_load"] == pytest.approx(0.1)


def test_failed_requests_count_for_nothing_but_themselves():
    broken = made(due=0.0, ended=9.0, error="busy")
    totals = ServeTotals.of([Run((made(), broken, broken), 0.0)])
    assert (totals.requests, totals.failed, totals.tokens, totals.errors) == (1, 2, 4, {"busy": 2})
    assert len(totals.first_seconds) == 1


def test_nothing_served_has_no_figures():
    record = ServeTotals.of([]).as_dict()
    assert record["tokens_per_second"] is None
    assert record["time_to_first_token"] == {"p50": None, "p95": None, "p99": None, "mean": None}


def test_different_texts_are_found_by_key_among_whole_answers():
    served = [made("a", text="x"), made("b", text="x"), made("a", text="x"), made("b", text="y")]
    assert different_texts(served) == ["b"]
    assert different_texts([made("a", text="x"), made("a", text="", error="busy")]) == []
