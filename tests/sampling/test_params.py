import dataclasses
import math

import numpy as np
import pytest

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling import SamplingParams, fresh_seed

BAD_VALUES = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", True),
    ("temperature", "hot"),
    ("temperature", None),
    ("top_p", 0),
    ("top_p", -0.5),
    ("top_p", 1.0001),
    ("top_p", math.nan),
    ("top_p", False),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 1.0),
    ("seed", True),
    ("max_tokens", 0),
    ("max_tokens", -3),
    ("max_tokens", True),
    ("max_tokens", 2.0),
    ("stop", ""),
    ("stop", ["end", ""]),
    ("stop", [7]),
    ("stop", b"end"),
    ("stop", 7),
    ("stop", None),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", "12"),
    ("stop_token_ids", 12),
    ("ignore_eos", 1),
]


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_params_refuse_a_bad_value_naming_option_value_and_range(option, value):
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"{option} is {value!r}" if not isinstance(value, list) else f"{option} is ")
    assert "expected" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e-9),
        ("top_p", 1),
        ("top_p", 1e-6),
        ("top_k", -1),
        ("top_k", 1),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("seed", np.int64(3)),
        ("temperature", np.float32(0.5)),
        ("max_tokens", 1),
    ],
)
def test_params_accept_the_edges_of_each_range(option, value):
    assert getattr(SamplingParams(**{option: value}), option) == value


def test_params_refuse_an_unknown_option():
    with pytest.raises(TypeError, match="top_q"):
        SamplingParams(top_q=0.5)


def test_params_normalise_to_immutable_values():
    params = SamplingParams(temperature=1, stop="end", stop_token_ids=[3, 4])
    assert (params.temperature, type(params.temperature)) == (1.0, float)
    assert params.stop == params.stop_strings == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert hash(params) == hash(SamplingParams(temperature=1.0, stop=["end"], stop_token_ids=(3, 4)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.5


def test_with_seed_changes_the_seed_only():
    params = SamplingParams(temperature=0.3, top_k=7, stop="end")
    seeded = params.with_seed(11)
    assert seeded.seed == 11
    assert params.seed is None
    assert dataclasses.replace(seeded, seed=None) == params


def test_fresh_seeds_are_valid_and_differ():
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(SamplingParams(seed=seed).seed == seed and float(seed) == seed for seed in seeds)
