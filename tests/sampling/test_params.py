import dataclasses
import math

import numpy as np
import pytest

from pilotfish.errors import SamplingParamsError
from pilotfish.sampling import SamplingParams, derived_seed, fresh_seed

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
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("min_p", math.nan),
    ("typical_p", 0),
    ("typical_p", 1.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 1e7),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", math.inf),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", "much"),
    ("no_repeat_ngram_size", -1),
    ("no_repeat_ngram_size", 1.0),
    ("logit_bias", {1: math.nan}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"a": 1.0}),
    ("logit_bias", {1: "a"}),
    ("logit_bias", [(1, 2.0)]),
    ("allowed_token_ids", [-3]),
    ("allowed_token_ids", 3),
    ("banned_token_ids", ["a"]),
    ("banned_token_ids", None),
    ("bad_words", ["a", ""]),
    ("bad_words", [3]),
    ("logits_processors", [3]),
    ("logits_processors", print),
    ("structured_outputs", 3),
    ("n", 0),
    ("n", True),
    ("best_of", 0),
    ("min_tokens", -1),
    ("include_stop_str_in_output", 1),
    ("skip_special_tokens", None),
    ("logprobs", -1),
    ("logprobs", True),
    ("prompt_logprobs", 1.0),
    ("logprobs_mode", "raw"),
]

CONTRADICTIONS = [
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5; expected at most max_tokens, 4"),
    ({"n": 3, "best_of": 2}, "best_of is 2; expected at least n, 3"),
    ({"n": 2, "temperature": 0}, "n is 2; expected 1 at temperature 0"),
    ({"best_of": 2, "temperature": 0}, "best_of is 2; expected 1 at temperature 0"),
    ({"n": 2, "best_of": 3, "temperature": 0}, "best_of is 3; expected 1 at temperature 0"),
    ({"allowed_token_ids": [3, 4], "banned_token_ids": [4, 3, 9]}, "leaves no token"),
    ({"allowed_token_ids": []}, "leaves no token"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_params_refuse_options_that_contradict_each_other(options, message):
    with pytest.raises(SamplingParamsError, match=message):
        SamplingParams(**options)


def test_samples_have_seeds_of_their_own_and_the_first_the_requests():
    params = SamplingParams(seed=7, n=2, best_of=5)
    samples = params.samples()
    seeds = [sample.seed for sample in samples]
    assert seeds == [derived_seed(7, index) for index in range(5)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 5
    assert all(seed < 2**53 for seed in seeds[1:]), "every JSON reader keeps them"
    assert all(sample.n == 1 and sample.best_of is None and sample.logprobs == 0 for sample in samples)
    assert SamplingParams(seed=7, n=3).samples()[2].seed == seeds[2], "a sample does not depend on how many there are"
    assert SamplingParams(seed=7, n=3).samples()[2].logprobs is None
    assert SamplingParams(best_of=1).samples() == [SamplingParams()]


def test_logit_bias_may_be_written_as_json_does():
    assert SamplingParams(logit_bias={"42": -1}).logit_bias == {42: -1.0}
    assert hash(SamplingParams(logit_bias={4: 1.0})) is not None


@pytest.mark.parametrize(("option", "value"), BAD_VALUES)
def test_params_refuse_a_bad_value_naming_option_value_and_range(option, value):
    with pytest.raises(SamplingParamsError) as caught:
        SamplingParams(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"{option} is {value!r}" if not isinstance(value, list | dict) else f"{option} is ")
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
