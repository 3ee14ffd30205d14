"""Clients that die, hang, or do not read: the others notice nothing, and no slot stays taken."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from pilotfish import LLM, SamplingParams
from pilotfish.server.departure import EventStream
from pilotfish.server.desk import Desk
from pilotfish.server.settings import ServerSettings
from tests.server.conftest import SPECULATION
from tests.server.running import KEY, PATIENCE, RunningServer, eventually

LONG = {"prompt": "The shark", "max_tokens": 1900, "ignore_eos": True, "n": 8, "seed": 4}
"""Takes seconds where nobody cancels it."""
ALL = LONG["n"] * LONG["max_tokens"]
SHORT = {"prompt": "Numbers such as 7", "max_tokens": 30, "seed": 6}

DELIVERED = "pilotfish:generation_tokens_total"


@pytest.fixture(scope="module")
def expected(alone):
    (output,) = alone.generate(SHORT["prompt"], SamplingParams(max_tokens=30, seed=6))
    return output.outputs[0].text


@pytest.fixture(scope="module")
def impatient(directory):
    """A server that waits for clients no longer than a test likes to."""
    settings = ServerSettings(port=0, api_key=KEY, body_timeout=3.0, write_timeout=2.0)
    with RunningServer(LLM(directory, speculative_config=SPECULATION, threads=1), settings) as running:
        yield running


@pytest.fixture
def interrupted(server):
    """Afterwards the engine is idle although it has not made all that it was asked for."""
    before = server.metrics()[DELIVERED]
    yield
    server.require_idle()
    assert server.metrics()[DELIVERED] - before < ALL


def wait_for_running(server):
    eventually(lambda: server.stats()[0] > 0, "a running request")


def text_of(events):
    return "".join(json.loads(event)["choices"][0]["text"] for event in events if event != "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_hangs_up_is_cancelled(server, interrupted, expected, stream):
    with server.connect() as sock:
        server.ask_raw(sock, {**LONG, "stream": stream})
        wait_for_running(server)
    assert text_of(server.events(SHORT)) == expected


def test_client_killed_in_its_stream_is_cancelled(server, interrupted, expected):
    script = (
        "import socket, sys, time\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "s.sendall(sys.stdin.buffer.read())\n"
        "s.recv(100); print('reading', flush=True); time.sleep(600)\n"
    )
    content = json.dumps({**LONG, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    command = [sys.executable, "-S", "-c", script, *map(str, server.address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        client.stdin.write(head.encode() + content)
        client.stdin.close()
        assert client.stdout.readline() == b"reading\n"
        client.kill()
    assert text_of(server.events(SHORT)) == expected


def test_waiting_request_of_a_client_that_left_leaves_the_queue(server, expected):
    with contextlib.ExitStack() as clients:
        for _ in range(9):  # 72 samples, more than may run at a time
            server.ask_raw(clients.enter_context(server.connect()), LONG)
        eventually(lambda: server.stats()[1] > 0, "a waiting request")
    server.require_idle()
    assert text_of(server.events(SHORT)) == expected


def ended(sock):
    """Whether the server has closed the connection."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


def test_half_open_connections_are_closed_and_nobody_waits_for_them(impatient, expected):
    with contextlib.ExitStack() as clients:
        silent, half_head, half_body = (clients.enter_context(impatient.connect()) for _ in range(3))
        half_head.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        half_body.sendall(
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            'content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"prompt": "x'.encode()
        )
        assert text_of(impatient.events(SHORT)) == expected
        assert impatient.stats() == (0, 0)
        assert half_body.recv(100).startswith(b"HTTP/1.1 408 ")
        assert all(ended(one) for one in (silent, half_head, half_body))


def test_half_a_request_on_a_kept_connection_is_closed_too(impatient):
    with impatient.connect() as sock:
        impatient.ask_raw(sock, SHORT)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        assert ended(sock)


def test_reader_that_reads_nothing_delays_nobody_and_is_given_up(impatient, expected):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(PATIENCE)
    with sock:
        sock.connect(impatient.address)
        # Reports and log probabilities make it more than the kernel buffers.
        impatient.ask_raw(sock, {**LONG, "stream": True, "logprobs": 5, "speculative": {"report": True}})
        wait_for_running(impatient)
        assert text_of(impatient.events(SHORT)) == expected
        impatient.require_idle()  # although nothing was read
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(1 << 16):
                received += part
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"[DONE]" not in received


def test_slow_reader_gets_everything(server):
    with server.connect() as sock:
        server.ask_raw(sock, {**SHORT, "stream": True})
        received = bytearray()
        while b"[DONE]" not in received:
            part = sock.recv(200)
            assert part
            received += part
            time.sleep(0.005)


@pytest.mark.parametrize("leaves", [True, False])
def test_end_of_a_stream_is_told_even_if_nobody_waited_for_its_beginning(leaves):
    told, sent = [], []

    async def events():
        yield "data: x\n\n"

    async def receive():
        if not leaves:
            await asyncio.sleep(PATIENCE)
        return {"type": "http.disconnect"}

    async def send(message):
        if leaves:
            await asyncio.sleep(PATIENCE)
        sent.append(message)

    stream = EventStream(events(), write_timeout=PATIENCE, on_end=lambda: told.append(True))
    log = {}
    asyncio.run(stream({"type": "http", "state": {"log": log}}, receive, send))
    assert told == [True]
    assert (len(sent), log.get("client_gone")) == ((0, True) if leaves else (3, None))


def test_job_that_fails_or_is_given_up_leaves_its_desk_to_the_next():
    desk = Desk(1, "test")
    go = threading.Event()

    async def jobs():
        with pytest.raises(ZeroDivisionError):
            await desk.run(lambda: 1 / 0)
        given_up = asyncio.ensure_future(desk.run(lambda: go.wait(PATIENCE)))
        never_begun = asyncio.ensure_future(desk.run(go.clear))
        await asyncio.sleep(0.01)
        for one in (given_up, never_begun):
            one.cancel()
        go.set()
        return await desk.run(go.is_set)

    assert asyncio.run(jobs()) is True
    desk.close()
