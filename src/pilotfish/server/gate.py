"""Around every request: its id, its key, its line in the access log, and what happens if we are at fault.

Owns who may come in and what is written about it. Knows no body and no route.
"""

import json
import logging
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotfish.server.errors import ApiError, internal_error
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.settings import ServerSettings

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("pilotfish.server.access")

CLIENT_GONE = 499
"""Status in log and metrics where the client left before the answer."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_LONGEST_PATH = 200


class Gate:
    """ASGI middleware around the whole application.

    Puts into the request's state: `request_id`, `arrived` (monotonic clock), and `log`, a dictionary whose entries go
    into the access log.

    Args:
        open_paths: besides `/health` those that need no key.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics, open_paths: Sequence[str]
    ) -> None:
        self._app = app
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._open = {"/health", *open_paths}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        arrived = time.monotonic()
        log: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, arrived=arrived, log=log)
        status: list[int] = []

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope["path"], headers.get(b"authorization", b""))
            if refusal is not None:
                log["error"] = refusal.code
                await refusal.response()(scope, receive, tell)
            else:
                await self._app(scope, receive, tell)
        except Exception:
            logger.exception("request %s failed", request_id)
            log["error"] = "internal_error"
            if not status:
                await internal_error().response()(scope, receive, tell)
        finally:
            self._note(scope, status[0] if status else CLIENT_GONE, time.monotonic() - arrived)

    def _refusal(self, path: str, authorization: bytes) -> ApiError | None:
        if self._key is None or path in self._open:
            return None
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and compare_digest(key.strip(), self._key):
            return None
        what = "a wrong API key" if authorization else "no API key"
        return ApiError(
            401,
            f"got {what}: expected 'Authorization: Bearer KEY' with the server's --api-key",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        log: dict[str, Any] = scope["state"]["log"]
        status = CLIENT_GONE if log.get("client_gone") else status
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.responded(route, status, seconds)
        client = scope.get("client")
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": scope["state"]["request_id"],
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:_LONGEST_PATH],
            "status": status,
            "seconds": round(seconds, 4),
            **log,
        }
        access_logger.info("%s", json.dumps(line))
