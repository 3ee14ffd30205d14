"""`pilotfish serve` as a process: signals, the log, exit codes."""

import json
import signal
import socket
import threading

import pytest

from pilotfish.cli import main
from tests.server.running import KEY, MODEL, ServerProcess, eventually

LONG = {"prompt": "The shark", "max_tokens": 1900, "ignore_eos": True, "n": 8, "seed": 4}


@pytest.fixture
def process(directory):
    with ServerProcess(directory, "--method", "ngram", "-k", "3", "--log-prompts") as process:
        yield process


def in_background(function, *arguments):
    """Starts a thread; its result is in the list given back once the thread has ended."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    return thread, results


def test_first_signal_drains_and_second_stops_at_once(process, directory):
    assert process.post("/v1/completions", {"prompt": "secret", "max_tokens": 2}).status_code == 200
    asking, results = in_background(process.events, LONG)
    eventually(lambda: process.stats()[0] > 0, "a running request")
    process.signal(signal.SIGTERM)
    eventually(lambda: process.get("/health").status_code == 503, "draining")
    refused = process.post("/v1/completions", {"prompt": "x"})
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert process.get("/health").json()["status"] == "draining"
    asking.join()
    (events,) = results
    assert events[-1] == "[DONE]"
    reasons = [json.loads(event)["choices"][0]["finish_reason"] for event in events[:-1]]
    assert [reason for reason in reasons if reason] == ["length"] * 8
    assert process.wait() == 0
    entries = [json.loads(line) for line in process.errors if line.startswith("{")]
    assert len(entries) > 3
    assert all(
        {"time", "request_id", "client", "method", "path", "status", "seconds"} <= set(entry) for entry in entries
    )
    first = next(entry for entry in entries if entry["path"] == "/v1/completions")
    assert (first["status"], first["prompt"], first["completion_tokens"]) == (200, "secret", 2)
    assert isinstance(first["outputs"][0], str)
    assert not [line for line in process.errors if "Traceback" in line or KEY in line]

    with ServerProcess(directory, "--method", "off") as other:
        with other.connect() as sock:
            other.ask_raw(sock, {**LONG, "prompt": "secret", "stream": True})
            eventually(lambda: other.stats()[0] > 0, "a running request")
            other.signal(signal.SIGTERM)
            eventually(lambda: other.get("/health").status_code == 503, "draining")
            other.signal(signal.SIGINT)
            assert other.wait() == 128 + signal.SIGTERM
        assert not [line for line in other.errors if "secret" in line or "Traceback" in line]


def test_port_in_use_is_one_line_and_exit_code_2(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("sys.argv", ["pilotfish", "serve", "/absent", "--port", str(port)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pilotfish: cannot listen on 127.0.0.1:{port}: Address already in use; choose another")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-n", "0"], "max_n=0: expected an integer of at least 1"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid:0"),
        (["--method", "magic"], "method='magic'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(flags, message, monkeypatch, capsys, directory):
    monkeypatch.setattr("sys.argv", ["pilotfish", "serve", str(directory), "--port", "0", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("pilotfish: ")
    assert message in err
    assert err.count("\n") == 1


def test_served_name_has_no_directories(directory):
    from pilotfish.server.process import served_name
    from pilotfish.server.settings import ServerSettings

    assert served_name(str(directory), ServerSettings()) == directory.name
    assert served_name("owner/model", ServerSettings()) == "owner/model"
    assert served_name("x", ServerSettings(served_model_name=MODEL)) == MODEL
