"""`pilotfish tune` as a command: table, JSON, the file it writes, refusals."""

import json
import sys

import pytest

from pilotfish.cli import main
from pilotfish.models.native_executor import NativeExecutor
from tests.bench.lying import lie_when_verifying
from tests.models.tiny_models import tiny_hf_directory

DRAFTER = '{"method": "ngram", "prompt_lookup_min": 1}'


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(tiny_hf_directory(tmp_path_factory.mktemp("model")))


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command; gives exit code, standard output and standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pilotfish", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def tune(run, directory, tmp_path):
    (tmp_path / "prompts.txt").write_text("the shark the shark the\nlooks once looks once looks\n", encoding="utf-8")
    flags = ("--model", directory, "--threads", 1, "--max-tokens", 8, "--prompts", tmp_path / "prompts.txt")
    flags += ("--output", tmp_path / "config.json", "--drafter", DRAFTER)
    return lambda *arguments: run("tune", *flags, *arguments)


def test_json_names_the_best_and_every_command_accepts_the_file(tune, run, directory, tmp_path):
    code, out, _ = tune("--json", "--lengths", "1,3")
    assert code == 0
    report = json.loads(out)
    assert [each["requests"] for each in report["candidates"]] == [2, 2, 2]
    assert {each["name"] for each in report["candidates"]} == {
        "plain",
        "ngram prompt_lookup_min=1 k=1",
        "ngram prompt_lookup_min=1 k=3",
    }
    assert report["identical"] is True
    assert any(each["drafted_tokens"] > 0 for each in report["candidates"])
    assert {"command", "commit", "versions", "hardware", "seed"} <= set(report)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written == report["speculative_config"]
    assert written in [each["speculative_config"] for each in report["candidates"]]
    flags = ("--model", directory, "--max-tokens", 4, "--speculative-config", f"@{tmp_path / 'config.json'}")
    code, out, err = run("generate", "the shark", *flags)
    assert code == 0, err
    assert out


def test_plain_decoding_as_a_file_turns_speculation_off(run, directory, tmp_path):
    (tmp_path / "config.json").write_text('{"method": "off"}', encoding="utf-8")
    flags = ("--model", directory, "--max-tokens", 4, "--speculative-config", f"@{tmp_path / 'config.json'}", "--json")
    code, out, err = run("generate", "the shark the shark", *flags)
    assert code == 0, err
    assert json.loads(out)["metrics"]["drafted_tokens"] == 0


def test_table_ends_with_a_sentence_and_the_file(tune, tmp_path):
    code, out, _ = tune("--lengths", "2", "--raw", "--temperature", 1)
    assert code == 0
    *_, sentence, file = out.splitlines()
    assert sentence.startswith(("Use ngram prompt_lookup_min=1 k=2: ", "Leave speculation off: "))
    assert sentence.endswith(".")
    assert (
        file
        == f"Written to {tmp_path / 'config.json'}: pass it on with --speculative-config @{tmp_path / 'config.json'}"
    )
    assert "identical" in out


def test_exit_code_is_1_where_ids_differ(tune, monkeypatch):
    lie_when_verifying(monkeypatch, NativeExecutor)
    code, out, _ = tune("--json", "--lengths", "2", "--executor", "native")
    assert code == 1
    assert json.loads(out)["identical"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes 0"),
        (["--minutes", "nan"], "--minutes nan"),
        (["--lengths", "1,x"], "--lengths '1,x'"),
        (["--lengths", "-1"], "num_speculative_tokens=-1"),
        (["--drafter", "magic"], "method='magic'"),
        (["--drafter", '{"method": "suffix", "suffix_pool": "p"}'], "suffix_pool"),
        (["--drafter", "{"], "--drafter: expected a JSON object"),
        (["--prompts", "absent.txt"], "cannot read absent.txt"),
        (["--output", "absent/config.json"], "cannot write absent/config.json"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--model", "absent"], "no model 'absent'"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(tune, tmp_path, arguments, message):
    code, out, err = tune(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("pilotfish: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "config.json").exists()
