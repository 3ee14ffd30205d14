"""`pilotfish train head | draft | exit | pool` and `pilotfish convert` as commands."""

import io
import json
import sys
from dataclasses import fields

import pytest

from pilotfish.cli import main, training_flags
from pilotfish.train.options import TrainOptions
from pilotfish.train.session import Session
from tests.train.tiny_data import planted_target, texts, write_data

SHORT = (
    *("--steps", 3, "--batch-tokens", 200, "--evaluate-every", 3, "--evaluate-depths", 3, "--evaluate-tokens", 100),
    *("--check-prompts", 2, "--draft-vocab-size", 300, "--threads", 1),
)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PILOTFISH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory, own_cache):
    return planted_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory, target):
    return write_data(tmp_path_factory.mktemp("data") / "set", target, texts(target, 40))


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


@pytest.mark.parametrize(
    ("kind", "flags", "method"),
    [
        ("head", ("--layers", 2, "--start-layers", "0,3", "--boundaries", "1,2,4", "--depths", 2), "eagle"),
        ("draft", ("--start-layers", "0,-1"), "draft_model"),
        ("exit", ("--exit-layer", 1, "--rank", 8), "early_exit"),
    ],
)
def test_training_command_makes_a_checked_drafter_with_its_card(run, target, data, tmp_path, kind, flags, method):
    output = tmp_path / "run"
    code, out, err = run("train", kind, data, output, "--model", target, *flags, *SHORT)
    assert code == 0, err
    assert "projected" in out
    assert "Measured" in out
    assert err.count("projected speedup") == 2, "a line per measurement"
    description = json.loads((output / "drafter.json").read_text())
    assert description["method"] == method
    record = json.loads((output / "training.json").read_text())
    assert record["check"]["answers_identical"] is True
    assert record["run"]["origin"]["command"].startswith("pilotfish train " + kind)
    card = (output / "README.md").read_text()
    for told in ("target checksum", "commit", "hours", "Projected speedup", record["run"]["target"][:16]):
        assert told in card
    assert (output / "training.svg").read_text().startswith("<svg")
    config = json.dumps({"method": method, "model": str(output)})
    code, out, _ = run("generate", "the shark", "--model", target, "--max-tokens", 4, "--speculative-config", config)
    assert code == 0
    code, _, err = run("train", kind, data, output, "--model", target, *flags, *SHORT)
    assert code == 2
    assert "--resume" in err


def test_pool_command_reports_what_it_gives(run, target, data, tmp_path):
    code, out, err = run("train", "pool", data, tmp_path / "pool", "--model", target, "--min-count", 1, "--json")
    assert code == 0, err
    assert len(json.loads(out)["tokens_per_round"]) == 8
    code, out, _ = run("train", "pool", data, tmp_path / "pool", "--model", target, "--min-count", 1)
    assert "tokens per round on held-out text" in out


def test_convert_writes_the_other_layout(run, target, data, tmp_path):
    flags = ("--boundaries", "1,2,4", "--check-prompts", 0)
    assert run("train", "head", data, tmp_path / "head", "--model", target, *SHORT, *flags)[0] == 0
    assert run("convert", tmp_path / "head", tmp_path / "other", "--layout", "sglang")[0] == 0
    values = json.loads((tmp_path / "other" / "config.json").read_text())
    assert values["architectures"] == ["LlamaForCausalLMEagle3"]
    code, _, err = run("convert", tmp_path / "head", tmp_path / "third", "--layout", "vllm")
    assert (code, "expected one of speculators, sglang" in err) == (2, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--loss", "mse"), "loss is 'mse'"),
        (("--dtype", "int8"), "dtype is 'int8'"),
        (("--boundaries", "low"), "--boundaries 'low'"),
        (("--layers", 2, "--layout", "sglang"), "layers is 2"),
        (("--start-layers", "0,1"), "start_layers has 2 layers for a head of 1"),
    ],
)
def test_mistakes_are_refused_before_anything_is_spent(run, target, data, tmp_path, flags, message):
    code, _, err = run("train", "head", data, tmp_path / "run", "--model", target, *flags)
    assert code == 2
    assert message in err
    assert not (tmp_path / "run").exists()


def test_every_option_has_its_flag():
    apart = {"data", "output", "origin"}
    known = {field.name for field in (*fields(TrainOptions), *fields(Session))} - apart
    assert training_flags.fields_covered() == known
    defaults = {field.name: field.default for field in (*fields(TrainOptions), *fields(Session))}
    for table in (training_flags._TRAINING, training_flags.UNROLLING, training_flags._SESSION):
        for name, (_, default, *_) in table.items():
            assert name == "model" or default == defaults[name]


def test_view_shows_what_the_records_say():
    from rich.console import Console

    from pilotfish.cli.train_view import _State

    state = _State(100)
    record = {"step": 7, "loss": 2.5, "loss_kind": "ce", "tokens_per_second": 321.0}
    figures = {name: [0.5, 0.25] for name in ("greedy", "sampled", "tokens_per_round")}
    for each in (record, {"step": 7, "held_out": {**figures, "projected_speedup": 1.234, "draft_len": 2}}):
        state.take(each)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(state.table())
    shown = console.export_text()
    for told in ("step 7 of 100", "loss 2.5000 (ce)", "321 tokens/s", "0.50 0.25", "1.234x (k=2)"):
        assert told in shown
    assert "1.234x with 2 drafted" in state.line()
