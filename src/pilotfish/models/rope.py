"""Rotary position embedding: inverse frequencies by scaling type, tables for positions, and the rotation.

Owns the formulas. Frequencies are pure functions on floats (float64); tables are float32, which is what checkpoints
were trained with. Must not know configuration files (`families.py`) or attention (`decoder.py`).

A head of size `head_dim` holds `head_dim / 2` pairs; pair i is dimension i of the first half with dimension i of the
second half, and turns by `position * inv_freq[i]` radians. RoPE: https://arxiv.org/abs/2104.09864.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pilotfish.models.config import RopeConfig


def default_inv_freq(head_dim: int, theta: float) -> tuple[float, ...]:
    """Unscaled frequencies: `theta ** (-2 i / head_dim)` for pair i."""
    return tuple(theta ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2))


def linear_inv_freq(head_dim: int, theta: float, factor: float) -> tuple[float, ...]:
    """Position interpolation: every frequency divided by `factor` (https://arxiv.org/abs/2306.15595)."""
    return tuple(freq / factor for freq in default_inv_freq(head_dim, theta))


def llama3_inv_freq(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> tuple[float, ...]:
    """Llama 3.1's scaling (https://arxiv.org/abs/2407.21783): slow pairs divided by `factor`, fast pairs left alone.

    A pair that turns fewer than `low_freq_factor` times within the original context is slow, one that turns more
    than `high_freq_factor` times is fast; in between the two frequencies are mixed linearly in the number of turns.
    """

    def scaled(freq: float) -> float:
        turns = original_context * freq / (2.0 * math.pi)
        if turns < low_freq_factor:
            return freq / factor
        if turns > high_freq_factor:
            return freq
        fast_share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return (1.0 - fast_share) * freq / factor + fast_share * freq

    return tuple(scaled(freq) for freq in default_inv_freq(head_dim, theta))


def yarn_inv_freq(
    head_dim: int,
    theta: float,
    *,
    factor: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, ...]:
    """YaRN's "NTK by parts" (https://arxiv.org/abs/2309.00071, section 3.2).

    Pairs that turn more than `beta_fast` times within the original context keep their frequency, pairs that turn
    fewer than `beta_slow` times are interpolated by `factor`; between them runs a linear ramp over the pair's index.
    `truncate` widens the ramp to whole indices, as the authors' code does.
    """

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original_context / (times * 2.0 * math.pi)) / (2.0 * math.log(theta))

    first, last = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0.0), min(last, head_dim - 1.0)
    if first == last:
        last += 0.001  # a step instead of a division by zero

    def scaled(pair: int, freq: float) -> float:
        interpolated_share = min(max((pair - first) / (last - first), 0.0), 1.0)
        return freq / factor * interpolated_share + freq * (1.0 - interpolated_share)

    return tuple(scaled(pair, freq) for pair, freq in enumerate(default_inv_freq(head_dim, theta)))


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """YaRN's temperature on cosine and sine: `0.1 ln(factor) + 1` (section 3.4).

    DeepSeek's checkpoints give two weights for the logarithm; then it is the ratio of the two temperatures.
    """

    def temperature(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)


def rope_tables(
    positions: Int[Tensor, " row"], rope: RopeConfig
) -> tuple[Float[Tensor, "row pair"], Float[Tensor, "row pair"]]:
    """Cosine and sine at each position, float32, `attention_factor` applied.

    The angle is the float32 product of position and frequency, as where the checkpoints come from.
    """
    inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32, device=positions.device)
    angles = positions.to(torch.float32).unsqueeze(-1) * inv_freq
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def rotate(
    heads: Float[Tensor, "row head head_dim"], cos: Float[Tensor, "row pair"], sin: Float[Tensor, "row pair"]
) -> Float[Tensor, "row head head_dim"]:
    """Turns every pair of every head by its row's angle, in the heads' dtype."""
    cos, sin = cos.to(heads.dtype).unsqueeze(1), sin.to(heads.dtype).unsqueeze(1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
