"""A service: requests from any thread, answered as they come by one thread that runs the scheduler.

Owns that thread, the limit of the queue, and how a request's progress reaches whoever asked. Knows token ids and
records; text, HTTP and users belong to the server.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from pilotfish.engine.llm import LLM
from pilotfish.engine.outputs import StreamDelta
from pilotfish.engine.report import stream_delta
from pilotfish.engine.request import Request
from pilotfish.errors import InvalidInputError, PilotfishError, QueueFullError, ServiceClosedError
from pilotfish.metrics.counters import SpeculationCounters
from pilotfish.models.base import PagedExecutor
from pilotfish.sampling.params import SamplingParams

logger = logging.getLogger(__name__)

Listener = Callable[[StreamDelta], None]


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """A service at one moment, after a round.

    Attributes:
        running: requests that take part in rounds.
        waiting: requests in the queue, preempted ones included.
        kv_pages_used: pages of the target's cache that requests hold; 0 where the executor has no pages.
        kv_pages_free: pages that are empty, or that only keep text in case it comes again.
        kv_pages_total: all of them.
        prefix_queried_tokens: tokens of all texts that were looked up in the prefix cache when they got a place.
        prefix_hit_tokens: those of them that need not be read, as the cache had them.
        preemptions: how often a request lost its place.
        totals: counts of all requests so far; none ever goes down.
    """

    running: int
    waiting: int
    kv_pages_used: int = 0
    kv_pages_free: int = 0
    kv_pages_total: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    totals: SpeculationCounters = field(default_factory=SpeculationCounters)


class Ticket:
    """A submitted request.

    Attributes:
        key: unique within the engine.
    """

    def __init__(self, request: Request, cancel: Callable[[Request], None]) -> None:
        self.key = request.key
        self._request = request
        self._cancel = cancel

    def cancel(self) -> None:
        """Ends the request before the next round, with what it has; nothing where it is over."""
        self._cancel(self._request)


class _Stream:
    """One request's way to its listener."""

    def __init__(self, service: "Service", params: SamplingParams, listener: Listener) -> None:
        self._service = service
        self._params = params
        self._listener = listener
        self._shown = 0
        self._error: Exception | None = None

    def __call__(self, request: Request) -> None:
        try:
            delta = self._delta(request)
            if delta is not None:
                self._listener(delta)
        except Exception:
            # Nobody hears this request any more; the others are not to wait for it.
            logger.exception("the listener of request %d failed; the request is cancelled", request.key)
            if not request.is_over:
                self._service.cancel(request)
        finally:
            if request.is_over:
                self._service.forget(request)

    def _delta(self, request: Request) -> StreamDelta | None:
        """What is new. Where that cannot be told the request is cancelled, and the next delta is its last."""
        if self._error is None:
            try:
                delta = stream_delta(None, request, self._shown, self._params, self._service.decode_all)
                self._shown = len(request.output)
                return delta
            except Exception as error:
                logger.exception("what request %d was delivered cannot be told; it is cancelled", request.key)
                self._error = error
                if not request.is_over:
                    self._service.cancel(request)
        return StreamDelta((), (), (), None, error=self._error) if request.is_over else None


class Service:
    """Runs an `LLM`'s scheduler on a thread of its own; every method may be called from any thread.

    A round that fails takes with it only the requests whose own round fails; the service goes on.

    Args:
        llm: whose engine serves. While the service runs, `llm.generate` and `llm.stream` share its rounds.
        max_waiting: requests in the queue, beyond which `submit` refuses.

    Raises:
        InvalidInputError: `max_waiting` is less than 1, or another service runs this engine.
    """

    def __init__(self, llm: LLM, *, max_waiting: int = 256) -> None:
        if max_waiting < 1:
            raise InvalidInputError(f"max_waiting={max_waiting}: expected at least 1")
        if llm.engine.is_served:
            raise InvalidInputError("this LLM is served already: close the other service, or submit to that one")
        self._engine = llm.engine
        self._scheduler = llm.engine.scheduler
        self.decode_all = llm.decode_all
        self._max_waiting = max_waiting
        self._wake = threading.Condition()
        self._active: dict[int, Request] = {}
        self._refusing = False
        self._closing = False
        self._stats = self._measure()
        self._engine.is_served = True
        self._scheduler.on_work = self._notify
        self._thread = threading.Thread(target=self._work, name="pilotfish-engine", daemon=True)
        self._thread.start()

    @property
    def capacity(self) -> int:
        """Most requests that can run and wait at a time."""
        return self._max_waiting + self._scheduler.max_running

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        draft_len: int | None = None,
        deadline: float | None = None,
        listener: Listener,
    ) -> Ticket:
        """Queues one request.

        Args:
            prompt: token ids.
            params: of one sample; expand several with `params.samples()`.
            draft_len: tokens to draft per round at most; 0 decodes plainly, `None` leaves it to the engine.
            deadline: when the request ends whatever it has, by `time.monotonic`.
            listener: called on the engine's thread whenever tokens were delivered; the last call has the delta's
                `output` or `error` set. It must return quickly. If it raises, the request is cancelled.

        Raises:
            PromptError, SamplingParamsError, SpeculativeConfigError: the request cannot be honoured.
            CacheFullError: it would not fit the cache even alone.
            QueueFullError: too many requests wait.
            ServiceClosedError: the service is draining or closed.
        """
        self._check_open()  # first, as a grammar may take its time to compile
        checked = self._engine.prepare(prompt, params, draft_len)
        request = self._engine.request(prompt, checked, draft_len, deadline)
        with self._wake:
            self._check_open()
            self._active[request.key] = request
            self._scheduler.add(request, _Stream(self, checked, listener))
        return Ticket(request, self.cancel)

    def _check_open(self) -> None:
        if self._refusing:
            raise ServiceClosedError("the service takes no more requests: it is draining or closed")
        waiting = self._scheduler.waiting
        if waiting >= self._max_waiting:
            raise QueueFullError(waiting, self._max_waiting)

    def cancel(self, request: Request) -> None:
        """As `Ticket.cancel`."""
        self._scheduler.cancel(request)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

    def forget(self, request: Request) -> None:
        """A request is over; for the streams."""
        with self._wake:
            self._active.pop(request.key, None)
        self._notify()

    def stats(self) -> ServiceStats:
        """As of the last round."""
        return self._stats

    def drain(self, timeout: float | None = None) -> bool:
        """Refuses new requests and waits for those that were taken.

        Args:
            timeout: seconds to wait at most.

        Returns:
            whether all are over.
        """
        with self._wake:
            self._refusing = True
            return self._wake.wait_for(lambda: not self._active, timeout)

    def close(self) -> None:
        """Cancels everything and ends the thread. Closing twice is closing once."""
        with self._wake:
            self._refusing = self._closing = True
        self._notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing or not self._scheduler.is_idle)
                if self._closing:
                    break
            self._step()
        for request in list(self._active.values()):
            self._scheduler.cancel(request)
        while self._active:
            self._step()
        self._engine.is_served = False

    def _step(self) -> None:
        try:
            self._scheduler.step()
            self._stats = self._measure()
        except Exception as error:  # of the scheduler's own: whoever was in it cannot be helped, the next ones can
            logger.exception("the scheduler failed")
            self._scheduler.abandon(PilotfishError(f"the engine failed: {error!r}"))

    def _measure(self) -> ServiceStats:
        target = self._engine.target
        pages = target if isinstance(target, PagedExecutor) else None
        free = pages.prefix_cache.available_pages if pages is not None else 0
        return ServiceStats(
            running=self._scheduler.running,
            waiting=self._scheduler.waiting,
            kv_pages_used=pages.total_pages - free if pages is not None else 0,
            kv_pages_free=free,
            kv_pages_total=pages.total_pages if pages is not None else 0,
            prefix_queried_tokens=pages.prefix_cache.queried_tokens if pages is not None else 0,
            prefix_hit_tokens=pages.prefix_cache.hit_tokens if pages is not None else 0,
            preemptions=self._scheduler.preemptions,
            totals=self._scheduler.counted(),
        )
