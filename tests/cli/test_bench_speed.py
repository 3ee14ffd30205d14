"""`pilotfish bench speed` as a command: JSON, files, exit codes, refusals."""

import json
import sys

import pytest

from pilotfish.bench.report import html, markdown
from pilotfish.cli import main
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from tests.bench.lying import lie_when_verifying
from tests.models.tiny_models import tiny_hf_directory

QUESTIONS = [
    {"question_id": 1, "category": "chat", "turns": ["the shark the shark the", "once more"]},
    {"question_id": 2, "category": "chat", "turns": ["never asked with --limit 1"]},
    {"question_id": 3, "category": "code", "turns": ["looks once looks once looks"]},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tiny_hf_directory(tmp_path_factory.mktemp("model")))


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    return path


@pytest.fixture
def speed(directory, questions, monkeypatch, capsys):
    """Runs the command; gives exit code, standard output and standard error."""

    def run(*arguments):
        flags = ["--model", directory, "--threads", "1", "--max-tokens", "8", "--questions", str(questions)]
        monkeypatch.setattr(sys, "argv", ["pilotfish", "bench", "speed", *flags, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    return run


CONFIG = '{"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 3}'


def test_json_says_what_was_measured_and_where(speed, tmp_path):
    flags = ("--json", "--limit", 1, "--speculative-config", CONFIG, "--oracle", "--html", tmp_path / "r.html")
    code, out, _ = speed(*flags)
    assert code == 0
    report = json.loads(out)
    assert {"overall", "categories", "command", "commit", "versions", "hardware", "seed"} <= set(report)
    assert [each["temperature"] for each in report["temperatures"]] == [0.0, 1.0]
    assert report["command"].startswith("pilotfish bench speed --model")
    assert report["settings"]["speculative_config"] == json.loads(CONFIG)
    assert report["settings"]["questions"]["count"] == 2
    assert report["categories"]["chat"]["plain"]["requests"] == 2
    assert report["overall"]["speculative"]["drafted_tokens"] > 0
    assert report["overall"]["identical"] is True
    assert report["settings"]["cold"] is False
    assert report["overall"]["oracle"]["tokens_per_round"] >= 1
    assert set(report["categories"]["chat"]["oracle"]["rounds_by_drafter"]) <= {"plain", "ngram"}
    assert [each["rows"] for each in report["pass_costs"]["passes"]] == [1, 2, 3, 4, 5, 6, 8, 9, 12, 17]
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == html(report)


def test_table_and_markdown_for_people(speed, tmp_path):
    code, out, _ = speed("--first-turn", "--temperature", 0, "--cold", "--markdown", tmp_path / "r.md")
    assert code == 0
    assert "A fresh engine and drafter for every request" in out
    assert "The formula of expected speed gives" in out
    assert "temperature 0: " in out
    assert "temperature 1: " not in out
    assert "all token ids identical" in " ".join(out.split())
    assert "| overall | 3 |" in (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "# Plain and speculative decoding" in markdown({"temperatures": [], **_no_facts()})


def _measured(out):
    """The figures of the answers; those of the passes alone, which are timed at each start, left out."""
    (temperature,) = json.loads(out)["temperatures"]
    for figures in (temperature["overall"], *temperature["categories"].values()):
        assert figures.pop("expected")["speedup"] > 0
    return temperature


def _no_facts():
    return dict.fromkeys(("command", "commit", "date", "seed")) | {"settings": {}, "versions": {}, "hardware": {}}


@pytest.mark.parametrize(("executor", "expected"), [("native", 1), ("torch", 0)])
def test_exit_code_is_1_where_ids_differ_on_an_executor_that_promises_otherwise(speed, monkeypatch, executor, expected):
    lie_when_verifying(monkeypatch, {"native": NativeExecutor, "torch": TorchExecutor}[executor])
    code, out, _ = speed("--json", "--temperature", 0, "--executor", executor, "--speculative-config", CONFIG)
    assert code == expected
    assert json.loads(out)["identical"] is False


def test_resume_asks_nothing_again_and_refuses_other_settings(speed, tmp_path):
    flags = ("--json", "--temperature", 0, "--resume", tmp_path / "results.jsonl")
    _, first, _ = speed(*flags)
    written = (tmp_path / "results.jsonl").read_bytes()
    _, second, _ = speed(*flags)
    assert _measured(second) == _measured(first)
    assert (tmp_path / "results.jsonl").read_bytes() == written
    code, out, err = speed(*flags, "--seed", 1)
    assert (code, out) == (2, "")
    assert "seed=0, now it is 1" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "off"], "nothing to compare plain decoding with"),
        (["--method", "magic"], "method='magic'"),
        (["--limit", "0"], "limit=0"),
        (["--repeats", "0"], "repeats=0"),
        (["--seed", "-1"], "seed=-1"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "1", "--temperature", "1"], "each once"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--questions", "absent.jsonl"], "cannot read absent.jsonl"),
        (["--html", "absent/r.html"], "cannot write absent/r.html"),
        (["--markdown", "."], "cannot write ."),
        (["--resume", "absent/r.jsonl"], "cannot use absent/r.jsonl"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(speed, arguments, message):
    code, out, err = speed(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("pilotfish: ")
    assert err.count("\n") == 1
    assert message in err


def test_bad_question_is_refused_with_its_line(speed, questions):
    questions.write_text(questions.read_text() + '\n{"question_id": 4, "category": "chat"}\n', encoding="utf-8")
    code, _, err = speed()
    assert code == 2
    assert "questions.jsonl:4: no 'turns'" in err
