"""What the server refuses, with which status, before anything reaches the engine."""

import asyncio
import gzip
import json
import threading

import pytest

from pilotfish import LLM, SamplingParams
from pilotfish.server.settings import ServerSettings
from tests.server.conftest import SPECULATION
from tests.server.running import KEY, MODEL, Blocked, RunningServer, eventually

BODY = {"prompt": "The shark", "max_tokens": 4, "seed": 1}


def error(response, status, code):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    found = response.json()
    assert set(found) == {"error"}
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert found["error"]["code"] == code
    assert response.headers["x-request-id"]
    return found["error"]["message"]


def test_key_is_asked_for_everywhere_but_where_it_protects_nothing(server):
    for key in (None, "wrong", KEY + "x", ""):
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nothing"):
            response = server.get(path, key=key)
            error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
            assert KEY not in response.text
        error(server.post("/v1/completions", BODY, key=key), 401, "invalid_api_key")
    assert server.get("/health", key=None).status_code == 200
    assert "<html" in server.get("/", key=None).text
    raw = {"authorization": b"Bearer \xff\xfe"}
    error(server.get("/v1/models", headers=raw, key=None), 401, "invalid_api_key")


def test_compressed_bodies_are_refused(server):
    body = gzip.compress(json.dumps(BODY).encode())
    response = server.post("/v1/completions", body, headers={"content-encoding": "gzip"})
    assert "gzip" in error(response, 415, "unsupported_media_type")


def test_forms_are_refused_by_the_name_they_came_under(server):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "fish"}}}
    for given, param in (
        ({"response_format": form}, "response_format"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ):
        response = server.post("/v1/completions", {**BODY, **given})
        error(response, 400, "invalid_value")
        assert response.json()["error"]["param"] == param


def test_request_id_is_echoed_or_made(server):
    assert server.get("/health", headers={"x-request-id": "abc-1.2:3"}).headers["x-request-id"] == "abc-1.2:3"
    made = {
        server.get("/health", headers={"x-request-id": given}).headers["x-request-id"] for given in ("", "a b", b"\xe9")
    }
    assert len(made) == 3
    assert all(one.startswith("req-") for one in made)
    given = server.post("/v1/completions", BODY, headers={"x-request-id": "mine"})
    assert given.json()["id"] == "cmpl-mine"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b'{"prompt": "\xc3"}', 400, "invalid_json"),
        (b"{" * 100_000, 400, "invalid_json"),
        (b'{"prompt": ' + b"[" * 3_000_000, 400, "invalid_json"),
        (b'{"prompt": "\\ud800"}', 400, "invalid_json"),
        (b"[]", 400, "invalid_type"),
        (b"", 400, "missing_required_parameter"),
        (b"null", 400, "invalid_type"),
        (b"{}", 400, "missing_required_parameter"),
        (b" " * (5 * 1024 * 1024), 413, "body_too_large"),
        (json.dumps({"prompt": [70] * 5000}).encode(), 400, "context_length_exceeded"),
        (json.dumps({"prompt": ["x"] * 65}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": "x" * 3_000_000}).encode(), 400, "context_length_exceeded"),
        (json.dumps({"prompt": [1] * 1_000_000}).encode(), 400, "context_length_exceeded"),
        (json.dumps({"prompt": "x", "stop": [1] * 1_000_000}).encode(), 400, "invalid_type"),
        (json.dumps({"prompt": "x", "structured_outputs": {"regex": "a" * 100_000}}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": [[1], [999]]}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": [1, "x"]}).encode(), 400, "invalid_type"),
        (json.dumps({"prompt": []}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": [[]]}).encode(), 400, "invalid_value"),
        (b" " * 100_000 + b"{", 400, "invalid_json"),
        (b'{"prompt": "x", "temperature": 1e999}', 400, "invalid_value"),
        (json.dumps({"prompt": "x", "logit_bias": {"9" * 5000: 1}}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": "x", "bad_words": ["x"] * 100_000}).encode(), 400, "invalid_value"),
        (json.dumps({"prompt": "x", "n": 9, "seed": 1}).encode(), 400, "invalid_value"),
    ],
)
def test_bad_bodies_get_their_status(server, body, status, code):
    error(server.post("/v1/completions", body), status, code)
    assert server.post("/v1/completions", BODY).status_code == 200


def test_body_of_untold_length_is_bounded_too(server):
    with server.connect() as sock:
        sock.sendall(
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        for _ in range(17):
            sock.sendall(chunk)
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")


def test_other_content_types_paths_and_methods(server):
    error(server.post("/v1/completions", BODY, headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    error(server.get("/v1/nothing"), 404, "not_found")
    response = server.get("/v1/completions")
    error(response, 405, "method_not_allowed")
    assert "POST" in response.headers["allow"]


def test_tokenize_and_back(server, alone):
    ids = alone.tokenizer.encode("The shark")
    found = server.post("/tokenize", {"prompt": "The shark"}).json()
    assert found == {"count": len(ids), "max_model_len": 2048, "tokens": ids}
    messages = [{"role": "user", "content": "x"}]
    assert server.post("/tokenize", {"messages": messages}).json()["tokens"] == alone.tokenizer.chat(messages)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "The shark"}
    assert server.post("/detokenize", {"tokens": [1]}).json() == {"prompt": "<|im_start|>"}
    error(server.post("/tokenize", {}), 400, "invalid_value")
    error(server.post("/tokenize", {"messages": messages, "add_special_tokens": False}), 400, "invalid_value")
    error(server.post("/detokenize", {"tokens": [384]}), 400, "invalid_value")


def test_full_queue_is_429_and_those_in_it_are_answered(server, alone):
    (expected,) = alone.generate("The shark", SamplingParams(max_tokens=4, seed=1))

    async def ask(client):
        return await client.completions.with_raw_response.create(model=MODEL, **BODY)

    async def flood(blocked):
        async with server.async_openai() as client:
            asked = [asyncio.ensure_future(ask(client)) for _ in range(100)]
            while sum(one.done() for one in asked) < 36:  # those that were refused
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert sum(one.done() for one in asked) == 36
            blocked.go()
            return await asyncio.gather(*asked, return_exceptions=True)

    with Blocked(server) as blocked:
        found = asyncio.run(flood(blocked))
    refused = [one for one in found if isinstance(one, Exception)]
    assert len(refused) == 36
    for one in refused:
        assert one.status_code == 429
        assert one.code == "queue_full"
        assert "64 requests are waiting: expected at most 64" in one.message
        assert int(one.response.headers["retry-after"]) >= 1
    assert {one.parse().choices[0].text for one in found if one not in refused} == {expected.outputs[0].text}


def test_request_with_more_samples_than_places_takes_none(server):
    with Blocked(server):
        response = server.post("/v1/completions", {"prompt": ["x"] * 9, "n": 8, "max_tokens": 1})
        error(response, 429, "queue_full")
    server.require_idle()
    response = server.post("/v1/completions", {"prompt": ["x"] * 33, "n": 4, "max_tokens": 1})
    error(response, 400, "invalid_value")  # 429 would have the client ask again for ever


@pytest.fixture
def hasty(directory):
    settings = ServerSettings(port=0, request_timeout=0.3, max_prompt_tokens=50)
    with RunningServer(LLM(directory, speculative_config=SPECULATION, threads=1), settings) as running:
        yield running
        running.require_idle()


def test_deadline_is_504_or_an_event(hasty):
    with Blocked(hasty) as blocked:
        for stream in (False, True):  # as nothing has been told yet, a stream has a status too
            response = hasty.post("/v1/completions", {**BODY, "stream": stream})
            assert "longer than 0.3 seconds" in error(response, 504, "deadline_exceeded")
            assert response.headers["x-should-retry"] == "false"
        blocked.go()
    long = {"prompt": "x", "n": 8, "max_tokens": 2000, "ignore_eos": True}
    error(hasty.post("/v1/completions", long), 504, "deadline_exceeded")
    events = hasty.events(long)
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "deadline_exceeded"
    assert json.loads(events[0])["choices"][0]["text"] is not None


def test_prompt_limit_and_no_key(hasty):
    message = error(hasty.post("/v1/completions", {"prompt": [70] * 51}, key=None), 400, "context_length_exceeded")
    assert "prompt has 51 tokens: expected at most 50, the server's --max-prompt-tokens" in message
    eventually(lambda: hasty.post("/v1/completions", BODY, key=None).status_code == 200, "an answer in time")


def test_grammar_that_never_compiles_holds_up_nobody(hasty, monkeypatch):
    held = threading.Event()
    compiler = hasty.service.decode_all.__self__._grammars
    compiled = compiler.compile

    def compile_slowly(form):
        if form.text == "slow":
            assert held.wait(60)
        return compiled(form)

    monkeypatch.setattr(compiler, "compile", compile_slowly)
    slow = {**BODY, "structured_outputs": {"regex": "slow"}}
    error(hasty.post("/v1/completions", slow), 504, "deadline_exceeded")
    error(hasty.post("/v1/completions", slow), 504, "deadline_exceeded")
    for form in ({}, {"structured_outputs": {"regex": "fast"}}):
        eventually(lambda: hasty.post("/v1/completions", {**BODY, **form}).status_code == 200, "an answer")  # noqa: B023
    held.set()


def test_text_that_cannot_fit_is_refused_unread(server):
    message = error(server.post("/v1/completions", {"prompt": "x" * 30_000}), 400, "context_length_exceeded")
    longest = len("<|endoftext|>")
    assert f"prompt has 30000 characters: expected at most {2048 * longest}" in message
    error(server.post("/tokenize", {"prompt": "x" * 30_000}), 400, "context_length_exceeded")
