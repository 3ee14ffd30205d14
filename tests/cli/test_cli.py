"""The command line as a user meets it: separate processes, exit codes, one-line errors, JSON."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from pilotfish.cli.models import list_models
from pilotfish.models import catalogue
from tests.models.tiny_models import tiny_hf_directory

PROMPT = "The shark looks once, and once more the shark looks"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tiny_hf_directory(tmp_path_factory.mktemp("target")))


def pilotfish(*arguments, stdin="", **environment):
    return subprocess.run(
        [sys.executable, "-m", "pilotfish.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def generate(directory, *arguments, **options):
    return pilotfish("generate", "--model", directory, "--max-tokens", "12", "--seed", "3", *arguments, **options)


def test_json_describes_the_output_and_replays(directory):
    first = generate(directory, PROMPT, "--json", "--method", "ngram")
    assert first.returncode == 0, first.stderr
    record = json.loads(first.stdout)
    assert set(record) == {"text", "token_ids", "finish_reason", "seed", "usage", "metrics"}
    assert record["usage"]["completion_tokens"] == len(record["token_ids"]) == 12
    assert record["finish_reason"] == "length"
    assert record["seed"] == 3
    assert set(record["metrics"]) == {
        "rounds",
        "drafted_tokens",
        "accepted_tokens",
        "accepted_per_position",
        "tokens_per_round",
        "decode_tokens_per_second",
        "time_to_first_token",
    }
    plain = json.loads(generate(directory, "--json", "-", "--method", "off", stdin=PROMPT).stdout)
    assert plain["token_ids"] == record["token_ids"]
    assert plain["metrics"]["drafted_tokens"] == 0


def test_stream_prints_the_text_from_argument_file_and_stdin(directory, tmp_path):
    (tmp_path / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    text = json.loads(generate(directory, PROMPT, "--json").stdout)["text"] + "\n"
    assert generate(directory, PROMPT).stdout == text
    assert generate(directory, "--file", str(tmp_path / "prompt.txt"), "--method", "ngram").stdout == text
    assert generate(directory, stdin=PROMPT).stdout == text


def test_speculative_config_comes_from_json_or_a_file(directory, tmp_path):
    config = {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for text in (json.dumps(config), f"@{tmp_path / 'config.json'}"):
        record = json.loads(generate(directory, PROMPT, "--json", "--speculative-config", text).stdout)
        assert record["metrics"]["drafted_tokens"] > 0


def test_chat_answers_each_line(directory):
    chat = pilotfish("chat", "--model", directory, "--max-tokens", "5", "--seed", "1", stdin="Hello\nAnd now?\n")
    assert chat.returncode == 0, chat.stderr
    assert chat.stderr.count("mean acceptance length") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "absent"], "no model 'absent'"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "1.5"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--file", "absent.txt"], "got a prompt and --file"),
        (["--speculative-config", "{"], "expected a JSON object"),
        (["--speculative-config", "@absent.json"], "cannot read 'absent.json'"),
        (["--speculative-config", '{"method": "ngram", "k": 3}'], "no key 'k'"),
        (["--method", "magic"], "method='magic'"),
        (["--executor", "gpu"], "executor='gpu': expected one of auto, native, torch"),
        (["--executor", "torch", "--weights", "int8"], "needs the native executor"),
        (["--threads", "0"], "threads=0"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(directory, arguments, message):
    result = generate(directory, PROMPT, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("pilotfish: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_prompt_that_is_not_utf8_is_refused(directory, tmp_path):
    (tmp_path / "latin1.txt").write_bytes("façade".encode("latin-1"))
    result = generate(directory, "--file", str(tmp_path / "latin1.txt"))
    assert result.returncode == 2
    assert "not UTF-8" in result.stderr


def test_reader_that_goes_away_is_no_crash(directory):
    command = f"{sys.executable} -m pilotfish.cli generate --model {directory} --max-tokens 200 x | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert result.stderr == b""


def test_models_list_shows_the_catalogue(tmp_path):
    result = pilotfish("models", "list", PILOTFISH_CACHE=str(tmp_path))
    assert result.returncode == 0
    assert "smollm2-135m-instruct" in result.stdout


def test_models_list_prints_a_cached_path_whole(monkeypatch, capsys, tmp_path):
    path = tmp_path / ("long" * 40) / "model.gguf"
    found = catalogue.CatalogueStatus("fish", "A model.", 98_000_000, True, path, "PyPI: fish==1")
    monkeypatch.setattr(catalogue, "listing", lambda: [found])
    list_models()
    assert capsys.readouterr().out == f"fish  98 MB  PyPI: fish==1  cached at {path}\n"


def test_demo_exits_1_when_nothing_was_drafted_and_0_when_ids_agree(directory, tmp_path):
    draft = shutil.copytree(directory, tmp_path / "draft")
    # A fixed length: as costly as its target, this drafter would be left out by one that adapts.
    drafter = ("--method", "draft_model", "--draft-model", str(draft), "-k", "2")
    result = pilotfish("demo", "--model", directory, "--max-tokens", "16", *drafter)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "All token ids are identical" in result.stdout
    off = pilotfish("demo", "--model", directory, "--max-tokens", "4", "--method", "off")
    assert off.returncode == 1
