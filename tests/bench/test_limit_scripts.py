"""The scripts that measure early exit at every layer and the length policy at its limits, on a tiny model."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from pilotfish.engine.llm import LLM
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def exit_layers():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return runpy.run_path(str(SCRIPTS / "exit_layers.py"))


@pytest.fixture(scope="module")
def policy_limits():
    return runpy.run_path(str(SCRIPTS / "policy_limits.py"))


@pytest.fixture
def run(tiny_directory, tmp_path, monkeypatch, capsys):
    """Runs a script on the tiny model with two questions; gives exit code, what it printed and the figures it wrote."""
    questions = [
        {"question_id": n, "category": "chat", "turns": [text]} for n, text in enumerate(("the shark", "7 42"))
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))

    def run(script, *flags, **constants):
        main = script["main"]
        main.__globals__.update(MODEL=str(tiny_directory), **constants)
        figures = tmp_path / "figures.json"
        arguments = (tmp_path / "questions.jsonl", "--limit", 2, "--weights", "auto", "--threads", 1, *flags)
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, arguments), "--json", str(figures)])
        return main(), capsys.readouterr().out, json.loads(figures.read_text())

    return run


def test_rounds_are_walked_along_the_answer(exit_layers):
    agrees = [True, True, False, False, True, True, True]
    assert exit_layers["rounds_of"](agrees, 1) == (7, 5)
    assert exit_layers["rounds_of"](agrees, 2) == (7, 3)
    assert exit_layers["rounds_of"](agrees, 8) == (7, 3)
    assert exit_layers["rounds_of"]([False] * 4, 3) == (4, 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_agreement_of_a_layer_gives_the_rounds_of_the_engine(exit_layers, llm, temperature):
    # Of three tokens the next is guessed often enough.
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, allowed_token_ids=(50, 51, 52))
    prompt = llm.tokenizer.encode("The shark looks once")
    for draft_len in (1, 3):
        config = {"method": "early_exit", "exit_layer": 1, "num_speculative_tokens": draft_len}
        completion = llm.with_speculation(config).generate(prompt, params)[0].outputs[0]
        answer = list(completion.token_ids)
        # The engine drafts the answer's first token as well; from the second on the script walks the same way.
        later_rounds = completion.metrics.rounds - 1
        found = exit_layers["agreement"](llm.engine.target, prompt, answer, Sampler(params, llm.tokenizer.vocab_size))
        assert len(found) == llm.engine.target.config.num_layers - 1
        own = list(llm.with_speculation(config).stream(prompt, params))
        skipped = len(own[0].token_ids) - 1
        assert exit_layers["rounds_of"](found[0][skipped:], draft_len) == (len(answer) - 1 - skipped, later_rounds)
        assert completion.metrics.accepted_tokens > 0


def test_exit_layer_table_has_every_layer_and_confirms_on_the_engine(exit_layers, run, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- exit layers: begin --><!-- exit layers: end -->\n")
    code, out, figures = run(
        exit_layers, "--docs", page, "--max-tokens", 8, "--confirm", "1:2", CONTEXT=16, REPEATS=1, LENGTHS=(1, 2)
    )
    assert code == 0
    assert [line["layer"] for line in figures["lines"]] == [1]
    (line,) = figures["lines"]
    expected = line["tokens_per_round"] / (line["draft_len"] * line["draft_cost"] + line["verify_cost"])
    assert line["speedup"] == pytest.approx(expected)
    assert line["draft_cost"] > 0
    assert figures["confirmed"][0]["measured"] > 0
    assert "Layer 1, k = 2 in the engine: expected" in out
    assert out.strip() in page.read_text()


def test_turn_of_a_text_is_followed_when_drafts_stay_long(policy_limits):
    followed = policy_limits["followed_after"]
    assert followed([0] * 4 + [0, 0, 3, 3, 3], 4, 3, 20) == 2
    assert followed([0] * 4 + [3, 1, 3, 3, 3], 4, 3, 30) == 2
    assert followed([0] * 4 + [3, 3, 1], 4, 3, 14) == 0, "at the end of the answer there is no more to draft"
    assert followed([0] * 10, 4, 3, 10) is None


def test_policy_limits_are_measured_on_the_engine_and_judged(policy_limits, run):
    sides = policy_limits["_sides"].__globals__
    code, out, figures = run(policy_limits, "--max-tokens", 24, FIXED=(1, 4))
    names = set(figures["figures"])
    assert {"plain", "perfect, k=1", "perfect, k=4", "perfect, warm", "random, cold", "turning, warm"} <= names
    assert all(each["tokens_per_second"] > 0 for each in figures["figures"].values())
    assert code == (1 if figures["missed"] else 0)
    assert len(figures["figures"]["turning, cold"]["followed_after"]) == 2
    assert "Best fixed length" in out
    sides["GOALS"] = {"random": 100.0}
    code, out, figures = run(policy_limits, "--max-tokens", 8, FIXED=(1, 4))
    assert code == 1
    assert "MISSED: random, warm: " in out


def test_perfect_drafter_is_accepted_whole(policy_limits, tiny_directory):
    from pilotfish.models.loading import load_model

    model = load_model(tiny_directory, threads=1)
    sides = policy_limits["_sides"](model, False)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    prompt = model.tokenizer.encode("the shark")
    (completion,) = LLM(tiny_directory, threads=1, speculative_config=None).generate([prompt], params)[0].outputs
    answer = list(completion.token_ids)
    for name in ("perfect, k=4", "random, warm", "turning, cold"):
        assert sides[name].run(prompt, params, answer) == answer
    assert sum(1 + size for size in sides["perfect, k=4"].sizes[0]) >= 16
    assert len(sides["perfect, k=4"].sizes[0]) == 4
