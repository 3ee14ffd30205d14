"""Drafters that come with the package: found by the target's checksum, used by `auto`, bounded in size."""

import json

import pytest

from pilotfish.drafters import shipped
from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.shipped import DIRECTORY, shipped_drafters, write_description
from pilotfish.engine.config import SpeculativeConfig
from pilotfish.engine.llm import LLM
from pilotfish.errors import CorruptModelError, SpeculativeConfigError
from pilotfish.models.files import resolve
from pilotfish.sampling.params import SamplingParams
from pilotfish.train.pool import Text, build_table, save_table
from tests.models.tiny_models import tiny_hf_directory

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("target"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))


def ship(path, target, texts):
    import numpy as np

    fingerprint = resolve(target).fingerprint
    pairs = [Text(np.array(tokens), np.arange(len(tokens)) > 1) for tokens in texts]
    table = build_table(pairs, orders=(1, 2), max_bytes=100_000, min_count=1) if texts else BackoffTable({})
    save_table(table, path, fingerprint=fingerprint, vocab_size=384)
    write_description(path, fingerprint, "table")
    return fingerprint


def test_auto_uses_what_is_shipped_for_this_target_and_answers_stay_the_same(target, tmp_path, monkeypatch):
    prompts = [[5, 6, 7], [20, 30, 40]]
    plain = [output.outputs[0].token_ids for output in LLM(target, speculative_config=None).generate(prompts, PARAMS)]
    texts = [[*prompt, *answer] for prompt, answer in zip(prompts, plain, strict=True)]
    fingerprint = ship(tmp_path / "shipped" / "tiny-table", target, texts)
    monkeypatch.setattr(shipped, "DIRECTORY", tmp_path / "shipped")
    assert shipped_drafters(fingerprint) == ({"method": "table", "model": str(tmp_path / "shipped" / "tiny-table")},)
    rounds = {}
    for name, config in {
        "with": {"method": "auto", "drafters": ["ngram"], "shipped": True},
        "without": {"method": "auto", "drafters": ["ngram"]},
    }.items():
        llm = LLM(target, speculative_config=config)
        for prompt, expected in zip(prompts, plain, strict=True):
            assert llm.generate([prompt], PARAMS)[0].outputs[0].token_ids == expected
        rounds[name] = [len(member.drafter.hidden_boundaries) for member in llm.engine.drafter._members]
    assert len(rounds["with"]) == 2
    assert len(rounds["without"]) == 1
    lookup = LLM(target)
    assert len(lookup.engine.drafter.drafters) == 1, "the default has one drafter, which knows the table"
    assert lookup.speculative_config.drafters[0].model is None, "found when it is built"
    fewer = LLM(target, speculative_config={"method": "auto", "drafters": ["lookup"]})
    for llm in (lookup, fewer):
        assert llm.generate([prompts[0]], PARAMS)[0].outputs[0].token_ids == plain[0]
    assert lookup.totals.rounds < fewer.totals.rounds


def test_another_target_gets_nothing(target, tmp_path, monkeypatch):
    ship(tmp_path / "shipped" / "tiny-table", target, [])
    monkeypatch.setattr(shipped, "DIRECTORY", tmp_path / "shipped")
    assert shipped_drafters("0" * 64) == ()


def test_damaged_description_is_named(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "drafter.json").write_text(json.dumps({"method": "table"}))
    with pytest.raises(CorruptModelError, match=r"drafter.json: expected an object with 'targets'"):
        shipped_drafters("abc", tmp_path)


def test_key_is_autos_and_true_or_false():
    assert SpeculativeConfig(method="auto").shipped is True
    assert SpeculativeConfig(method="auto", drafters=["ngram"]).shipped is False
    with pytest.raises(SpeculativeConfigError, match="shipped=True is only used by method='auto'"):
        SpeculativeConfig(method="ngram", shipped=True)
    with pytest.raises(SpeculativeConfigError, match="expected true or false"):
        SpeculativeConfig(method="auto", shipped="yes")


def test_everything_shipped_is_small():
    assert sum(path.stat().st_size for path in DIRECTORY.rglob("*") if path.is_file()) <= 20_000_000
