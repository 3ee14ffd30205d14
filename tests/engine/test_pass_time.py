"""The times of a pass as they are learned on a machine that changes its pace, and what the policy makes of them."""

import math
import random

import pytest

from pilotfish.drafters.base import DraftJob, Observation
from pilotfish.engine.draft_policy import LONGEST
from pilotfish.engine.pass_time import PassTime
from tests.engine.test_draft_policy import SAMPLER, STEPS, Machine, Oracle, policy

SECONDS = {rows: milliseconds / 1000 for rows, milliseconds in STEPS.items()}
TRUTH = PassTime(SECONDS)


def steady(numbers):
    while True:
        yield 1.0


def bursts(numbers):
    """Alone, or with one or four others on the same processor, for fifty passes each time."""
    pace = 1.0
    while True:
        if numbers.random() < 0.02:
            pace = numbers.choice((1.0, 1.0, 2.0, 5.0))
        yield pace * math.exp(numbers.gauss(0, 0.15))


def drifting(numbers):
    pace = 1.0
    while True:
        pace = min(6.0, max(1.0, pace * math.exp(numbers.gauss(0, 0.1))))
        yield pace * math.exp(numbers.gauss(0, 0.15))


def run(accuracy, paces, seed, length=500):
    """Tokens per second over plain decoding, both at the machine's true times and an even pace."""
    machine = Machine(seed)
    pace = paces(random.Random(100 + seed))
    chooser = policy(machine, Oracle(machine, lambda place: accuracy))
    chooser.begin(0, length + LONGEST)
    tokens, even = [0], 0.0
    while len(tokens) <= length:
        (draft,) = chooser.propose([DraftJob(0, tokens, 1, LONGEST, SAMPLER, True)])
        machine.now += TRUTH(1 + len(draft)) * next(pace)
        even += TRUTH(1 + len(draft))
        accepted = next((place for place, token in enumerate(draft.tokens) if token != 0), len(draft))
        tokens = tokens + [0] * (accepted + 1)
        chooser.observe(Observation(0, tokens, {}))
    return (len(tokens) - 1) / even * TRUTH(1)


@pytest.mark.parametrize("paces", [steady, bursts, drifting])
def test_hopeless_drafter_costs_at_most_3_percent_on_a_machine_of_any_pace(paces):
    """Passes of a few drafted rows that were run in quiet moments must not look cheaper than a plain step."""
    for seed in range(2):
        assert run(0.0, paces, seed) >= 0.97


@pytest.mark.parametrize("accuracy", [0.3, 0.7])
def test_changing_pace_costs_the_policy_little(accuracy):
    even = sum(run(accuracy, steady, seed) for seed in range(2))
    for paces in (bursts, drifting):
        assert sum(run(accuracy, paces, seed) for seed in range(2)) >= 0.9 * even


def test_more_rows_never_take_less_time():
    numbers = random.Random(0)
    table = PassTime(SECONDS)
    table(12)
    for _ in range(500):
        rows = numbers.randint(1, 12)
        table.observe(rows, SECONDS[1] * math.exp(numbers.gauss(0, 1)))
        times = [table(count) for count in range(1, 18)]
        assert times == sorted(times)


def test_pace_is_learned_for_all_rows_and_for_those_not_looked_at_yet():
    table = PassTime({1: 1.0, 4: 2.0, 16: 5.0})
    for _ in range(100):
        table.observe(1, 3.0)
    assert table(1) == pytest.approx(3.0, rel=0.02)
    assert table(4) / table(1) == pytest.approx(2.0, rel=0.5)
    assert table(16) / table(4) == pytest.approx(2.5, rel=0.1)


def test_row_that_is_dearer_than_calibrated_is_found_out():
    table = PassTime({1: 1.0, 2: 1.0, 3: 1.0})
    for _ in range(200):
        table.observe(1, 1.0)
        table.observe(2, 1.5)
    assert table(2) / table(1) == pytest.approx(1.5, rel=0.1)
    assert table(3) >= table(2)


def test_delays_do_not_pile_up_on_numbers_of_rows_that_are_not_tried():
    """Each delay of a pass of 3 rows used to lift what 4 rows were thought to take, and nothing let it down again."""
    times = PassTime(SECONDS)
    calibrated = [TRUTH(rows) for rows in range(1, 17)]
    for _ in range(40):
        times.observe(3, 3 * TRUTH(3))
        for _ in range(60):
            times.observe(3, TRUTH(3))
    learned = [times(rows) for rows in range(1, 17)]
    assert [now / then for now, then in zip(learned, calibrated, strict=True)] == pytest.approx([1.0] * 16, abs=0.02)
