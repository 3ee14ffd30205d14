import pytest

from pilotfish.bench.totals import Totals, compared, speedup
from tests.bench.runs import fast_run, made_pair, made_run


def test_speed_is_all_tokens_over_all_seconds_and_no_mean_of_ratios():
    slow = made_run(tokens=range(11), seconds=11.0, first_seconds=1.0)  # 1 token/s
    quick = made_run(tokens=range(11), seconds=2.0, first_seconds=1.0)  # 10 tokens/s
    totals = Totals.of([slow, quick])
    assert totals.tokens_per_second == pytest.approx(20 / 11)
    assert totals.end_to_end_tokens_per_second == pytest.approx(22 / 13)
    assert totals.time_to_first_token == 1.0


def test_tokens_of_the_first_delivery_are_not_decoding():
    totals = Totals.of([made_run(tokens=range(5), first_tokens=3, seconds=2.0, first_seconds=1.0)])
    assert totals.tokens_per_second == 2.0


def test_acceptance_by_position_counts_only_drafts_that_long():
    short = fast_run(accepted_per_position=(1,), drafted_per_position=(2,))
    totals = Totals.of([fast_run(), short])
    assert totals.accepted_per_position == (3, 1)
    assert totals.drafted_per_position == (4, 2)
    assert totals.acceptance_by_position == (0.75, 0.5)
    never = Totals.of([fast_run(accepted_per_position=(), drafted_per_position=(2, 1))])
    assert never.acceptance_by_position == (0.0, 0.0)


def test_time_split_adds_up():
    totals = Totals.of([fast_run()])
    assert totals.draft_seconds + totals.verify_seconds + totals.rest_seconds == pytest.approx(totals.decode_seconds)


def test_compared_gives_both_sides_and_their_ratio():
    figures = compared([made_pair(), made_pair(question_id=2)])
    assert figures["plain_tokens_per_second"] == pytest.approx(4.0)
    assert figures["speculative_tokens_per_second"] == pytest.approx(8.0)
    assert figures["speedup"] == pytest.approx(2.0)
    assert figures["end_to_end_speedup"] == pytest.approx(2.0 / 1.5)
    assert figures["tokens_per_round"] == pytest.approx(5 / 3)
    assert figures["accepted_per_position"] == [4, 2]
    assert figures["identical"] is True
    assert figures["speculative"]["draft_sizes"] == {"2": 4}


@pytest.mark.parametrize("ids", [(1, 2, 3, 4), (1, 2, 3, 4, 6), (1, 2, 3, 4, 5, 6), ()])
def test_one_different_answer_is_named(ids):
    figures = compared([made_pair(), made_pair(speculative=fast_run(ids), question_id=7, turn=1)])
    assert figures["identical"] is False
    assert figures["different"] == [{"question_id": "7", "turn": 1}]


def test_spread_is_a_speedup_per_repeat():
    slow = fast_run(seconds=2.0)
    figures = compared([made_pair(), made_pair(speculative=slow, repeat=1)])
    assert figures["speedup_by_repeat"] == pytest.approx([2.0, 1.0])
    assert figures["speedup"] == pytest.approx(8 / 1.5 / 4)


def test_answers_of_one_delivery_have_no_speed():
    nothing = made_run(tokens=(1,), seconds=1.0, first_seconds=1.0)
    assert Totals.of([nothing]).tokens_per_second is None
    assert speedup(Totals.of([nothing]), Totals.of([nothing])) is None
