"""`pilotfish chat --url` against a stand-in: the conversation, the fields that are sent, the refusals."""

import io
import subprocess
import sys

import pytest

from pilotfish.bench.server_process import free_port
from pilotfish.cli import main
from tests.bench.stub_server import WORDS, Stub, stub_server

TEXT = "".join(WORDS)


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def url(stub):
    with stub_server(stub) as url:
        yield url


@pytest.fixture
def chat(monkeypatch, capsys):
    """Runs the command on some typed lines; gives exit code, standard output and standard error."""

    def run(*arguments, typed=""):
        monkeypatch.setattr(sys, "argv", ["pilotfish", "chat", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_conversation_goes_on_with_what_was_said(chat, stub, url):
    code, out, err = chat("--url", url, "--seed", "3", "--max-tokens", "9", typed="Who?\nAnd then?\n\n")
    assert (code, out) == (0, f"{TEXT}\n{TEXT}\n")
    assert "[5 tokens, " in err
    assert "mean acceptance length 1.67]" in err
    first, second = stub.bodies
    assert first["messages"] == [{"role": "user", "content": "Who?"}]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == TEXT
    assert first["speculative"] == {"report": True}
    assert (first["temperature"], first["top_p"], first["seed"], first["max_tokens"]) == (0.7, 0.9, 3, 9)
    assert "top_k" not in first


@pytest.mark.parametrize(
    ("flags", "asked"), [(["--method", "off"], 0), (["-k", "0"], 0), (["-k", "4"], 4), (["--method", "auto"], None)]
)
def test_speculation_is_asked_for_by_request(chat, stub, url, flags, asked):
    assert chat("--url", url, *flags, typed="Who?\n")[0] == 0
    assert stub.bodies[0]["speculative"].get("num_speculative_tokens") == asked


def test_other_server_is_sent_openai_fields_only(chat, stub, url):
    stub.ours = False
    code, out, err = chat("--url", url, "--model", "large", typed="Who?\n")
    assert (code, out) == (0, f"{TEXT}\n")
    assert "acceptance" not in err
    assert set(stub.bodies[0]) == {
        "model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens",
    }  # fmt: skip
    assert stub.bodies[0]["model"] == "large"
    code, _, err = chat("--url", url, "--method", "off", typed="Who?\n")
    assert code == 2
    assert "no Pilotfish server" in err


@pytest.mark.parametrize(
    "flags",
    [["--weights", "int8"], ["--threads", "1"], ["--recalibrate"], ["--draft-model", "x"], ["--method", "ngram"]],
)
def test_flag_that_is_the_servers_own_business_is_refused_by_name(chat, stub, url, flags):
    code, _, err = chat("--url", url, *flags, typed="Who?\n")
    assert code == 2
    assert flags[0] in err
    assert not stub.bodies


def test_what_goes_wrong_is_one_line(chat, stub, url):
    code, _, err = chat("--url", f"http://127.0.0.1:{free_port()}")
    assert code == 2
    assert "cannot be reached" in err
    assert err.count("\n") == 1
    stub.key = "sesame"
    code, _, err = chat("--url", url)
    assert code == 2
    assert "--api-key" in err
    assert chat("--url", url, "--api-key", "sesame", typed="Who?\n")[1] == f"{TEXT}\n"


def test_chat_with_a_server_loads_nothing_heavy(url):
    code = (
        "import sys; from pilotfish.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "chat", "--url", url], input="Who?\n", capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"{TEXT}\n[]\n"
