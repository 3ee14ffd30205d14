"""The samples of one HTTP request on their way: from the engine's thread to the event loop, and back when one gives up.

Owns submission, delivery, the deadline and cancellation. What waits here for a slow reader is at most the request's own
output, which `max_tokens` and the context bound; the engine never waits for it.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pilotfish.engine.outputs import CompletionOutput, StreamDelta
from pilotfish.engine.service import Service, Ticket
from pilotfish.errors import QueueFullError, ServiceClosedError
from pilotfish.sampling.params import SamplingParams
from pilotfish.server.desk import Desk
from pilotfish.server.errors import ApiError, deadline_exceeded, translated
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.options import seeded
from pilotfish.terms import FinishReason

RETRY_AFTER = 1
"""Seconds after which a refused client may ask again: places in the queue become free with every request that ends."""


@dataclass(slots=True)
class Sample:
    """One sample of one prompt.

    Attributes:
        prompt: which of the request's prompts.
        ids: that prompt's token ids.
        params: its own options.
        tokens, pieces, from_draft: what came so far.
        output: how it ended.
    """

    prompt: int
    ids: Sequence[int]
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    from_draft: list[bool] = field(default_factory=list)
    output: CompletionOutput | None = None
    prompt_logprobs: tuple[object, ...] | None = None
    last_delivery: float | None = None


@dataclass(frozen=True, slots=True)
class _Arrival:
    sample: Sample
    delta: StreamDelta
    when: float


class Samples:
    """All samples of a request, in the order of its prompts.

    Args:
        prompts: token ids.
        params: for each prompt, several samples not yet taken apart.
        draft_len: most tokens to draft per round; the engine's own by default.
        arrived: when the request came, by the monotonic clock.
        timeout: seconds it may take from then.
    """

    def __init__(
        self,
        service: Service,
        metrics: ServerMetrics,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        draft_len: int | None,
        arrived: float,
        timeout: float,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._draft_len = draft_len
        self._arrived = arrived
        self._timeout = timeout
        self._deadline = arrived + timeout
        self._loop = asyncio.get_running_loop()
        self._arrivals: asyncio.Queue[_Arrival] = asyncio.Queue()
        self._tickets: list[Ticket] = []
        self._cancelled = False
        several = params.sample_count > 1
        self.all = [
            Sample(number, ids, own)
            for number, ids in enumerate(prompts)
            for own in (seeded(params) if several else params).samples()
        ]
        self._left = len(self.all)

    async def start(self, desk: Desk) -> None:
        """Gives all samples to the engine, or none.

        Args:
            desk: whose thread does it.

        Raises:
            ApiError: the engine refuses one of them; 400 where they could never wait together, 429 where the queue is
                full, 503 once it drains, 504 past the deadline.
        """
        if len(self.all) > self._service.capacity:
            raise ApiError(
                400,
                f"the request asks for {len(self.all)} samples: expected at most {self._service.capacity}, as many as "
                "run and wait here at a time; ask in parts",
                code="invalid_value",
            )
        try:
            async with asyncio.timeout(self._remaining):
                await desk.run(self._submit)
        except TimeoutError:
            raise deadline_exceeded(self._timeout) from None
        except QueueFullError as error:
            raise ApiError(
                429,
                f"{error.waiting} requests are waiting: expected at most {error.limit}, the server's --max-waiting; "
                f"ask again in {RETRY_AFTER} s",
                code="queue_full",
                headers={"retry-after": str(RETRY_AFTER)},
            ) from None
        except ServiceClosedError:
            raise draining() from None
        except Exception as error:
            raise translated(error) from error

    @property
    def _remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def _submit(self) -> None:
        try:
            for sample in self.all:
                listener = partial(self._hand_over, sample)
                ticket = self._service.submit(
                    sample.ids, sample.params, draft_len=self._draft_len, deadline=self._deadline, listener=listener
                )
                self._tickets.append(ticket)
                if self._cancelled:  # while this one was on its way
                    self.cancel()
                    return
        except BaseException:
            self.cancel()
            raise

    def _hand_over(self, sample: Sample, delta: StreamDelta) -> None:
        """Runs on the engine's thread."""
        arrival = _Arrival(sample, delta, time.monotonic())
        try:
            self._loop.call_soon_threadsafe(self._arrivals.put_nowait, arrival)
        except RuntimeError:  # the loop has ended, and nobody listens any more
            self.cancel()

    async def next(self) -> tuple[Sample, StreamDelta] | None:
        """What one round added to one sample; `None` once all have ended.

        Raises:
            ApiError: the engine failed, or the deadline has passed.
        """
        if not self._left:
            return None
        try:
            async with asyncio.timeout(self._remaining):
                arrival = await self._arrivals.get()
        except TimeoutError:
            raise deadline_exceeded(self._timeout) from None
        sample, delta = arrival.sample, arrival.delta
        if delta.error is not None:
            raise translated(delta.error)
        if delta.token_ids:
            self._metrics.delivered(sample.last_delivery, arrival.when, len(delta.token_ids), self._arrived)
            sample.last_delivery = arrival.when
        sample.tokens += delta.token_ids
        sample.pieces += delta.pieces
        sample.from_draft += delta.from_draft
        if delta.output is not None:
            (sample.output,) = delta.output.outputs
            self._require_end(sample.output.finish_reason)
            sample.prompt_logprobs = delta.output.prompt_logprobs
            self._left -= 1
        return sample, delta

    def _require_end(self, reason: FinishReason) -> None:
        """Refuses ends that came from outside: half an answer is none."""
        if reason is FinishReason.DEADLINE:
            raise deadline_exceeded(self._timeout)
        if reason is FinishReason.CANCELLED:
            raise draining()

    async def finish(self) -> None:
        """Waits until all samples have ended.

        Raises:
            ApiError: as `next`.
        """
        while await self.next() is not None:
            pass

    def cancel(self) -> None:
        """Ends what has not ended, from any thread."""
        self._cancelled = True
        for ticket in list(self._tickets):
            ticket.cancel()


def draining() -> ApiError:
    """What a client is told once the server is on its way out."""
    headers = {"retry-after": str(RETRY_AFTER), "connection": "close"}
    return ApiError(
        503, "the server is shutting down: ask another one, or again later", code="draining", headers=headers
    )
