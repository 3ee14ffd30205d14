"""Clients that leave, and clients that do not read. Owns what happens to work nobody waits for any more."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pilotfish.server.gate import CLIENT_GONE

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled when the client goes away.

    Raises:
        ClientGoneError: it went away.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_departure(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        request.state.log["client_gone"] = True
        raise ClientGoneError
    finally:
        await _end(doing, leaving)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """Handler for clients that left: nobody reads it, but every request gets a response."""
    return Response(status_code=CLIENT_GONE)


class EventStream(Response):
    """Server-sent events, until they end, the client leaves, or it reads nothing for too long.

    Args:
        events: complete events.
        write_timeout: seconds that one of them may wait for a reader.
        on_end: called once in any case, even if the client left before the first event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], *, write_timeout: float, on_end: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._write_timeout = write_timeout
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        log = scope["state"]["log"]
        writing = asyncio.ensure_future(self._write(send))
        leaving = asyncio.ensure_future(_departure(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            else:
                log["client_gone"] = True
        except TimeoutError:
            log["client_gone"] = log["reader_stalled"] = True
            abort = scope["state"].get("abort")
            if abort is not None:  # closing would wait for the reader again
                abort()
        finally:
            await _end(writing, leaving)
            self._on_end()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            async with asyncio.timeout(self._write_timeout):
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            await asyncio.sleep(0)  # neither events nor send need to wait; others, and a departure, get their turn
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _departure(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
