"""Pass costs measured with a fake executor and a fake clock: what is timed, how often, in which order."""

import pytest
import torch

from pilotfish.errors import CacheFullError, InvalidInputError
from pilotfish.models.base import Executor, PassOutput
from pilotfish.models.pass_cost import PassCost, measure_pass, outside_native_share, row_cost
from tests.engine.tiny import tiny_config, tiny_target


class FakeExecutor(Executor):
    """Takes as long for a pass as `duration(rows, number of the pass)` says, on its own clock."""

    def __init__(self, duration, capacity=10_000):
        self.config = tiny_config()
        self.duration = duration
        self.capacity = capacity
        self.now = 0.0
        self.lengths = {}
        self.nodes = {}
        self.passes = []  # per pass: the rows of each segment, and their committed length

    @property
    def exact(self):
        return True

    def clock(self):
        return self.now

    def open(self, capacity):
        if sum(self.nodes.values(), capacity) > self.capacity:
            raise CacheFullError("no room")
        number = len(self.lengths) + 7
        self.lengths[number], self.nodes[number] = 0, 0
        return number

    def close(self, sequence):
        del self.lengths[sequence]

    def length(self, sequence):
        return self.lengths[sequence]

    def forward(self, segments, *, layers=None, hidden_in=None, capture=()):
        rows = sum(len(segment.tokens) for segment in segments)
        for segment in segments:
            assert segment.parents is None
            assert segment.first_node == 0
            assert all(0 <= token < self.config.vocab_size for token in segment.tokens)
        wanted = sum(len(segment.tokens) - segment.logits_from for segment in segments)
        if wanted:
            assert wanted == rows, "every row of a timed pass has logits"
            self.passes.append([(len(segment.tokens), self.lengths[segment.sequence]) for segment in segments])
            self.now += self.duration(rows, len(self.passes))
        else:
            self.now += 0.25  # the context's own pass
        return PassOutput(torch.zeros((wanted, self.config.vocab_size)))

    def keep(self, sequence, path):
        self.lengths[sequence] += len(path)

    def truncate(self, sequence, length):
        self.lengths[sequence] = length


def linear(rows, _):
    return 1.0 + 0.1 * (rows - 1)


def test_measure_pass_gives_the_time_of_each_number_of_rows():
    executor = FakeExecutor(linear)
    costs = measure_pass(executor, (1, 4, 64), context=10, repeats=5, clock=executor.clock)
    assert [cost.rows for cost in costs] == [1, 4, 64]
    assert [cost.seconds for cost in costs] == pytest.approx([1.0, 1.3, 7.3])
    assert [cost.spread for cost in costs] == pytest.approx([0, 0, 0], abs=1e-9)
    assert [cost.repeats for cost in costs] == [5, 5, 5]
    assert all(length == 10 for segments in executor.passes for _, length in segments), "nothing was committed"
    assert executor.lengths == {}, "the sequence was closed"


def test_measure_pass_interleaves_row_counts_after_a_warm_up():
    executor = FakeExecutor(linear)
    measure_pass(executor, (1, 2, 8), context=0, repeats=3, clock=executor.clock)
    assert [rows for ((rows, _),) in executor.passes] == [1, 2, 8, 1, 2, 8, 8, 2, 1, 1, 2, 8]


def test_measure_pass_takes_medians_that_one_disturbance_does_not_move():
    executor = FakeExecutor(lambda rows, number: 100.0 if number == 5 else 1.0 * number if number > 9 else 1.0)
    (cost,) = measure_pass(executor, (1,), context=0, repeats=9, clock=executor.clock)
    assert cost.seconds == 1.0  # passes 2 to 10, of which the fifth took 100 and the tenth 10
    assert cost.spread == 0.0
    executor = FakeExecutor(lambda rows, number: float(number))
    (cost,) = measure_pass(executor, (1,), context=0, repeats=5, clock=executor.clock)
    assert (cost.seconds, cost.spread) == (4.0, 2.0)  # of 2, 3, 4, 5, 6


def test_measure_pass_does_not_begin_a_round_that_would_end_after_the_limit():
    executor = FakeExecutor(lambda rows, _: 1.0)
    # The context takes 0.25, the warm-up 2, each round 2: a third round would end at 8.25.
    costs = measure_pass(executor, (1, 3), context=5, repeats=50, time_limit=7.0, clock=executor.clock)
    assert [cost.repeats for cost in costs] == [2, 2]
    assert executor.now <= 7.0


def test_measure_pass_times_one_round_even_beyond_the_limit():
    executor = FakeExecutor(linear)
    costs = measure_pass(executor, (1, 9), context=5, time_limit=0.01, clock=executor.clock)
    assert [cost.repeats for cost in costs] == [1, 1]
    assert [cost.spread for cost in costs] == [0.0, 0.0]


def test_measure_pass_deals_rows_to_sequences_each_with_its_own_context():
    executor = FakeExecutor(linear)
    (cost,) = measure_pass(executor, (7,), context=4, sequences=3, repeats=1, clock=executor.clock)
    assert cost.rows == 7
    assert executor.passes == [[(3, 4), (2, 4), (2, 4)]] * 2
    assert executor.lengths == {}


def test_measure_pass_closes_what_it_opened_when_the_cache_is_full():
    executor = FakeExecutor(linear, capacity=20)
    executor.nodes[0] = 0
    executor.open = lambda capacity, opened=executor.open: (
        opened(capacity) if not executor.lengths else (_ for _ in ()).throw(CacheFullError("no room"))
    )
    with pytest.raises(CacheFullError):
        measure_pass(executor, (2,), context=4, sequences=2, clock=executor.clock)
    assert executor.lengths == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ()}, "rows is empty"),
        ({"rows": (0, 1)}, "rows holds 0: expected at least one row for each of 1 sequences"),
        ({"rows": (4, 2), "sequences": 3}, "rows holds 2: expected at least one row for each of 3 sequences"),
        ({"context": -1}, "context=-1"),
        ({"sequences": 0}, "sequences=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"time_limit": 0.0}, "time_limit=0.0"),
        ({"time_limit": float("nan")}, "time_limit=nan"),
        ({"rows": (1, 33), "context": 64}, "need 97 positions, the model has 96"),
    ],
)
def test_measure_pass_refuses_what_it_cannot_measure(options, message):
    executor = FakeExecutor(linear)
    with pytest.raises(InvalidInputError, match=message):
        measure_pass(executor, **{"rows": (1,), "context": 0, **options})
    assert executor.passes == []


def test_measure_pass_works_up_to_the_whole_context_of_a_real_executor():
    costs = measure_pass(tiny_target(), (1, 2, 32), context=64, repeats=2)
    assert [cost.rows for cost in costs] == [1, 2, 32]
    assert all(cost.seconds > 0 for cost in costs)


def test_row_cost_is_the_share_of_a_pass_that_one_more_row_takes():
    one = PassCost(1, 2.0, 0.0, 1)
    assert row_cost(one, one) is None
    assert row_cost(PassCost(5, 2.0, 0.0, 1), one) == 0.0
    assert row_cost(PassCost(5, 10.0, 0.0, 1), one) == 1.0
    assert row_cost(PassCost(3, 3.0, 0.0, 1), one) == 0.25


def test_outside_native_share_is_unknown_without_native_code():
    assert outside_native_share(tiny_target(), context=0) is None
