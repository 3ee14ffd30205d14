"""Threads for what takes too long for the event loop: reading prompts, compiling grammars.

Owns nothing but the threads. The standard library's pool would not let the process end while a job runs, and a grammar
can be written so that its compilation takes for ever.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Desk:
    """A few daemon threads that do one job after the other.

    Args:
        threads: how many.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = threads
        for number in range(threads):
            Thread(target=self._work, name=f"pilotfish-{name}-{number}", daemon=True).start()

    async def run(self, job: Callable[[], T]) -> T:
        """What a job returns or raises. Whoever stops waiting for it does not stop it once it has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return await future

    def close(self) -> None:
        """Ends the threads after the jobs they have; waits for none."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, loop, future = entry
            if future.cancelled():
                continue
            result, error = None, None
            try:
                result = job()
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop has ended, and nobody waits any more
                return


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
