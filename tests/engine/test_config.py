"""`SpeculativeConfig`: known keys only, each in its range, named where it is not."""

import pytest

from pilotfish.engine.config import SpeculativeConfig
from pilotfish.errors import SpeculativeConfigError


def test_model_alone_means_draft_model():
    assert SpeculativeConfig.from_mapping({"model": "x"}).method == "draft_model"


def test_eagle3_is_another_name_for_eagle():
    assert SpeculativeConfig.from_mapping({"method": "eagle3", "model": "x"}).method == "eagle"


@pytest.mark.parametrize(
    "mapping",
    [
        {"method": "suffix", "tree_width": 3, "suffix_pool": "team", "suffix_decoding_max_spec_factor": 2},
        {"method": "recycle", "tree_width": 3, "verification": "traversal"},
        {"method": "early_exit", "exit_layer": 4},
    ],
)
def test_method_takes_its_own_keys(mapping):
    config = SpeculativeConfig.from_mapping(mapping)
    assert all(getattr(config, key) == value for key, value in mapping.items())


def test_auto_is_the_model_free_drafters_under_one_rule():
    auto = SpeculativeConfig.parse("auto")
    assert [member.method for member in auto.drafters] == ["lookup"]
    chosen = SpeculativeConfig.parse(
        {"method": "auto", "drafters": ["ngram", {"method": "suffix"}], "verification": "block"}
    )
    assert [(member.method, member.verification) for member in chosen.drafters] == [
        ("ngram", "block"),
        ("suffix", "block"),
    ]
    assert SpeculativeConfig.parse(None) is None
    assert SpeculativeConfig.parse(auto) is auto


def test_drafters_that_draw_stand_side_by_side_where_the_rule_lets_drafts_be_joined():
    drafters = [{"model": "x"}, {"method": "early_exit", "exit_layer": 2}]
    assert len(SpeculativeConfig.from_mapping({"method": "auto", "drafters": drafters}).drafters) == 2
    alone = {"method": "auto", "drafters": ["ngram", drafters[0]], "verification": "rejection"}
    assert len(SpeculativeConfig.from_mapping(alone).drafters) == 2


@pytest.mark.parametrize("given", ["ngram", 3, [1]])
def test_what_is_no_configuration_is_refused(given):
    with pytest.raises(SpeculativeConfigError, match="expected a dictionary, 'auto' or None"):
        SpeculativeConfig.parse(given)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({}, "method is missing"),
        ({"method": "magic"}, "expected one of auto, lookup, draft_model, ngram"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens=-1"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "num_speculative_tokens=2.5"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min=0"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "above prompt_lookup_max"),
        ({"method": "ngram", "verification": "hope"}, "expected one of match, rejection, block, traversal"),
        ({"method": "draft_model"}, "needs model"),
        ({"method": "auto", "drafters": []}, "expected a list of configurations"),
        ({"method": "auto", "drafters": "ngram"}, "expected a list of configurations"),
        ({"method": "auto", "drafters": [3]}, "expected the configuration of one drafter"),
        ({"method": "auto", "drafters": ["auto"]}, "expected the configuration of one drafter"),
        ({"method": "auto", "drafters": [{"method": "magic"}]}, "method='magic'"),
        ({"method": "auto", "drafters": [{"method": "ngram", "num_speculative_tokens": 2}]}, "belongs to the whole"),
        ({"method": "ngram", "drafters": ["ngram"]}, "only used by method='auto'"),
        ({"method": "suffix", "prompt_lookup_max": 8}, "only used by method='ngram'"),
        ({"method": "ngram", "num_speculative_tokens": 513}, "expected at most 512"),
        (
            {"method": "suffix", "suffix_pool": "mine", "verification": "block"},
            "not independent of a repeated seed",
        ),
        (
            {"method": "auto", "drafters": [SpeculativeConfig(method="ngram", num_speculative_tokens=2)]},
            "belongs to the whole",
        ),
        (
            {
                "method": "auto",
                "verification": "rejection",
                "drafters": [SpeculativeConfig(method="suffix", tree_width=4)],
            },
            "that rule takes chains only",
        ),
        ({"method": "ngram", "num_speculative_tokens": "many"}, "expected 'auto' or an integer of at least 0"),
        ({"method": "ngram", "model": "x"}, "only used by method='draft_model'"),
        ({"method": "ngram", "tree_width": 2}, "tree_width=2 is only used by method='suffix' or 'recycle'"),
        ({"method": "suffix", "exit_layer": 2}, "exit_layer=2 is only used by method='early_exit'"),
        ({"method": "recycle", "suffix_pool": "x"}, "suffix_pool='x' is only used by method='suffix'"),
        ({"method": "suffix", "tree_width": 0}, "tree_width=0"),
        ({"method": "suffix", "tree_width": 2, "verification": "block"}, "that rule takes chains only"),
        ({"method": "suffix", "suffix_pool": 3}, "suffix_pool=3"),
        ({"method": "suffix", "suffix_pool_tokens": 0}, "suffix_pool_tokens=0"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": 0}, "suffix_decoding_max_spec_factor=0"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": "1"}, "suffix_decoding_max_spec_factor='1'"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "suffix_decoding_min_token_prob=1.5"),
        ({"method": "early_exit"}, "needs exit_layer"),
        (
            {"method": "auto", "drafters": [{"method": "early_exit", "exit_layer": layer} for layer in (1, 2)]},
            "early_exit more than once",
        ),
        (
            {
                "method": "auto",
                "verification": "block",
                "drafters": ["ngram", {"model": "x"}, {"method": "early_exit", "exit_layer": 2}],
            },
            "drafters has draft_model and early_exit with verification='block'",
        ),
        ({"method": "early_exit", "exit_layer": 0}, "exit_layer=0"),
        ({"method": "eagle"}, "needs model: an EAGLE-3 head"),
    ],
)
def test_mistake_is_named(mapping, message):
    with pytest.raises(SpeculativeConfigError, match=message):
        SpeculativeConfig.from_mapping(mapping)
