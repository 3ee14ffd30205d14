"""Runs a server until it is told to stop. Owns the socket, the event loop and the signals.

The first SIGTERM or SIGINT drains: requests that were taken end, new ones and `/health` get 503. The second one stops
at once.
"""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from pilotfish.engine.llm import LLM
from pilotfish.engine.service import Service
from pilotfish.errors import InvalidInputError
from pilotfish.server.app import create_app
from pilotfish.server.connection import Connection
from pilotfish.server.serving import Serving
from pilotfish.server.settings import ServerSettings

_CLOSING = 5
"""Seconds that responses may still be written after the last request has ended."""


def bind(settings: ServerSettings) -> socket.socket:
    """A socket on the address that the settings name; it does not listen yet.

    Raises:
        InvalidInputError: the address is none of this machine's, or in use.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        sock = socket.socket(family, kind)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error
    return sock


def served_name(model: str, settings: ServerSettings) -> str:
    """What clients call a model: the name set, or the one it was loaded by, of a path the last part."""
    if settings.served_model_name is not None:
        return settings.served_model_name
    path = Path(model)
    return path.resolve().name if path.exists() else model


class Server(uvicorn.Server):
    """A server that drains before it exits.

    Args:
        on_ready: told the address once it listens.

    Attributes:
        forced: it was told twice, and stopped with requests on their way.
    """

    def __init__(
        self,
        llm: LLM,
        service: Service,
        settings: ServerSettings,
        *,
        name: str,
        on_ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        app = create_app(llm, service, settings, name=name)
        timeouts = {"head_timeout": settings.body_timeout, "write_timeout": settings.write_timeout}
        super().__init__(
            uvicorn.Config(
                app,
                http=type("Connection", (Connection,), timeouts),
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._serving: Serving = app.state.serving
        self._service = service
        self._drain_timeout = settings.drain_timeout
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self.forced = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets responses be written, for a while, and hangs up on whoever does not read."""
        assert self._loop is not None, "started before"
        patience = self._loop.call_later(_CLOSING, self._hang_up)
        await super().shutdown(sockets)
        patience.cancel()
        self._hang_up()
        if self.server_state.tasks:  # told to stop at once: they notice that their clients are gone
            await asyncio.wait(self.server_state.tasks, timeout=_CLOSING)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            assert isinstance(connection, Connection), "all are of the class that the configuration names"
            connection.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        assert sockets, "run by `run_on`"
        host, port = sockets[0].getsockname()[:2]
        self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if not self._serving.draining:
            self.drain()
            return
        self.forced = self.force_exit = self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hang_up)

    def drain(self) -> None:
        """Takes no more requests, and exits when the last one has ended; from any thread."""
        self._serving.draining = True
        threading.Thread(target=self._exit_when_idle, name="pilotfish-drain", daemon=True).start()

    def _exit_when_idle(self) -> None:
        self._service.drain(self._drain_timeout)
        self.should_exit = True

    def run_on(self, sock: socket.socket) -> None:
        """Serves on a bound socket until it is told to stop."""
        try:
            self.run(sockets=[sock])
        finally:
            self._serving.close()
            self._service.close()


def serve(
    llm: LLM, sock: socket.socket, settings: ServerSettings, *, name: str, on_ready: Callable[[str], None]
) -> int:
    """Serves a model until a signal ends it.

    Args:
        sock: from `bind`.
        name: what clients call the model.
        on_ready: told the address once it listens.

    Returns:
        the process's exit code: 0 once drained, that of a killed process if told twice.
    """
    server = Server(llm, Service(llm, max_waiting=settings.max_waiting), settings, name=name, on_ready=on_ready)
    server.run_on(sock)
    return 128 + signal.SIGTERM if server.forced else 0
