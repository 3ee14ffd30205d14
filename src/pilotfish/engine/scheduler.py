"""Continuous batching: who takes part in the next round, and with how many rows.

Owns the queue and the running requests; requests join and leave at every round. What a round computes is `round.py`'s,
where requests lie in the caches `places.py`'s. Nothing that is decided here shows in any output: only in when it comes.

The rules, which bound every wait:

- Requests are admitted in the order they came; none overtakes another.
- Every admitted request takes part in every round, but where it waits for another that reads the same page for both.
  Those at their pending token get their row and their draft first; prompts share the rest of the row budget as equally
  as their lengths allow, so that of n prompts one of s tokens is read within ceil(s * n / budget) rounds, however long
  the others are.
- Where room runs out, the request that came last goes back to the head of the queue and later reads its tokens again.
  So the oldest request is never held up, and each in turn becomes the oldest.
- A request that is cancelled or past its deadline ends before the next round, and its place is free for that round.
"""

import logging
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence

from pilotfish.drafters.base import Drafter
from pilotfish.engine.places import Places
from pilotfish.engine.request import NOWHERE, PROMPT_ROWS, Request
from pilotfish.engine.round import run_round
from pilotfish.errors import CacheFullError
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.models.base import Executor
from pilotfish.models.devices import torch_threads
from pilotfish.terms import FinishReason
from pilotfish.verify import Rule

MAX_RUNNING = 64
"""Most requests in a round."""

SHARED_ROWS = 128
"""Rows of a pass in which prompts are read while others decode: a longer one would hold up their next tokens."""

LEAST_ROWS = 64
"""Rows that prompts get at least, together; as many as may run, so that each gets one."""

logger = logging.getLogger(__name__)

Listener = Callable[[Request], None]


class Scheduler:
    """Runs rounds over the requests it was given, until each has ended.

    `add` and `cancel` may be called from any thread; `step` runs the rounds, one at a time.

    Args:
        target, drafter, rule: what a round needs.
        max_running: most requests in a round, 1 to `LEAST_ROWS`.
    """

    def __init__(
        self, target: Executor, drafter: Drafter | None, rule: Rule, *, max_running: int = MAX_RUNNING
    ) -> None:
        assert 1 <= max_running <= LEAST_ROWS, "every running request gets a row"
        self._target = target
        self._rule = rule
        self.max_running = max_running
        self.places = Places(target, drafter)
        self._arrivals: deque[tuple[Request, Listener]] = deque()
        self._cancelled: deque[Request] = deque()
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._suspects: list[Request] = []
        self._listeners: dict[Request, Listener] = {}
        self._lock = threading.RLock()
        self.totals = SpeculationCounters()
        """Counts of all requests that are over."""
        self.preemptions = 0
        self.on_work: Callable[[], None] = _nothing
        """Called, by whoever brings it, when there is something new to do."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests without a place, those that were preempted included."""
        return len(self._waiting) + len(self._arrivals) + len(self._suspects)

    @property
    def is_idle(self) -> bool:
        """Nothing to do."""
        return not (self._running or self.waiting or self._cancelled)

    def counted(self) -> SpeculationCounters:
        """Counts of all requests, those on their way included."""
        counters = SpeculationCounters()
        with self._lock:  # whoever is dropped meanwhile would be in neither part of the sum
            counters.add(self.totals)
            for request in (*self._running, *self._waiting, *self._suspects):
                counters.add(request.counters)
        return counters

    def add(self, request: Request, listener: Listener) -> None:
        """Queues a request. The listener is called, by the thread that steps, whenever it was delivered tokens and when
        it is over; what it raises is logged."""
        self._arrivals.append((request, listener))
        self.on_work()

    def cancel(self, request: Request) -> None:
        """Ends a request before the next round; nothing where it is over."""
        self._cancelled.append(request)
        self.on_work()

    def drop(self, requests: Sequence[Request]) -> None:
        """Ends requests at once, whose listeners hear no more."""
        with self._lock:
            self._take_in()
            for request in requests:
                if request in self._listeners:
                    self._listeners[request] = _nobody
                    if not request.is_over:
                        request.abort(FinishReason.CANCELLED)
                    self._leave(request)

    def abandon(self, error: Exception) -> None:
        """Makes every request fail, their listeners told."""
        with self._lock:
            self._take_in()
            for request in list(self._listeners):
                if request.is_over:
                    self._finish(request)
                else:
                    self._fail(request, error)

    def step(self) -> bool:
        """Runs one round, if there is anybody to run it for.

        Returns:
            whether there was.
        """
        with self._lock:
            self._take_in()
            self._end_cancelled()
            self._admit()
            # After a failed round each request of it goes through one alone, so that only the culprit fails.
            batch = self._suspects[:1] or self._running
            if not batch:
                return False
            if self._suspects and not self._seat_alone(batch[0]):
                return True
            batch = self._fitting(list(batch))
            if batch:
                self._run(batch)
            return True

    def preempt(self, request: Request) -> None:
        """Takes a running request's place away; it goes on when there is room again, with the same output."""
        with self._lock:
            self._running.remove(request)
            self.places.give_back(request)
            insort(self._waiting, request, key=_arrival)
            self.preemptions += 1

    def newest(self) -> Request | None:
        """The running request that came last."""
        return self._running[-1] if self._running else None

    def _take_in(self) -> None:
        while self._arrivals:
            request, listener = self._arrivals.popleft()
            self._listeners[request] = listener
            insort(self._waiting, request, key=_arrival)

    def _end_cancelled(self) -> None:
        ending: list[tuple[Request, FinishReason]] = []
        while self._cancelled:
            request = self._cancelled.popleft()
            if request in self._listeners:
                ending.append((request, FinishReason.CANCELLED))
        now = time.monotonic()
        for request in (*self._running, *self._waiting, *self._suspects):
            if request.deadline is not None and now >= request.deadline:
                ending.append((request, FinishReason.DEADLINE))
        for request, reason in ending:
            if not request.is_over:
                request.abort(reason)
                self._finish(request)

    def _admit(self) -> None:
        while self._waiting and len(self._running) + len(self._suspects) < self.max_running:
            request = self._waiting[0]
            if self._seat(request):
                del self._waiting[0]
                insort(self._running, request, key=_arrival)
            elif not request.is_over:
                return

    def _seat_alone(self, suspect: Request) -> bool:
        """Gives a suspect a place, whoever has to make room for it; false where it failed."""
        while not self._seat(suspect) and not suspect.is_over:
            self.preempt(self._running[-1])
        return not suspect.is_over

    def _seat(self, request: Request) -> bool:
        """Gives a request a place. Where none is free though nobody runs, or it cannot be given one, it fails."""
        if request.sequence != NOWHERE:
            return True
        try:
            if self.places.take(request, self._running):
                return True
            if self._running:
                return False
            raise CacheFullError(
                f"request {request.key} has {len(request.tokens)} tokens and may get {request.ending.budget} more: the "
                "cache has no room for it though nothing else runs; close other sequences or give it more memory"
            )
        except Exception as error:
            self._fail(request, error)
            return False

    def _fitting(self, batch: list[Request]) -> list[Request]:
        """The batch with its rows shared out, without those that have to make room for the others."""
        while batch:
            reading = [request for request in batch if self.places.unread(request) > 1]
            late = self.places.catch_up(reading) if len(reading) > 1 else []
            batch = [request for request in batch if request not in late]
            self._share_rows(batch)
            if self.places.reserve(batch):
                break
            newest = max((request for request in self._running), key=_arrival, default=batch[-1])
            if len(batch) == 1 and newest is batch[0]:
                self._fail(
                    newest, CacheFullError("the cache has no room for the only request: other sequences hold its pages")
                )
            else:
                self.preempt(newest)
            batch = [request for request in batch if request is not newest]
        return batch

    def _share_rows(self, batch: Sequence[Request]) -> None:
        unread = [self.places.unread(request) for request in batch]
        reading = [(request, rows) for request, rows in zip(batch, unread, strict=True) if rows > 1]
        decoding = len(batch) - len(reading)
        budget = PROMPT_ROWS if decoding == 0 else min(max(SHARED_ROWS - decoding, LEAST_ROWS), PROMPT_ROWS)
        for request in batch:
            request.read_limit = 1
        for (request, _), rows in zip(reading, fair_shares([rows for _, rows in reading], budget), strict=True):
            request.read_limit = rows

    def _run(self, batch: list[Request]) -> None:
        try:
            with torch_threads(self._target.torch_threads):
                delivered = run_round(batch, self._target, self.places.drafter, self._rule)
        except Exception as error:
            self._recover(batch)
            if len(batch) > 1 or batch[0] not in self._suspects:
                logger.warning("a round of %d requests failed, each is tried alone: %r", len(batch), error)
                return
            self._fail(batch[0], error)
            return
        except BaseException:  # an interrupt of the caller's: the requests' tokens stand, their caches may not
            self._recover(batch)
            raise
        if self._suspects:
            insort(self._running, self._suspects.pop(0), key=_arrival)
        for request in batch:
            self.places.publish(request)
        for request in delivered:
            if request.is_over:
                self._finish(request)
            else:
                self._tell(request)

    def _recover(self, batch: Sequence[Request]) -> None:
        """After a round broke off: all places are given back, whatever they hold, and every request is a suspect, but
        for those that had been delivered their last tokens."""
        for request in batch:
            try:
                self.places.give_back(request, intact=False)
            except Exception:
                logger.exception("giving back the place of request %d failed", request.key)
        self._running = [request for request in self._running if request not in batch]
        self._suspects = [*batch, *(request for request in self._suspects if request not in batch)]
        for request in [request for request in batch if request.is_over]:
            self._finish(request)

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        self._finish(request)

    def _finish(self, request: Request) -> None:
        """A request is over: it leaves, and whoever listens hears so."""
        listener = self._listeners[request]
        self._leave(request)
        _call(listener, request)

    def _leave(self, request: Request) -> None:
        for group in (self._running, self._waiting, self._suspects):
            if request in group:
                group.remove(request)
        del self._listeners[request]
        self.totals.add(request.counters)
        try:
            self.places.give_back(request)
        except Exception:
            logger.exception("giving back the place of request %d failed", request.key)

    def _tell(self, request: Request) -> None:
        _call(self._listeners[request], request)


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """Divides `budget` so that nobody gets more than wanted, and less than an equal share only who wants no more.

    The remainder of a division goes to those who want most; of equals the later.
    """
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    left = budget
    for done, place in enumerate(order):
        shares[place] = min(wanted[place], left // (len(order) - done))
        left -= shares[place]
    return shares


def _arrival(request: Request) -> int:
    return request.key


def _nothing() -> None:
    pass


def _nobody(request: Request) -> None:
    pass


def _call(listener: Listener, request: Request) -> None:
    try:
        listener(request)
    except Exception:
        logger.exception("the listener of request %d failed", request.key)
