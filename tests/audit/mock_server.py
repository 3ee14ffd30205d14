"""An OpenAI-compatible completion server with a law of three words, honest or biased, well-behaved or not."""

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = (" ten", " sixty", " thirty")
HONEST = (0.10, 0.60, 0.30)
BIASED = (0.1016, 0.6304, 0.2680)
"""Measured on an engine whose residual noise was its draft noise."""


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        """Silent."""

    def do_GET(self):
        self._answer(200, {"data": [{"id": "mock"}]})

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.asked += 1
            asked = server.asked
        if server.refuse_every and asked % server.refuse_every == 0:
            self._answer(429, {"error": "too many requests"}, {"Retry-After": "0"})
            return
        if server.fail_every and asked % server.fail_every == 0:
            self._answer(500, {"error": "out of order"})
            return
        choices = [self._choice(body, index) for index in range(body.get("n", 1))]
        self._answer(200, {"choices": choices})

    def _choice(self, body, index):
        server = self.server
        key = f"{server.salt}/{body['prompt']}/{body['seed']}/{index}".encode()
        rng = random.Random(hashlib.blake2b(key, digest_size=8).digest())
        count = body["max_tokens"]
        if body["temperature"] == 0:
            words = [WORDS[1]] * count
            if server.slips:
                words[2] = WORDS[0]
        else:
            words = rng.choices(WORDS, server.law, k=count)
        choice = {"index": index, "text": "".join(words), "finish_reason": "length"}
        if server.logprobs and body.get("logprobs"):
            top = {WORDS[1]: -0.5, WORDS[0]: -0.5 - server.gap}
            choice["logprobs"] = {"tokens": words, "top_logprobs": [top] * count}
        return choice

    def _answer(self, status, body, headers=None):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def mock_server(
    law=HONEST, *, salt=0, logprobs=True, refuse_every=0, fail_every=0, slips=False, gap=2.0
) -> Iterator[str]:
    """Serves until the block ends; gives the base URL. One that slips says a wrong third word when it is greedy."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.lock = threading.Lock()
    server.asked = 0
    server.law, server.salt, server.logprobs = law, salt, logprobs
    server.refuse_every, server.fail_every = refuse_every, fail_every
    server.slips, server.gap = slips, gap
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
