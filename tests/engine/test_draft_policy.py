"""The policy on simulated machines and texts: no target, no clock but the test's own.

Over 400 lines: every property is shown on the same simulated machine, drafters and record.
"""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from pilotfish.drafters.base import Drafter, DraftJob, Observation
from pilotfish.engine.draft_policy import EXPLORE_EVERY, LONGEST, DraftPolicy
from pilotfish.engine.pass_time import PassTime
from pilotfish.engine.survival import Survival
from pilotfish.errors import CacheFullError
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.terms import EMPTY_DRAFT, Draft

SAMPLER = Sampler(SamplingParams(seed=0), 8)
STEPS = {1: 10.4, 2: 10.4, 3: 10.5, 4: 12.9, 5: 14.2, 6: 15.3, 7: 18.5, 8: 21.0, 17: 40.0}
"""Milliseconds by rows, measured on a real machine."""


class Oracle(Drafter):
    """Knows the text; tells the truth as often as `accuracy` says at a position, in `seconds` per token."""

    def __init__(self, machine: "Machine", accuracy: Callable[[int], float], seconds: float = 0.0, **draft) -> None:
        self.machine, self.accuracy, self.seconds, self.draft = machine, accuracy, seconds, draft
        self.asked = 0

    def begin(self, request, capacity):
        pass

    def propose(self, jobs):
        self.asked += 1
        self.machine.now += self.seconds * sum(job.draft_len for job in jobs)
        return [self.one(job) for job in jobs]

    def one(self, job):
        place = len(job.tokens)
        tokens = [
            0 if self.machine.random.random() < self.accuracy(place + ahead) else 7 for ahead in range(job.draft_len)
        ]
        claimed = self.draft.get("confidence")
        return Draft.chain(tokens, confidence=None if claimed is None else [claimed] * len(tokens))

    def observe(self, observation):
        pass

    def end(self, request):
        pass


class Machine:
    """Generates a text of zeros with a drafter; a pass takes what `STEPS` says."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.time = PassTime({rows: milliseconds / 1000 for rows, milliseconds in STEPS.items()})
        self.now = 0.0
        self.drafted: list[int] = []

    def run(self, drafter: Drafter, length: int) -> float:
        """Tokens per second."""
        truth = PassTime({rows: milliseconds / 1000 for rows, milliseconds in STEPS.items()})
        drafter.begin(0, length + LONGEST)
        tokens = [0]
        started = self.now
        while len(tokens) <= length:
            (draft,) = drafter.propose([DraftJob(0, tokens, 1, LONGEST, SAMPLER, True)])
            self.drafted.append(len(draft))
            self.now += truth(1 + len(draft))
            accepted = next((i for i, token in enumerate(draft.tokens) if token != 0), len(draft))
            tokens = tokens + [0] * (accepted + 1)
            drafter.observe(Observation(0, tokens, {}))
        drafter.end(0)
        return (len(tokens) - 1) / (self.now - started)


def policy(machine, *drafters):
    return DraftPolicy(drafters, machine.time, lambda: machine.now)


PLAIN = 1000 / STEPS[1]


def fixed_rate(accuracy, draft_len):
    """Tokens per second at a fixed length, by the formula."""
    expected = sum(accuracy**ahead for ahead in range(draft_len + 1))
    return expected / PassTime({rows: milliseconds / 1000 for rows, milliseconds in STEPS.items()})(1 + draft_len)


def test_hopeless_drafter_costs_at_most_3_percent():
    machine = Machine()
    assert machine.run(policy(machine, Oracle(machine, lambda place: 0.0)), 500) >= 0.97 * PLAIN
    assert sum(machine.drafted[40:]) == 0, "given up for good"


def test_drafter_is_asked_less_while_a_text_gives_nothing():
    machine = Machine()
    turning = Oracle(machine, lambda place: float(place > 200))
    machine.run(policy(machine, turning), 400)
    quiet = machine.drafted.index(16)
    assert turning.asked < len(machine.drafted) - 100
    rest = machine.drafted[quiet + 1 :]
    assert min(rest[:-1]) >= 8, "and in every round again once it gives something"


def test_quiet_text_of_one_request_does_not_silence_another():
    machine = Machine()
    asked = {0: 0, 1: 0}

    class Counting(Oracle):
        def one(self, job):
            asked[job.request] += 1
            return super().one(job)

    chooser = policy(machine, Counting(machine, lambda place: 1.0))
    for request in (0, 1):
        chooser.begin(request, 1000)
    texts = {0: [0], 1: [0, 0]}  # the first is never told the truth, the second always
    for _ in range(200):
        jobs = [DraftJob(request, text, 1, 4, SAMPLER, True) for request, text in texts.items()]
        for job, draft in zip(jobs, chooser.propose(jobs), strict=True):
            accepted = len(draft) if job.request else 0
            texts[job.request] = [*job.tokens, *([0] * accepted if job.request else []), 0 if job.request else 5]
            chooser.observe(Observation(job.request, texts[job.request], {}))
    assert 60 < asked[0] < 120
    assert asked[1] == 200


def test_rounds_in_which_the_batch_leaves_no_room_do_not_make_a_text_quiet():
    machine = Machine()
    machine.time = PassTime({1: 0.010, 2: 0.0101, 6: 0.0105, 7: 0.02, 64: 0.6})
    drafter = Oracle(machine, lambda place: 1.0)
    chooser = policy(machine, drafter)
    for request in range(40):
        chooser.begin(request, 1000)
    jobs = [DraftJob(request, [0, 0], 1, 4, SAMPLER, True) for request in range(40)]
    for _ in range(50):
        assert not any(draft.tokens for draft in chooser.propose(jobs))
    assert drafter.asked == 0
    for _ in range(5):
        assert chooser.propose(jobs[:1])[0].tokens


@pytest.mark.parametrize("accuracy", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_policy_reaches_the_best_fixed_length(accuracy):
    rates = []
    for seed in range(5):
        machine = Machine(seed)
        rates.append(machine.run(policy(machine, Oracle(machine, lambda place: accuracy)), 1000))
    best = max([PLAIN, *(fixed_rate(accuracy, draft_len) for draft_len in range(1, LONGEST + 1))])
    assert sum(rates) / 5 >= 0.95 * best


def test_text_that_turns_to_copying_is_followed_within_30_rounds():
    machine = Machine()
    machine.run(policy(machine, Oracle(machine, lambda place: 0.0 if place < 300 else 1.0)), 1000)
    turned = 300  # rounds of one token each until then, at least
    assert max(machine.drafted[40 : turned - 20], default=0) == 0
    rates = [fixed_rate(1.0, draft_len) for draft_len in range(LONGEST + 1)]
    near = min(draft_len for draft_len, rate in enumerate(rates) if rate >= 0.92 * max(rates))
    assert min(machine.drafted[turned + 30 :]) >= near


def test_drafter_that_claims_nothing_is_trusted_by_how_long_it_has_been_right():
    """Copies 30 tokens of every 90: what it is worth changes faster than any average of the past."""
    machine = Machine()
    drafter = Oracle(machine, lambda place: 0.97 if place % 90 < 30 else 0.1)
    rate = machine.run(policy(machine, drafter), 1500)
    assert rate >= 1.4 * PLAIN, "1.39 with one average"
    survival = Survival()
    survival.begin(0)
    draft = Draft((1, 2, 3, 4), (-1, 0, 0, 2))
    fresh = survival.levels(0, draft)
    assert fresh[1] == fresh[2] < fresh[3], "by depth"
    survival.record(0, draft, fresh, [1, 3])
    assert survival.levels(0, draft)[0] == fresh[3], "two were right"
    survival.record(0, draft, survival.levels(0, draft), [7])
    assert survival.levels(0, draft) == fresh, "one was wrong"


def test_best_of_several_drafters_is_taken():
    machine = Machine()
    good, bad = Oracle(machine, lambda place: 0.9), Oracle(machine, lambda place: 0.1)
    rate = machine.run(policy(machine, bad, good), 1000)
    assert rate >= 0.9 * max(fixed_rate(0.9, draft_len) for draft_len in range(1, LONGEST + 1))


def test_confidence_separates_good_drafts_from_bad_ones():
    class Moody(Oracle):
        def one(self, job):
            sure = self.machine.random.random() < 0.5
            self.accuracy = lambda place: 0.95 if sure else 0.05
            self.draft = {"confidence": 0.6 if sure else 0.5}
            return super().one(job)

    machine = Machine()
    told = machine.run(policy(machine, Moody(machine, lambda place: 0.0)), 2000)
    best_blind = max([PLAIN, *(fixed_rate(0.5, draft_len) for draft_len in range(1, LONGEST + 1))])
    assert told > 1.2 * best_blind, "claims are learned for what they are worth, not taken as probabilities"


def test_expensive_drafter_that_does_not_pay_is_asked_rarely():
    machine = Machine()
    drafter = Oracle(machine, lambda place: 0.3, seconds=0.006)
    rate = machine.run(policy(machine, drafter), 3000)
    assert rate >= 0.98 * PLAIN
    assert 2 < drafter.asked < 3 * 3000 / EXPLORE_EVERY, "but it is not forgotten"


def test_expensive_drafter_that_pays_is_used():
    machine = Machine()
    rate = machine.run(policy(machine, Oracle(machine, lambda place: 0.9, seconds=0.001)), 1000)
    assert rate > 1.8 * PLAIN


def test_first_draft_and_single_delays_do_not_make_a_quick_drafter_look_dear():
    """A first draft takes in the prompt, and now and then the machine does something else."""
    machine = Machine()

    class Delayed(Oracle):
        def propose(self, jobs):
            self.seconds = 1e-6 if self.asked % 40 else 0.01
            return super().propose(jobs)

    drafter = Delayed(machine, lambda place: 0.5, confidence=0.5)
    machine.run(policy(machine, drafter), 400)
    assert drafter.asked == len(machine.drafted), "asked in every round"


def test_claims_within_a_level_are_told_apart_and_scaled_by_the_record():
    survival = Survival()
    survival.begin(0)
    draft = Draft((1, 2), (-1, -1), confidence=(0.46, 0.59))
    same = survival.levels(0, draft)
    assert same[0] == same[1]
    for round_ in range(400):
        survival.record(0, draft, same, [2 if round_ % 4 == 0 else 5])
    low, high = survival.of_nodes(0, draft, same)
    assert low < high
    assert 0.10 < (low + high) / 2 < 0.16, "one of the two came true in a quarter of the rounds"
    assert high == pytest.approx(survival.acceptance(0, same[1], 0.59))


def test_sampled_draft_is_neither_cut_nor_dropped():
    """What was drawn from its own law is verified whole, however little it promises."""
    machine = Machine()

    class Sampled(Oracle):
        def one(self, job):
            return Draft.chain([7] * job.draft_len, torch.full((job.draft_len, 8), 0.125))

    drafter = Sampled(machine, lambda place: 0.0)
    chooser = policy(machine, drafter)
    chooser.begin(0, 100)
    for length in range(1, 30):
        (draft,) = chooser.propose([DraftJob(0, [0] * length, 1, 3, SAMPLER, False)])
        assert len(draft) == 3
        assert draft.probs is not None
        chooser.observe(Observation(0, [0] * (length + 1), {}))


def test_tree_is_cut_to_its_best_nodes():
    machine = Machine()

    class Tree(Oracle):
        def one(self, job):
            return Draft((7, 0, 7, 0), (-1, -1, 1, 1), confidence=(0.05, 0.95, 0.05, 0.95))

    chooser = policy(machine, Tree(machine, lambda place: 0.0))
    chooser.begin(0, 500)
    for length in range(1, 300, 3):
        (draft,) = chooser.propose([DraftJob(0, [0] * length, 1, 4, SAMPLER, True)])
        chooser.observe(Observation(0, [0] * (length + 3), {}))
    assert draft == Draft((0, 0), (-1, 0))


def test_rows_of_a_large_batch_are_shared_out_by_worth():
    machine = Machine()
    machine.time = PassTime({1: 1.0, 2: 1.05})

    class Two(Oracle):
        def one(self, job):
            return Draft.chain([0 if job.request == 0 else 7] * 4, confidence=[0.99] * 4)

    chooser = policy(machine, Two(machine, lambda place: 0.0))
    for request in (0, 1):
        chooser.begin(request, 100)
    for length in range(1, 60):
        jobs = [DraftJob(request, [0] * length, 1, 4, SAMPLER, True) for request in (0, 1)]
        drafts = chooser.propose(jobs)
        machine.now += machine.time(2 + sum(map(len, drafts)))
        for request in (0, 1):
            chooser.observe(Observation(request, [0] * (length + 1), {}))
    assert len(drafts[0]) == 4
    assert len(drafts[1]) <= 1, "nearly free rows go to what is worth most"
    chooser._pass_time = PassTime({1: 1.0, 2: 2.0})
    drafts = chooser.propose([DraftJob(request, [0] * 60, 1, 4, SAMPLER, True) for request in (0, 1)])
    assert drafts == [EMPTY_DRAFT, EMPTY_DRAFT], "a row that costs a pass never pays"


def test_pass_time_interpolates_and_follows_what_it_observes():
    table = PassTime({1: 10.0, 3: 12.0, 5: 20.0})
    assert [table(rows) for rows in (1, 2, 3, 4, 5, 7)] == [10.0, 11.0, 12.0, 16.0, 20.0, 28.0]
    for _ in range(200):
        table.observe(3, 15.0)
    assert table(3) == pytest.approx(15.0, rel=0.01)
    assert table(1) < table(3) < table(5)
    before = table(3)
    table.observe(3, 1e6)
    assert table(3) < 1.3 * before, "one disturbance does not spoil the table"


class Fixed(Drafter):
    """Proposes the same chain every time."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def begin(self, request, capacity):
        pass

    def propose(self, jobs):
        return [Draft.chain(self.tokens, confidence=[0.9] * len(self.tokens)) for _ in jobs]

    def observe(self, observation):
        pass

    def end(self, request):
        pass


NEARLY_FREE = {1: 1.0, 2: 1.0001, 20: 1.001}


def rounds(seconds, drafters, texts, *, coupled=True):
    """One round per text of committed tokens, on a machine whose passes take `seconds`; the drafts that were chosen."""
    machine = Machine()
    machine.time, truth = PassTime(seconds), PassTime(seconds)
    chooser = policy(machine, *drafters)
    chooser.begin(0, 1000)
    tokens, chosen = [0], []
    for text in texts:
        (draft,) = chooser.propose([DraftJob(0, tokens, 1, 4, SAMPLER, coupled)])
        chosen.append(draft)
        machine.now += truth(1 + len(draft))
        tokens = tokens + list(text)
        chooser.observe(Observation(0, tokens, {}))
    return chosen


def test_drafters_that_differ_become_branches_where_rows_are_nearly_free():
    chosen = rounds(NEARLY_FREE, [Fixed(1, 2), Fixed(1, 3)], [(1, 2, 5), (1, 3, 5)] * 20)
    assert set(zip(chosen[-1].tokens, chosen[-1].parents, strict=True)) == {(1, -1), (2, 0), (3, 0)}, "1 stands once"


def test_branch_that_never_comes_true_is_dropped_for_its_row():
    chosen = rounds({1: 1.0, 20: 1.5}, [Fixed(1, 2), Fixed(1, 3)], [(1, 2, 5)] * 60)
    assert chosen[-1].tokens == (1, 2)


def test_drafts_are_not_joined_for_a_ratio_rule():
    chosen = rounds(NEARLY_FREE, [Fixed(1, 2), Fixed(1, 3)], [(1, 2, 5), (1, 3, 5)] * 20, coupled=False)
    assert all(draft.is_chain for draft in chosen)


class Full(Fixed):
    """Has no room for a second request, and remembers which it was told of."""

    def __init__(self) -> None:
        super().__init__(1)
        self.requests: set[int] = set()

    def begin(self, request, capacity):
        if self.requests:
            raise CacheFullError("no room")
        self.requests.add(request)

    def end(self, request):
        self.requests.remove(request)


class Broken(Fixed):
    def end(self, request):
        raise OSError("disk full")


def test_request_that_one_drafter_has_no_room_for_is_left_with_none():
    machine = Machine()
    roomy, full = Full(), Full()
    full.requests.add(7)
    with pytest.raises(CacheFullError):
        policy(machine, roomy, full).begin(0, 10)
    assert roomy.requests == set()


def test_drafter_that_fails_at_the_end_does_not_keep_the_others_from_ending():
    machine = Machine()
    full = Full()
    chooser = policy(machine, full, Broken(1))
    chooser.begin(0, 10)
    with pytest.raises(OSError, match="disk full"):
        chooser.end(0)
    assert full.requests == set()


def test_passes_with_prompt_rows_and_idle_times_teach_nothing():
    machine = Machine()
    chooser = policy(machine, Fixed(1))
    chooser.begin(0, 10)
    before = [machine.time(rows) for rows in (1, 2)]
    chooser.propose([DraftJob(0, [5, 6], 2, 4, SAMPLER, True)])
    machine.now += 5.0
    chooser.observe(Observation(0, [5, 6, 7], {}))
    chooser.propose([DraftJob(0, [5, 6, 7], 2, 4, SAMPLER, True)])
    chooser.end(0)
    chooser.begin(1, 10)
    machine.now += 5.0
    chooser.observe(Observation(1, [5, 6], {}))
    assert [machine.time(rows) for rows in (1, 2)] == before


def drafted_per_request(size, accuracy=0.75, rounds=120):
    """Mean tokens drafted per request and round in a batch of `size`, after the policy has learned; and the most."""
    machine = Machine(size)
    truth = PassTime({rows: milliseconds / 1000 for rows, milliseconds in STEPS.items()})
    chooser = policy(machine, Oracle(machine, lambda place: accuracy))
    for request in range(size):
        chooser.begin(request, 10 * rounds)
    texts = {request: [0] for request in range(size)}
    lengths = []
    for _ in range(rounds):
        jobs = [DraftJob(request, tokens, 1, LONGEST, SAMPLER, True) for request, tokens in texts.items()]
        drafts = chooser.propose(jobs)
        machine.now += truth(size + sum(map(len, drafts)))
        for job, draft in zip(jobs, drafts, strict=True):
            accepted = next((place for place, token in enumerate(draft.tokens) if token != 0), len(draft))
            texts[job.request] = [*job.tokens, *[0] * (accepted + 1)]
            chooser.observe(Observation(job.request, texts[job.request], {}))
        lengths.append(sum(map(len, drafts)) / size)
    return sum(lengths[rounds // 3 :]) / len(lengths[rounds // 3 :])


def test_drafts_shrink_smoothly_to_nothing_as_the_batch_grows():
    lengths = [drafted_per_request(size) for size in (1, 2, 3, 4, 8, 16, 48)]
    assert lengths[0] > 1
    assert all(larger <= smaller + 0.1 for smaller, larger in pairwise(lengths)), lengths
    assert any(0.2 < length < 0.8 * lengths[0] for length in lengths), "there is a way between all and nothing"
    assert lengths[-1] < 0.05, "rows of a large batch cost as much as what they bring"


@pytest.mark.parametrize(("milliseconds", "asked"), [({1: 10.0, 64: 20.0}, 3), ({1: 10.0, 2: 20.0, 64: 640.0}, 0)])
def test_nobody_is_asked_for_drafts_where_rows_are_too_dear_for_any(milliseconds, asked):
    machine = Machine()
    machine.time = PassTime({rows: each / 1000 for rows, each in milliseconds.items()})
    drafter = Oracle(machine, lambda place: 1.0)
    drafter.top_successors = 8
    chooser = policy(machine, drafter)
    for request in range(4):
        chooser.begin(request, 50)
    for _ in range(3):
        jobs = [DraftJob(request, [0, 0], 1, LONGEST, SAMPLER, True) for request in range(4)]
        drafts = chooser.propose(jobs)
        assert all(len(draft) > 0 for draft in drafts) == (asked > 0)
        assert chooser.top_successors == (8 if asked else 0), "nobody looks for what no drafter will use"
        for request in range(4):
            chooser.observe(Observation(request, [0, 0, 0], {}))
    assert drafter.asked == asked


def test_pass_of_more_rows_than_were_measured_goes_on_in_a_straight_line():
    times = PassTime({1: 1.0, 64: 4.0, 128: 8.0})
    assert times(256) == pytest.approx(16.0)
    assert times(96) == pytest.approx(6.0)
