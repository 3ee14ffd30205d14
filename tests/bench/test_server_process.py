"""A server's process: how it is waited for, and what is said where it does not come up."""

import subprocess
import sys

import pytest

from pilotfish.bench.server_process import free_port, running
from pilotfish.errors import RemoteServerError

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    processes, popen = [], subprocess.Popen

    def start(*args, **options):
        processes.append(popen(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return processes


def test_server_is_there_within_and_gone_after(started):
    port = free_port()
    with running([sys.executable, "-c", SERVER, str(port)], f"http://127.0.0.1:{port}") as url:
        assert url == f"http://127.0.0.1:{port}"
        assert started[0].poll() is None
    assert started[0].poll() is not None


def test_server_that_ends_at_once_is_quoted():
    command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
    with (
        pytest.raises(RemoteServerError, match=r"ended with 3 before it served; the server said: no such model"),
        running(command, f"http://127.0.0.1:{free_port()}"),
    ):
        pass


def test_server_that_never_serves_is_given_up(started, monkeypatch):
    monkeypatch.setattr("pilotfish.bench.server_process.START_SECONDS", 0.2)
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with pytest.raises(RemoteServerError, match="did not serve"), running(command, f"http://127.0.0.1:{free_port()}"):
        pass
    assert started[0].poll() is not None
