"""When requests are sent, and what is noted of each; on a clock of our own where that matters."""

import threading
from itertools import pairwise

import pytest

from pilotfish.bench.http_client import Chunk, SpeculationReport
from pilotfish.bench.load import Closed, Job, Open, poisson_starts, serve
from pilotfish.errors import InvalidInputError, RemoteServerError

JOBS = [Job(number, ({"role": "user", "content": str(number)},), {}) for number in range(12)]


class Clock:
    """Stands still until somebody sleeps or works."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_poisson_starts_are_replayed_by_their_seed_and_have_the_rate():
    starts = poisson_starts(4.0, 4000, seed=3)
    assert starts == poisson_starts(4.0, 4000, seed=3)
    assert starts != poisson_starts(4.0, 4000, seed=4)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *starts])]
    assert min(gaps) > 0
    # Mean and standard deviation of exponential gaps are both 1 / rate; 4000 of them have them within 6 %.
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.25, rel=0.06)
    assert deviation == pytest.approx(0.25, rel=0.06)


def test_closed_load_keeps_so_many_requests_going_and_their_order():
    lock, going, most = threading.Lock(), 0, 0
    together = threading.Barrier(3)

    def ask(job):
        nonlocal going, most
        with lock:
            going += 1
            most = max(most, going)
        together.wait(timeout=20)  # nobody gets on before three are there
        with lock:
            going -= 1
        yield Chunk(f"answer {job.key}")

    served = Closed(3).run(JOBS, ask)
    assert most == 3
    assert [one.key for one in served] == [job.key for job in JOBS]
    assert [one.text for one in served] == [f"answer {job.key}" for job in JOBS]


def test_open_load_sends_on_time_and_counts_from_when_a_request_was_due():
    clock, lock, asked = Clock(), threading.Lock(), []

    def ask(job):
        with lock:
            asked.append(job.key)
        yield Chunk("well")

    served = Open(2.0, seed=7).run(JOBS, ask, clock=clock, sleep=clock.sleep)
    starts = poisson_starts(2.0, len(JOBS), 7)
    assert [one.due for one in served] == pytest.approx([100.0 + start for start in starts])
    assert sorted(asked) == list(range(12))
    assert clock.now == pytest.approx(100.0 + starts[-1])


def test_open_load_does_not_wait_for_answers():
    """The first request is answered only when the last one has been sent."""
    everybody = threading.Event()
    lock, count = threading.Lock(), 0

    def ask(job):
        nonlocal count
        with lock:
            count += 1
            if count == len(JOBS):
                everybody.set()
        assert everybody.wait(timeout=20)
        yield Chunk("at last")

    assert len(Open(1e6).run(JOBS, ask)) == len(JOBS)


def test_served_notes_every_delivery_and_the_servers_counts():
    clock = Clock()

    def ask(job):
        clock.sleep(0.5)
        yield Chunk("a b", ("a", " b"), (True, False))
        clock.sleep(0.25)
        yield Chunk("", ("",), (False,))
        yield Chunk("", finish_reason="stop")
        clock.sleep(0.25)
        yield Chunk("", completion_tokens=4, speculation=SpeculationReport(2, 5, 1))

    one = serve(JOBS[0], ask, due=99.0, clock=clock)
    assert one.deliveries == [(100.5, 2), (100.75, 1)]
    assert (one.text, one.due, one.ended, one.tokens) == ("a b", 99.0, 101.0, 4)
    assert (one.rounds, one.drafted_tokens, one.accepted_tokens) == (2, 5, 1)


def test_tokens_without_a_usage_are_one_a_delivery():
    one = serve(JOBS[0], lambda job: iter([Chunk("a"), Chunk("b"), Chunk("", finish_reason="stop")]), due=0.0)
    assert one.tokens == 2


def test_refusal_is_a_result():
    def ask(job):
        raise RemoteServerError("busy", 429)
        yield

    one = serve(JOBS[0], ask, due=0.0)
    assert (one.error, one.status, one.tokens) == ("busy", 429, 0)


@pytest.mark.parametrize(
    "level",
    [lambda: Closed(0), lambda: Closed(10**9), lambda: Open(0.0), lambda: Open(float("nan"))],
)
def test_load_that_cannot_be_is_refused(level):
    with pytest.raises(InvalidInputError, match="expected"):
        level()
