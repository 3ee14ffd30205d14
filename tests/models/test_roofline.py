"""The roofline against numbers worked out by hand, and the facts it stands on."""

from dataclasses import replace

import pytest

from pilotfish.errors import InvalidInputError
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.roofline import ExecutorFacts, MachineLimits, Roofline, executor_facts
from tests.engine.tiny import tiny_config, tiny_target, tiny_weights

# tiny_config: hidden 32, MLP 64, 4 heads and 2 KV heads of 16, two layers, 64 tokens, tied.
LAYER_VALUES = 32 * 64 + 2 * 32 * 32 + 64 * 32 + 3 * 32 * 64
LINEAR_VALUES = 2 * LAYER_VALUES + 64 * 32
FACTS = ExecutorFacts("torch", "float32", threads=1, weight_bytes=4 * LINEAR_VALUES, kv_value_bytes=4)


def roofline(config=None, facts=FACTS, bandwidth=1.0, peak=1.0):
    return Roofline(config or tiny_config(), facts, MachineLimits(bandwidth, peak))


def test_bytes_are_the_weights_once_and_the_keys_and_values_seen():
    per_position = 2 * (2 * 2 * 16) * 4  # layers, keys and values of 2 heads of 16, float32
    assert roofline().bytes_read(1, 0) == 4 * LINEAR_VALUES + per_position
    assert roofline().bytes_read(8, 20) == 4 * LINEAR_VALUES + 28 * per_position
    assert roofline().bytes_read(8, 20, sequences=2) == 4 * LINEAR_VALUES + 2 * 24 * per_position


def test_operations_count_every_row_and_every_position_it_sees():
    attention = 2 * 4 * 4 * 16  # layers, a multiply-add for score and one for value, 4 heads of 16
    assert roofline().operations(1, 0) == 2 * LINEAR_VALUES + attention
    assert roofline().operations(3, 10) == 3 * 2 * LINEAR_VALUES + (11 + 12 + 13) * attention
    assert roofline().operations(6, 10, sequences=2) == 2 * roofline().operations(3, 10)


def test_sliding_window_bounds_what_is_read_and_computed():
    config = tiny_config()
    windowed = replace(config, layers=(replace(config.layers[0], sliding_window=4), config.layers[1]))
    per_layer = 2 * 2 * 16 * 4
    assert roofline(windowed).bytes_read(2, 20) == 4 * LINEAR_VALUES + (5 + 22) * per_layer
    assert roofline(windowed).operations(1, 20) == 2 * LINEAR_VALUES + (4 + 21) * 4 * 4 * 16
    assert roofline(windowed).bytes_read(1, 2) == roofline().bytes_read(1, 2)


def test_untied_embedding_is_not_read_by_a_pass():
    untied = replace(tiny_config(), tie_word_embeddings=False)
    facts = replace(FACTS, weight_bytes=4 * (LINEAR_VALUES + 64 * 32))
    assert roofline(untied, facts).bytes_read(1, 0) == pytest.approx(roofline().bytes_read(1, 0))


def test_seconds_are_the_larger_of_both_limits():
    model = roofline(bandwidth=1000.0, peak=1e12)
    assert model.seconds(1, 0) == model.bytes_read(1, 0) / 1000.0
    model = roofline(bandwidth=1e12, peak=1000.0)
    assert model.seconds(5, 0) == model.operations(5, 0) / 1000.0
    assert model.seconds(5, 0) > 4.9 * model.seconds(1, 0)


def test_limits_take_the_better_of_two_measurements():
    assert MachineLimits(3.0, 5.0).highest(MachineLimits(4.0, 1.0)) == MachineLimits(4.0, 5.0)
    with pytest.raises(InvalidInputError, match="threads=0"):
        MachineLimits.measure(0)


def test_facts_of_the_torch_executor_are_those_of_its_tensors():
    facts = executor_facts(tiny_target())
    assert facts == replace(FACTS, threads=facts.threads)


@pytest.mark.parametrize(("weight_type", "bytes_per_value"), [("float32", 4.0), ("bfloat16", 2.0), ("int8", 1.125)])
def test_facts_of_the_native_executor_are_those_of_its_packing(weight_type, bytes_per_value):
    executor = NativeExecutor(tiny_config(), tiny_weights(), weight_type=weight_type, threads=1, kv_cache_tokens=64)
    facts = executor_facts(executor)
    assert (facts.name, facts.weights, facts.threads, facts.kv_value_bytes) == ("native", weight_type, 1, 4)
    assert facts.weight_bytes == pytest.approx(bytes_per_value * LINEAR_VALUES, rel=0.15)
