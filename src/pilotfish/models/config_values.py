"""From a `DecoderConfig` back to the keys of a Hugging Face `config.json`, for models that are written here.

Owns the inverse of `families.py` for the Llama-like families, and proves each of its results: what it writes is read
again and must give the same decoder. Knows no tensors.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pilotfish.errors import UnsupportedModelError
from pilotfish.models.config import DecoderConfig, LayerConfig
from pilotfish.models.families import decoder_config

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")


def can_be_written(config: DecoderConfig) -> bool:
    """Whether layers of this decoder are ones that a small model of its family can be made of."""
    return config.family in ARCHITECTURES


def config_values(config: DecoderConfig, source: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keys of a `config.json` that describes this decoder.

    Args:
        config: of a family in `ARCHITECTURES`.
        source: the `config.json` of the model it was made from; its rotary keys are taken where the frequencies are
            scaled ones, which cannot be told from the frequencies alone.

    Raises:
        UnsupportedModelError: it cannot be written so that it reads the same.
    """
    if not can_be_written(config):
        raise UnsupportedModelError(
            f"a model made of {config.family!r} layers cannot be written; supported: {', '.join(ARCHITECTURES)}"
        )
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu" if config.activation == "silu" else "gelu_pytorch_tanh",
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if config.family in ("llama", "qwen3"):
        values["attention_bias"] = config.output_bias
    if config.family == "llama":
        values["mlp_bias"] = config.mlp_bias
    if config.family == "mistral":
        values["sliding_window"] = config.layers[0].sliding_window
    values |= _rope_values(config, source)
    if decoder_config(values) != config:
        raise UnsupportedModelError(
            f"this {config.family} decoder cannot be described by a config.json of its own (a rotary scaling, or "
            "layers that differ among each other); use a target in a Hugging Face directory, with full attention"
        )
    return values


def _rope_values(config: DecoderConfig, source: Mapping[str, Any] | None) -> dict[str, Any]:
    rope = config.layers[0].rope
    if rope is None:
        return {}
    if source is not None:
        return {key: source[key] for key in ROPE_KEYS if key in source}
    if len(rope.inv_freq) < 2:
        return {"rope_theta": 10_000.0}
    return {"rope_theta": float(round(rope.inv_freq[1] ** (-config.head_dim / 2), 3))}


def small_decoder(config: DecoderConfig, layers: tuple[int, ...]) -> DecoderConfig:
    """The decoder that is made of some of another's layers, each without a sliding window."""
    return replace(config, layers=tuple(LayerConfig(config.layers[layer].rope) for layer in layers))
