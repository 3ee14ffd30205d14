"""A stand-in for a chat server, in a thread: says what it is told to, and remembers what it was asked."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("The", " pilotfish", " swims", " ahead", ".")


class Stub:
    """What the server does, and what it saw."""

    def __init__(self, *, ours=True, key=None, words=WORDS):
        self.ours, self.key, self.words = ours, key, words
        self.bodies = []
        self.refuse_with = None
        self.timings = None
        self.breaks_off = False
        self.gives_up = False
        self.text_of = lambda body: self.words

    def events(self, body):
        words = self.text_of(body)
        plain = body.get("speculative", {}).get("num_speculative_tokens") == 0
        size = 1 if plain or not self.ours else 2
        for place in range(0, len(words), size):
            part = words[place : place + size]
            choice = {"index": 0, "delta": {"content": "".join(part)}, "finish_reason": None}
            if body.get("speculative", {}).get("report"):
                choice["tokens"] = [
                    {"id": n, "text": word, "from_draft": n < len(part) - 1} for n, word in enumerate(part)
                ]
            yield {"choices": [choice]}
        rounds = -(-len(words) // size)
        last = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(words)}}
        if body.get("speculative", {}).get("report"):
            last["speculative_decoding"] = {
                "rounds": rounds,
                "drafted_tokens": len(words),
                "accepted_tokens": len(words) - rounds,
            }
        if self.timings is not None:
            last["timings"] = self.timings
        yield last


def _handler(stub):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            if self.path == "/health":
                return self._json(200, {"status": "serving"})
            if self.path != "/v1/models":
                return self._json(404, {"detail": "no such page"})
            if not self._may_come_in():
                return None
            return self._json(200, {"data": [{"id": "small", "owned_by": "pilotfish" if stub.ours else "somebody"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.bodies.append(body)
            if not self._may_come_in():
                return
            if stub.refuse_with is not None:
                self._json(stub.refuse_with, {"error": {"message": "too much of it"}})
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number, event in enumerate(stub.events(body)):
                if number == 1 and stub.breaks_off:
                    return
                if number == 1 and stub.gives_up:
                    event = {"error": {"message": "the deadline is over"}}
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def _may_come_in(self):
            if stub.key is None or self.headers.get("Authorization") == f"Bearer {stub.key}":
                return True
            self._json(401, {"error": {"message": "who are you"}})
            return False

        def _json(self, status, value):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


@contextmanager
def stub_server(stub):
    """The server's URL, while it runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
