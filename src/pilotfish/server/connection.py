"""One TCP connection: how long a client may take to ask, and how the kernel tells us that it is gone.

Owns timers and socket options that uvicorn has not got. Knows no HTTP beyond "a request has begun".
"""

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds until a silent peer is asked whether it is still there, between questions, and how many go unanswered."""


class Connection(H11Protocol):
    """A connection that does not wait for ever.

    Attributes:
        head_timeout: seconds from the first byte of a request (of a new connection: from its start) to the end of its
            headers.
        write_timeout: seconds that sent bytes may stay unacknowledged.
    """

    head_timeout: float = 30.0
    write_timeout: float = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app_state = {**self.app_state, "abort": self.abort}
        self._head_timer: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Drops the connection, and what was to be sent on it."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": int(1000 * self.write_timeout)}
            for name, value in options.items():
                if hasattr(socket, name):  # not every system has all of them
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout, self.abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
