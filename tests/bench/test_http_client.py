"""The chat client against a stand-in: streams, what our server tells beyond OpenAI's protocol, every way to fail."""

import pytest

from pilotfish.bench.http_client import ChatServer, SpeculationReport
from pilotfish.bench.server_process import free_port
from pilotfish.errors import InvalidInputError, RemoteServerError
from tests.bench.stub_server import WORDS, Stub, stub_server

MESSAGES = [{"role": "user", "content": "Who swims ahead?"}]


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def url(stub):
    with stub_server(stub) as url:
        yield url


def test_stream_tells_tokens_usage_and_speculation(stub, url):
    server = ChatServer(url)
    assert (server.model, server.is_ours) == ("small", True)
    chunks = list(server.stream(MESSAGES, {"max_tokens": 5, "speculative": {"report": True}}))
    assert "".join(chunk.text for chunk in chunks) == "".join(WORDS)
    assert [piece for chunk in chunks for piece in chunk.pieces] == list(WORDS)
    assert [flag for chunk in chunks for flag in chunk.from_draft] == [True, False, True, False, False]
    assert chunks[-1].completion_tokens == 5
    assert chunks[-1].speculation == SpeculationReport(3, 5, 2)
    body = stub.bodies[0]
    assert (body["model"], body["messages"], body["max_tokens"], body["stream"]) == ("small", MESSAGES, 5, True)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_address_may_end_in_v1_or_not(url, end):
    assert ChatServer(url + end).model == "small"


def test_server_of_another_engine_is_told_from_ours(stub, url):
    stub.ours = False
    server = ChatServer(url, model="large")
    assert (server.model, server.is_ours) == ("large", False)
    chunks = list(server.stream(MESSAGES, {}))
    assert "".join(chunk.text for chunk in chunks) == "".join(WORDS)
    assert all(chunk.pieces == () and chunk.speculation is None for chunk in chunks)


def test_drafts_that_llama_cpp_counts_are_read(stub, url):
    stub.ours = False
    stub.timings = {"predicted_n": 5, "draft_n": 9, "draft_n_accepted": 3}
    *_, last = ChatServer(url).stream(MESSAGES, {})
    assert last.speculation == SpeculationReport(2, 9, 3)
    stub.timings = {"predicted_n": 5}
    *_, last = ChatServer(url).stream(MESSAGES, {})
    assert last.speculation == SpeculationReport(5, 0, 0)


def test_key_is_sent_and_a_wrong_one_named(stub, url):
    stub.key = "sesame"
    assert ChatServer(url, api_key="sesame").model == "small"
    for key in (None, "wrong"):
        with pytest.raises(RemoteServerError, match="--api-key") as caught:
            ChatServer(url, api_key=key)
        assert caught.value.status == 401


def test_nobody_there_is_said(url):
    with pytest.raises(RemoteServerError, match=r"cannot be reached.*Connection refused.*pilotfish serve"):
        ChatServer(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RemoteServerError, match="does not exist") as caught:
        ChatServer(f"{url}/elsewhere")
    assert caught.value.status == 404


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://example.org", "http://", "nothing"])
def test_address_that_is_none_is_refused(address):
    with pytest.raises(InvalidInputError, match="expected the address of a server"):
        ChatServer(address)


def test_refusal_has_the_servers_own_words(stub, url):
    server = ChatServer(url)
    stub.refuse_with = 400
    with pytest.raises(RemoteServerError, match="too much of it") as caught:
        list(server.stream(MESSAGES, {}))
    assert caught.value.status == 400


def test_stream_that_breaks_off_is_no_answer(stub, url):
    server = ChatServer(url)
    stub.breaks_off = True
    chunks = server.stream(MESSAGES, {})
    assert next(chunks).text
    with pytest.raises(RemoteServerError, match="in the middle of an answer"):
        next(chunks)
    stub.breaks_off, stub.gives_up = False, True
    with pytest.raises(RemoteServerError, match="the deadline is over"):
        list(server.stream(MESSAGES, {}))
