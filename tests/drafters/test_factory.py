"""Drafters by name: each method becomes its drafter with the settings it was given."""

import pytest

from pilotfish.drafters.backoff import BackoffTable
from pilotfish.drafters.draft_model import DraftModelDrafter
from pilotfish.drafters.eagle import EagleDrafter
from pilotfish.drafters.early_exit import EarlyExitDrafter
from pilotfish.drafters.factory import build_drafter
from pilotfish.drafters.lookup import LookupDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.recycle import RecycleDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.config import AUTO, METHODS, SpeculativeConfig
from pilotfish.errors import CorruptPoolError, SpeculativeConfigError, TokenizerMismatchError, UnsupportedModelError
from pilotfish.models.loading import load_model
from pilotfish.sampling.params import SamplingParams
from pilotfish.sampling.sampler import Sampler
from pilotfish.train.pool import save_table
from tests.drafters.common import propose
from tests.models.tiny_eagle import head_config, head_tensors, save_head
from tests.models.tiny_models import tiny_hf_directory, tiny_tokenizer

SAMPLER = Sampler(SamplingParams(seed=0), 384)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_hf_directory(tmp_path_factory.mktemp("target"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def target(directory):
    return load_model(directory)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "cache"))


def build(target, **settings):
    config = SpeculativeConfig.from_mapping(settings)
    return build_drafter(config.method, config, target, load_model)


def test_every_method_has_its_drafter(target, directory, tmp_path):
    head = save_head(tmp_path / "head", head_config("sglang"), head_tensors("sglang"))
    save_table(BackoffTable({}), tmp_path / "table", fingerprint=target.files.fingerprint, vocab_size=384)
    kinds = {
        "ngram": (NgramDrafter, {}),
        "suffix": (SuffixDrafter, {"tree_width": 3}),
        "recycle": (RecycleDrafter, {"tree_width": 2}),
        "lookup": (LookupDrafter, {"model": str(tmp_path / "table")}),
        "table": (LookupDrafter, {"model": str(tmp_path / "table")}),
        "early_exit": (EarlyExitDrafter, {"exit_layer": 1}),
        "draft_model": (DraftModelDrafter, {"model": str(directory)}),
        "eagle": (EagleDrafter, {"model": str(head)}),
    }
    assert set(kinds) == {*METHODS} - {AUTO}
    del kinds["eagle"]  # the tiny head was made for another target, and that is found out
    for method, (kind, settings) in kinds.items():
        drafter = build(target, method=method, **settings)
        assert type(drafter) is kind
        assert drafter.nodes_per_depth == settings.get("tree_width", 1)
    with pytest.raises(UnsupportedModelError, match="vocab_size is 64"):
        build(target, method="eagle", model=str(head))


def test_head_that_fits_becomes_a_drafter_with_its_boundaries(tmp_path):
    config = {"vocab_size": 384, "hidden_size": 32, "num_hidden_layers": 4}
    target = load_model(tiny_hf_directory(tmp_path / "target", **config))
    assert target.executor.config.hidden_size == 32
    vocab = target.executor.config.vocab_size
    values = head_config("speculators", vocab=vocab, layer_ids=[1, 2, 4])
    head = save_head(tmp_path / "head", values, head_tensors("speculators", vocab=vocab))
    drafter = build(target, method="eagle", model=str(head), tree_width=2)
    assert drafter.hidden_boundaries == (1, 2, 4)
    assert drafter.nodes_per_depth == 2


def test_exit_layer_must_fit_the_target(target):
    with pytest.raises(SpeculativeConfigError, match="exit_layer=2: expected 1 to 1"):
        build(target, method="early_exit", exit_layer=2)


def test_draft_model_must_share_the_tokenizer(target, tmp_path):
    other = tiny_hf_directory(tmp_path / "other")
    tiny_tokenizer(other, vocab_size=300)
    with pytest.raises(TokenizerMismatchError):
        build(target, method="draft_model", model=str(other))


def test_target_is_no_draft_model_of_its_own(target, directory):
    config = SpeculativeConfig.from_mapping({"method": "draft_model", "model": str(directory)})
    with pytest.raises(SpeculativeConfigError, match="is the target itself"):
        build_drafter("draft_model", config, target, lambda name: target)


def test_pool_is_kept_in_the_users_cache_by_model_and_name(target, tmp_path):
    first = build(target, method="suffix", suffix_pool="team")
    first.begin(0, 100)
    tokens = [7]
    propose(first, tokens, 1, SAMPLER)
    tokens.extend([1, 2, 3])
    first.end(0)
    (file,) = (tmp_path / "cache" / "pools").rglob("team.pool")

    def lends(name):
        drafter = build(target, method="suffix", suffix_pool=name)
        drafter.begin(1, 100)
        return propose(drafter, [0, 1, 2], 1, SAMPLER, request=1).tokens

    assert lends("team") == (3,)
    assert lends("another") == ()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptPoolError, match=r"team\.pool"):
        build(target, method="suffix", suffix_pool="team")
