"""A server that tests can ask: in a thread of this process, or as the process a user would start."""

import contextlib
import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai

from pilotfish import SamplingParams
from pilotfish.engine.service import Service
from pilotfish.server.process import Server, bind

KEY = "a-key-for-tests"
MODEL = "tiny"
PATIENCE = 30.0
"""Seconds after which something that should happen at once is taken not to happen."""


def eventually(condition, what):
    """Waits until a condition holds; how long that takes is not what is tested."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.01)


class Asking:
    """Ways to ask a server at `address`."""

    address = ("127.0.0.1", 0)

    @functools.cached_property
    def _client(self):
        # A connection of its own for each request: what one test leaves on it is not the next one's.
        return httpx.Client(timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))

    @property
    def url(self):
        return "http://{}:{}".format(*self.address)

    def openai(self, **options):
        # Nothing is retried: a refusal is what many tests want to see.
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": KEY, "max_retries": 0, "timeout": PATIENCE, **options}
        )

    def async_openai(self):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)

    def post(self, path, body, *, headers=None, key=KEY):
        """A response with status, headers and parsed JSON; `body` is bytes, or becomes JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        return self._client.post(self.url + path, content=content, headers={**sent, **(headers or {})})

    def get(self, path, *, headers=None, key=KEY):
        sent = {"authorization": f"Bearer {key}"} if key else {}
        return self._client.get(self.url + path, headers={**sent, **(headers or {})})

    def connect(self):
        return socket.create_connection(self.address, timeout=PATIENCE)

    def ask_raw(self, sock, body, path="/v1/completions"):
        """Sends a request on a socket, and leaves the answer there."""
        content = json.dumps(body).encode()
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )

    def events(self, body, path="/v1/completions"):
        """Data of all events of a stream, as text."""
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
        with contextlib.closing(connection):
            headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
            connection.request("POST", path, json.dumps({**body, "stream": True}), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            parts = response.read().decode().split("\n\n")
        assert parts.pop() == "", "the last event is complete"
        assert all(part.startswith("data: ") for part in parts)
        return [part.removeprefix("data: ") for part in parts]

    def metrics(self):
        """Samples of `/metrics` by name and labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def stats(self):
        found = self.get("/health", key=None).json()
        return found["running"], found["waiting"]

    def require_idle(self):
        eventually(lambda: self.stats() == (0, 0), "an idle engine")


class RunningServer(Asking):
    """In a thread of this process."""

    def __init__(self, llm, settings):
        self.service = Service(llm, max_waiting=settings.max_waiting)
        self._sock = bind(settings)
        self.address = self._sock.getsockname()
        ready = threading.Event()
        self.server = Server(
            llm, self.service, settings, name=settings.served_model_name or "model", on_ready=lambda url: ready.set()
        )
        self.thread = threading.Thread(target=self.server.run_on, args=[self._sock])
        self.thread.start()
        assert ready.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._client.close()
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


class Blocked:
    """Holds the engine within a round, so that what is asked meanwhile waits for sure."""

    def __init__(self, server):
        self._server = server
        self._go = threading.Event()
        self._entered = threading.Event()

    def _listen(self, delta):
        self._entered.set()
        assert self._go.wait(60)

    def __enter__(self):
        self._server.service.submit([70], SamplingParams(max_tokens=1), listener=self._listen)
        assert self._entered.wait(60)
        return self

    def go(self):
        self._go.set()

    def __exit__(self, *exception):
        self.go()


class ServerProcess(Asking):
    """`pilotfish serve` as a user starts it."""

    def __init__(self, directory, *flags):
        command = [sys.executable, "-m", "pilotfish.cli", "serve", str(directory), "--port", "0", "--threads", "1"]
        self._errors = []
        self.process = subprocess.Popen(
            [*command, "--api-key", KEY, "--served-model-name", MODEL, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for line in self.process.stderr:
            self._errors.append(line)
            if found := re.search(r"serving .* on http://127.0.0.1:(\d+)/v1", line):
                self.address = ("127.0.0.1", int(found[1]))
                break
        else:
            raise AssertionError("".join(self._errors))
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self):
        for line in self.process.stderr:
            self._errors.append(line)

    @property
    def errors(self):
        """Lines on standard error so far."""
        return list(self._errors)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """The exit code."""
        code = self.process.wait(PATIENCE)
        self._reading.join(PATIENCE)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stderr.close()
