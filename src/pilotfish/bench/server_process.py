"""A server of ours in a process of its own, on loopback, for the time of a measurement.

Owns the process: its start, the wait until it serves, and its end. Knows nothing of what it is asked.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pilotfish.errors import RemoteServerError

START_SECONDS = 600.0
"""A first start may fetch a model."""
END_SECONDS = 30.0
_POLL_SECONDS = 0.1
_SHOWN = 1500


@contextmanager
def served_by(model: str, flags: Sequence[str] = ()) -> Iterator[str]:
    """Runs `pilotfish serve MODEL FLAGS` on a free port; gives its URL once it serves, and ends it.

    Raises:
        RemoteServerError: it ended before it served, or took too long; with what it said last.
    """
    port = free_port()
    command = [sys.executable, "-m", "pilotfish.cli", "serve", model, "--port", str(port), *flags]
    with running(command, f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def running(command: Sequence[str], url: str, *, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs any server that has `/health`; gives `url` once that answers, and ends the process.

    Raises:
        RemoteServerError: as `served_by`.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _wait_until_it_serves(process, url)
            yield url
        except RemoteServerError as error:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()[-_SHOWN:]
            raise RemoteServerError(f"{error}; the server said: {said or 'nothing'}", error.status) from error
        finally:
            _end(process)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_serves(process: "subprocess.Popen[bytes]", url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RemoteServerError(f"the server ended with {process.returncode} before it served")
        try:
            with opener.open(f"{url}/health", timeout=5) as response:
                json.load(response)
                return
        except (OSError, ValueError):
            time.sleep(_POLL_SECONDS)
    raise RemoteServerError(f"the server did not serve within {START_SECONDS:g} s")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks it to end, then makes it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
