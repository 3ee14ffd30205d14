"""Reading a request's body: how much, how long, which JSON. Owns what may reach a request model at all."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pilotfish.server.errors import ApiError
from pilotfish.server.settings import ServerSettings

MAX_DEPTH = 64
_AT_ONCE = 64 * 1024
"""Bytes that are parsed in no time; for more the event loop does not wait."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonRequest(Request):
    """A request whose body is bounded, and whose JSON is what programs can handle."""

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ApiError: 413 for a body over the limit, 408 for one that does not come.
        """
        if not hasattr(self, "_body"):
            settings: ServerSettings = self.app.state.settings
            try:
                async with asyncio.timeout(settings.body_timeout):
                    self._body = await self._bounded(settings.max_body_bytes)
            except TimeoutError:
                raise ApiError(
                    408,
                    f"the body did not arrive within {settings.body_timeout:g} seconds",
                    code="request_timeout",
                    headers={"connection": "close"},
                ) from None
        return self._body

    async def _bounded(self, limit: int) -> bytes:
        told = self.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and int(told) > limit:
            _too_large(f"{told} bytes", limit)
        parts = bytearray()
        try:
            async for part in self.stream():
                parts += part
                if len(parts) > limit:
                    _too_large(f"more than {limit} bytes", limit)
        except ClientDisconnect:
            raise ApiError(408, "the client went away while sending its request", code="client_gone") from None
        return bytes(parts)

    async def json(self) -> Any:
        """The body's JSON.

        Raises:
            ApiError: 400; it is no UTF-8, no JSON, nested too deeply, or holds half of a character.
        """
        body = await self.body()
        if len(body) <= _AT_ONCE:
            return parse(body)
        return await self.app.state.serving.reading.run(lambda: parse(body))


def parse(body: bytes) -> Any:
    """JSON as RFC 8259 has it, in UTF-8, nested at most `MAX_DEPTH` deep, every string a text.

    Raises:
        ApiError: 400; says which of these it is not.
    """
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _refused(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also an integer of thousands of digits
        raise _refused(f"the body is not JSON: {error}") from None
    _check(found, texts=_SURROGATE.search(body) is not None)
    return found


def _check(found: Any, *, texts: bool) -> None:
    """Refuses deep nesting and, if `texts` are to be looked at, lone surrogates."""
    level = [found]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                if texts:
                    below.extend(value)
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif texts and kind is str and not _is_text(value):
                raise _refused("the body has a string with half of a surrogate pair, which is no text")
        level = below if texts else [value for value in below if type(value) in (dict, list)]
        if not level:
            return
    raise _too_deep()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refused(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")


def _too_deep() -> ApiError:
    return _refused(f"the body is nested too deeply: expected at most {MAX_DEPTH} levels")


def _too_large(got: str, limit: int) -> NoReturn:
    # The rest is read and thrown away: a client that is cut off while it sends would never see this.
    raise ApiError(413, f"the body has {got}: expected at most {limit}; see --max-body-bytes", code="body_too_large")


class JsonRoute(APIRoute):
    """A route with a body in JSON, read by `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        field = self.body_field
        known = tuple(field.field_info.annotation.model_fields) if field is not None else ()  # type: ignore[union-attr]

        async def bounded(request: Request) -> Response:
            if field is not None:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise ApiError(
                        415,
                        f"content type {kind or 'none'!r}: expected 'Content-Type: application/json'",
                        code="unsupported_media_type",
                    )
                coding = request.headers.get("content-encoding", "identity").strip().lower()
                if coding != "identity":
                    raise ApiError(
                        415,
                        f"content encoding {coding!r}: expected the body as it is, without 'Content-Encoding'",
                        code="unsupported_media_type",
                    )
                request.scope["known_fields"] = known
            return await handler(JsonRequest(request.scope, request.receive))

        return bounded
