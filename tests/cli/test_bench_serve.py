"""`pilotfish bench serve` as a command, against a stand-in for a server: JSON, files, exit codes, refusals."""

import json
import sys

import pytest

from pilotfish.bench.serve_report import html
from pilotfish.cli import main
from tests.bench.stub_server import Stub, stub_server
from tests.models.tiny_models import tiny_hf_directory


@pytest.fixture
def stub():
    return Stub()


@pytest.fixture
def url(stub):
    with stub_server(stub) as url:
        yield url


@pytest.fixture
def bench(monkeypatch, capsys):
    """Runs the command; gives exit code, standard output and standard error."""

    def run(*arguments):
        flags = ["--requests", "3", "--repeats", "1", "--max-tokens", "8"]
        monkeypatch.setattr(sys, "argv", ["pilotfish", "bench", "serve", *flags, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


def test_json_says_what_was_measured_and_where(bench, url, tmp_path):
    page = tmp_path / "r.html"
    code, out, _ = bench("--url", url, "--concurrency", "1,2", "--rate", "200", "--json", "--html", page)
    assert code == 0
    report = json.loads(out)
    assert [level["name"] for level in report["levels"]] == ["1 at a time", "2 at a time", "200 a second"]
    assert report["sides"] == ["plain", "speculative"]
    assert report["identical"] is True
    figures = report["levels"][0]["sides"]
    assert figures["plain"]["mean_acceptance_length"] == 1
    assert figures["speculative"]["mean_acceptance_length"] == pytest.approx(5 / 3)
    assert report["settings"]["models"] == {"plain": "small", "speculative": "small"}
    assert {"command", "commit", "versions", "hardware", "seed"} <= set(report)
    assert page.read_text(encoding="utf-8") == html(report)


def test_texts_that_differ_fail_the_command(bench, stub, url):
    stub.text_of = lambda body: ("other",) if "num_speculative_tokens" in body["speculative"] else ("words",)
    code, out, _ = bench("--url", url, "--concurrency", 1)
    assert code == 1
    assert "Texts differ" in out


def test_requests_that_fail_fail_the_command(bench, stub, url):
    refused = []

    def text_of(body):
        if body["max_tokens"] == 8 and len(refused) < 3 and len(stub.bodies) > 6:
            refused.append(body)
            stub.gives_up = True
        else:
            stub.gives_up = False
        return stub.words

    stub.text_of = text_of
    code, out, _ = bench("--url", url, "--concurrency", 1)
    assert code == 1
    assert "requests failed" in " ".join(out.split())


def test_server_of_another_engine_is_one_side_with_openai_fields(bench, stub, url):
    stub.ours = False
    code, out, _ = bench("--url", url, "--concurrency", 1, "--json")
    assert code == 0
    assert json.loads(out)["sides"] == ["server"]
    assert all("speculative" not in body for body in stub.bodies)
    stub.ours = True
    assert bench("--url", url, "--concurrency", 1, "--plain-requests", "--json")[0] == 0
    assert all("speculative" not in body for body in stub.bodies)


def test_two_servers_are_two_sides(bench, stub, url):
    other = Stub()
    with stub_server(other) as plain_url:
        code, out, _ = bench("--url", url, "--plain-url", plain_url, "--concurrency", 1, "--json")
    assert code == 0
    assert json.loads(out)["settings"]["servers"] == {"plain": plain_url, "speculative": url}
    assert all(body["speculative"]["num_speculative_tokens"] == 0 for body in other.bodies)
    assert all("num_speculative_tokens" not in body["speculative"] for body in stub.bodies)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--concurrency", "one"], "--concurrency"),
        (["--concurrency", "1,1"], "each once"),
        (["--concurrency", "0"], "at least 1"),
        (["--rate", "-1"], "above 0"),
        (["--plain-url", "http://127.0.0.1:1"], "--plain-url needs --url"),
        (["--url", "http://127.0.0.1:1", "--serve-flags", "--threads 1"], "--serve-flags"),
        (["--url", "http://127.0.0.1:1"], "cannot be reached"),
    ],
)
def test_what_cannot_be_is_one_line(bench, flags, named):
    code, _, err = bench(*flags)
    assert code == 2
    assert named in err
    assert err.count("\n") == 1


def test_server_of_its_own_is_started_measured_and_ended(bench, tmp_path):
    """The real thing once: a process that serves a tiny model, both sides, both kinds of load."""
    directory = tiny_hf_directory(tmp_path / "model")
    config = '{"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}'
    questions = tmp_path / "questions.jsonl"
    lines = [{"question_id": n, "category": "chat", "turns": [f"{n} 2 3 {n} 2 3"]} for n in (1, 4)]
    questions.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    flags = ["--model", directory, "--serve-flags", f"--threads 1 --speculative-config '{config}'"]
    code, out, err = bench(
        *flags, "--questions", questions, "--concurrency", 2, "--rate", 50, "--max-tokens", 48, "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    assert report["identical"] is True
    for level in report["levels"]:
        plain, speculative = level["sides"]["plain"], level["sides"]["speculative"]
        assert plain["tokens"] == speculative["tokens"] > 100
        assert plain["drafted_tokens"] == 0
        assert plain["mean_acceptance_length"] == 1
        assert speculative["drafted_tokens"] > 0
        assert speculative["mean_acceptance_length"] > 1
        assert speculative["inter_token_latency"]["p99"] > 0
