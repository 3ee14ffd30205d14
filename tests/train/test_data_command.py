"""`pilotfish train data` as a command: what it prints, what it refuses."""

import json
import sys

import pytest

from pilotfish.cli import main
from pilotfish.train.data import DataProgress
from pilotfish.train.dataset import DataSet
from tests.train.talking import talking_target

SMALL = ("--batch", 4, "--max-prompt-tokens", 24, "--max-answer-tokens", 12, "--max-tokens", 120, "--threads", 1)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return talking_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def data(target, monkeypatch, capsys):
    """Runs the command; gives exit code, standard output and standard error."""

    def run(*arguments):
        flags = ("train", "data", *arguments, "--model", target, *SMALL)
        monkeypatch.setattr(sys, "argv", ["pilotfish", *map(str, flags)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return (code, *capsys.readouterr())

    return run


def test_time_left_is_told_once_the_pace_is_known():
    assert DataProgress(answer_tokens=50, goal=1050, made=50, seconds=9.9, shards=0).seconds_left is None
    assert DataProgress(answer_tokens=0, goal=1050, made=0, seconds=20.0, shards=0).seconds_left is None
    assert DataProgress(answer_tokens=250, goal=1050, made=50, seconds=10.0, shards=2).seconds_left == 160


def test_command_makes_a_set_says_what_is_in_it_and_goes_on_with_it(data, tmp_path):
    code, out, err = data(tmp_path / "d", "--answer-tokens", 60, "--json")
    assert code == 0
    figures = json.loads(out)
    manifest = DataSet(tmp_path / "d").manifest
    assert figures["answer_tokens"] == manifest.totals.answer_tokens >= 60
    assert figures["distinct_prompts"] == figures["conversations"] > 0
    assert 0 < figures["ended_share"] <= 1
    assert figures["tokens_per_second"] > 0
    assert figures["reached"] is True
    assert manifest.boundaries == (1, 2, 3), "an EAGLE-3 head's and the last, as far as the model has them"
    assert manifest.origin["command"].startswith("pilotfish train data")
    assert "of 60 tokens" in err
    code, out, _ = data(tmp_path / "d", "--answer-tokens", 120)
    assert code == 0
    assert "distinct prompts" in out
    assert DataSet(tmp_path / "d").manifest.totals.answer_tokens >= 120


def test_command_answers_a_file_of_prompts_once(data, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"q": "the shark"}\n{"q": "looks once"}\n', encoding="utf-8")
    code, out, _ = data(tmp_path / "d", "--prompts", tmp_path / "p.jsonl", "--field", "q", "--hidden", "recompute")
    assert code == 0
    assert "All prompts are used up" in out
    manifest = DataSet(tmp_path / "d").manifest
    assert manifest.totals.conversations == 2
    assert manifest.boundaries == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hidden", "maybe"), "--hidden 'maybe': expected store or recompute"),
        (("--hidden", "recompute", "--boundaries", "1"), "leave --boundaries out"),
        (("--boundaries", "one"), "--boundaries 'one': expected whole numbers"),
        (("--boundaries", "1,8"), "boundaries [8]"),
        (("--temperatures", "0.5"), "--temperatures '0.5': expected temperature:share"),
        (("--answer-tokens", "0"), "answer_tokens=0: expected at least 1"),
        (("--no-invent",), "no prompts"),
        (("--prompts", "missing.txt"), "missing.txt: the prompts cannot be read"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(data, tmp_path, arguments, message):
    code, _, err = data(tmp_path / "d", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
