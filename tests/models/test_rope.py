import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from pilotfish.models.config import RopeConfig
from pilotfish.models.rope import (
    default_inv_freq,
    linear_inv_freq,
    llama3_inv_freq,
    rope_tables,
    rotate,
    yarn_attention_factor,
    yarn_inv_freq,
)

HEAD_DIM = 64


def transformers_rope(rope_parameters, context_length=4096):
    config = LlamaConfig(
        head_dim=HEAD_DIM, max_position_embeddings=context_length, rope_parameters=dict(rope_parameters)
    )
    embedding = LlamaRotaryEmbedding(config)
    return embedding.inv_freq, embedding.attention_scaling


def assert_same_frequencies(inv_freq, expected):
    torch.testing.assert_close(torch.tensor(inv_freq, dtype=torch.float32), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_default_frequencies_equal_transformers(theta):
    expected, _ = transformers_rope({"rope_type": "default", "rope_theta": theta})
    assert_same_frequencies(default_inv_freq(HEAD_DIM, theta), expected)


def test_linear_frequencies_equal_transformers():
    expected, _ = transformers_rope({"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5})
    assert_same_frequencies(linear_inv_freq(HEAD_DIM, 10_000.0, 2.5), expected)


@pytest.mark.parametrize("original_context", [64, 8192])
def test_llama3_frequencies_equal_transformers(original_context):
    scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    parameters = {"rope_type": "llama3", "rope_theta": 500_000.0, **scaling}
    expected, _ = transformers_rope({**parameters, "original_max_position_embeddings": original_context}, 131_072)
    inv_freq = llama3_inv_freq(HEAD_DIM, 500_000.0, **scaling, original_context=original_context)
    assert_same_frequencies(inv_freq, expected)


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("betas", [(32.0, 1.0), (16.0, 2.0)])
@pytest.mark.parametrize("original_context", [6, 8, 2048])
def test_yarn_equals_transformers(theta, truncate, betas, original_context):
    fast, slow = betas
    expected, attention_factor = transformers_rope(
        {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": 4.0,
            "original_max_position_embeddings": original_context,
            "beta_fast": fast,
            "beta_slow": slow,
            "truncate": truncate,
        },
        4 * original_context,
    )
    inv_freq = yarn_inv_freq(
        HEAD_DIM,
        theta,
        factor=4.0,
        original_context=original_context,
        beta_fast=fast,
        beta_slow=slow,
        truncate=truncate,
    )
    assert_same_frequencies(inv_freq, expected)
    assert yarn_attention_factor(4.0) == pytest.approx(attention_factor, rel=1e-12)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    plain = default_inv_freq(HEAD_DIM, 10_000.0)
    scaled = yarn_inv_freq(HEAD_DIM, 10_000.0, factor=4.0, original_context=2048)
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 4.0, rel=1e-12)


def test_yarn_attention_factor_follows_the_two_weights():
    expected = (0.1 * 0.707 * math.log(40.0) + 1.0) / (0.1 * 1.0 * math.log(40.0) + 1.0)
    assert yarn_attention_factor(40.0, 0.707, 1.0) == pytest.approx(expected, rel=1e-12)
    assert yarn_attention_factor(40.0, 0.707, None) == yarn_attention_factor(40.0)
    assert yarn_attention_factor(0.5) == 1.0


def test_rotation_equals_transformers():
    rope = RopeConfig(default_inv_freq(HEAD_DIM, 10_000.0))
    positions = torch.tensor([0, 3, 3, 700, 1])
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(5, 4, HEAD_DIM, generator=generator), torch.randn(5, 2, HEAD_DIM, generator=generator)
    embedding = LlamaRotaryEmbedding(LlamaConfig(head_dim=HEAD_DIM))
    tables = embedding(query, positions.unsqueeze(0))
    expected = apply_rotary_pos_emb(query.transpose(0, 1)[None], key.transpose(0, 1)[None], *tables)
    for heads, rotated in zip((query, key), expected, strict=True):
        # 700 turns of the fastest pair: one unit in the last place of a frequency is 4e-5 of its angle.
        torch.testing.assert_close(
            rotate(heads, *rope_tables(positions, rope)), rotated[0].transpose(0, 1), atol=2e-4, rtol=0
        )


def test_rotation_makes_scores_depend_on_distance_only():
    rope = RopeConfig(default_inv_freq(HEAD_DIM, 10_000.0))
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, 1, HEAD_DIM, generator=generator)

    def score(query_position, key_position):
        turned_query = rotate(query, *rope_tables(torch.tensor([query_position]), rope))
        return (turned_query * rotate(key, *rope_tables(torch.tensor([key_position]), rope))).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), atol=1e-3, rtol=0)
    assert (score(9, 4) - score(9, 5)).abs() > 0.05


def test_attention_factor_multiplies_the_tables():
    inv_freq = default_inv_freq(HEAD_DIM, 10_000.0)
    positions = torch.tensor([0, 5])
    plain = rope_tables(positions, RopeConfig(inv_freq))
    scaled = rope_tables(positions, RopeConfig(inv_freq, attention_factor=1.5))
    for table, other in zip(plain, scaled, strict=True):
        assert table.dtype == torch.float32
        torch.testing.assert_close(table * 1.5, other)
