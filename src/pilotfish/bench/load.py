"""Load on a server: when requests are sent, and what came of each.

Owns the two kinds of load and the clock readings. *Closed*: so many streams at a time, each sending its next request
when the last one is answered, as a pool of workers does. *Open*: requests come when they come (a Poisson process),
whether the server keeps up or not, as people do; a request's time counts from when it was due, so that a server that
falls behind cannot hide it. Knows no protocol: asking is a function. Knows no figures.
"""

import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pilotfish.bench.http_client import Chunk
from pilotfish.errors import InvalidInputError, RemoteServerError

MOST_AT_A_TIME = 1024
"""Each has a thread and a connection."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request to send.

    Attributes:
        key: jobs of one key must be answered with the same text.
        messages: of the chat.
        options: further fields of the request.
    """

    key: Hashable
    messages: tuple[Mapping[str, str], ...]
    options: Mapping[str, Any]


Clock: TypeAlias = Callable[[], float]
Ask: TypeAlias = Callable[[Job], Iterator[Chunk]]


@dataclass(slots=True)
class Served:
    """What came of one request.

    Attributes:
        due: when it was to be sent; all readings are of one clock.
        deliveries: when text or tokens came, and how many tokens; 0 where the server does not tell.
        ended: when its stream was over.
        tokens: delivered, by the server's usage where it tells one.
        rounds, drafted_tokens, accepted_tokens: the server's counts, where it tells them.
        error: why there is no whole answer.
        status: the HTTP status of a refusal.
    """

    key: Hashable
    due: float
    text: str = ""
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    error: str | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """So many requests at a time.

    Raises:
        InvalidInputError: fewer than one, or more than `MOST_AT_A_TIME`.
    """

    concurrency: int

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MOST_AT_A_TIME:
            raise InvalidInputError(
                f"concurrency {self.concurrency}: expected at least 1 request at a time, and at most {MOST_AT_A_TIME}"
            )

    @property
    def name(self) -> str:
        return f"{self.concurrency} at a time"

    @property
    def across(self) -> float:
        return float(self.concurrency)

    def run(self, jobs: Sequence[Job], ask: Ask, *, clock: Clock = time.perf_counter) -> list[Served]:
        """Sends all jobs; results in their order."""
        waiting = iter(enumerate(jobs))
        results: list[Served | None] = [None] * len(jobs)
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    number, job = next(waiting, (-1, None))
                if job is None:
                    return
                results[number] = serve(job, ask, due=clock(), clock=clock)

        _together([work] * min(self.concurrency, len(jobs)))
        return [served for served in results if served is not None]


@dataclass(frozen=True, slots=True)
class Open:
    """So many requests a second on average, at times that are independent of each other.

    Attributes:
        rate: requests per second.
        seed: of the times.

    Raises:
        InvalidInputError: the rate is not above 0.
    """

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise InvalidInputError(f"rate {self.rate}: expected requests per second, above 0")

    @property
    def name(self) -> str:
        return f"{self.rate:g} a second"

    @property
    def across(self) -> float:
        return self.rate

    def run(
        self,
        jobs: Sequence[Job],
        ask: Ask,
        *,
        clock: Clock = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> list[Served]:
        """Sends all jobs; results in their order."""
        results: list[Served | None] = [None] * len(jobs)
        began = clock()

        def work(number: int, due: float) -> None:
            results[number] = serve(jobs[number], ask, due=due, clock=clock)

        threads = []
        for number, start in enumerate(poisson_starts(self.rate, len(jobs), self.seed)):
            sleep(max(0.0, began + start - clock()))
            thread = threading.Thread(target=work, args=(number, began + start), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        return [served for served in results if served is not None]


Level: TypeAlias = Closed | Open


def poisson_starts(rate: float, count: int, seed: int) -> list[float]:
    """When each of `count` requests is due, in seconds: gaps are exponential with mean 1 / rate."""
    gaps = random.Random(seed)
    starts, now = [], 0.0
    for _ in range(count):
        now += gaps.expovariate(rate)
        starts.append(now)
    return starts


def serve(job: Job, ask: Ask, *, due: float, clock: Clock = time.perf_counter) -> Served:
    """Asks once, and reads the clock at every delivery. A refusal is a result, not an exception."""
    served = Served(job.key, due)
    parts: list[str] = []
    usage = None
    try:
        for chunk in ask(job):
            if chunk.text or chunk.pieces:
                served.deliveries.append((clock(), len(chunk.pieces)))
                parts.append(chunk.text)
            if chunk.completion_tokens is not None:
                usage = chunk.completion_tokens
            if chunk.speculation is not None:
                served.rounds = chunk.speculation.rounds
                served.drafted_tokens = chunk.speculation.drafted_tokens
                served.accepted_tokens = chunk.speculation.accepted_tokens
    except RemoteServerError as error:
        served.error, served.status = str(error), error.status
    served.ended = clock()
    served.text = "".join(parts)
    # Without a usage, one token a delivery is the best guess there is.
    served.tokens = usage if usage is not None else sum(count or 1 for _, count in served.deliveries)
    return served


def _together(works: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
