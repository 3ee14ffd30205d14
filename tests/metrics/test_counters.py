"""Counters and the figures derived from them."""

import pytest

from pilotfish.metrics.counters import RequestTiming, SpeculationCounters


def counted(*rounds):
    counters = SpeculationCounters()
    for drafted, accepted, delivered in rounds:
        counters.record(drafted=drafted, accepted=accepted, delivered=delivered)
    return counters


def test_figures_follow_their_formulas():
    counters = counted((4, 2, 3), (4, 0, 1), (0, 0, 1), (2, 2, 2))
    assert counters.acceptance_rate == 4 / 10
    assert counters.tokens_per_round == 7 / 4
    assert counters.accepted_per_position == [2, 2]


def test_figures_of_nothing_are_zero():
    assert SpeculationCounters().acceptance_rate == SpeculationCounters().tokens_per_round == 0.0


def test_sum_of_counters_equals_counting_everything():
    parts = [[(4, 2, 3), (4, 0, 1)], [(8, 5, 6)], []]
    total = SpeculationCounters()
    for part in parts:
        total.add(counted(*part))
    assert total == counted(*(entry for part in parts for entry in part))


def test_round_cannot_deliver_more_than_the_path_and_one():
    with pytest.raises(AssertionError):
        counted((4, 2, 4))


def test_decode_speed_leaves_out_the_first_delivery():
    timing = RequestTiming(started=10.0)
    assert timing.time_to_first_token is None
    timing.record(12.0, 3)
    assert timing.time_to_first_token == 2.0
    assert timing.decode_tokens_per_second(3) is None
    timing.record(13.0, 1)
    timing.record(14.0, 4)
    assert timing.decode_tokens_per_second(8) == 5 / 2
