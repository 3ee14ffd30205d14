"""`SpeculativeConfig`: known keys only, each in its range, named where it is not."""

import pytest

from pilotfish.engine.config import SpeculativeConfig
from pilotfish.errors import SpeculativeConfigError


def test_model_alone_means_draft_model():
    assert SpeculativeConfig.from_mapping({"model": "x"}).method == "draft_model"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({}, "method is missing"),
        ({"method": "magic"}, "expected one of draft_model, ngram"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens=-1"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "num_speculative_tokens=2.5"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min=0"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "above prompt_lookup_max"),
        ({"method": "ngram", "verification": "hope"}, "expected one of match, rejection, block, traversal"),
        ({"method": "draft_model"}, "needs model"),
        ({"method": "ngram", "model": "x"}, "only used by method='draft_model'"),
    ],
)
def test_mistake_is_named(mapping, message):
    with pytest.raises(SpeculativeConfigError, match=message):
        SpeculativeConfig.from_mapping(mapping)
