"""The family table: from a checkpoint's `config.json` to a `DecoderConfig`.

Owns what each family means by its keys, its defaults included (those of the family's class in `transformers`), and
refuses by name whatever the decoder does not cover, before any weight is read. Knows no tensors and no file formats;
the executors in turn never see a family's name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pilotfish.errors import UnsupportedModelError
from pilotfish.models.config import Activation, DecoderConfig, LayerConfig, RopeConfig
from pilotfish.models.keys import REQUIRED, ConfigKeys
from pilotfish.models.rope import (
    default_inv_freq,
    linear_inv_freq,
    llama3_inv_freq,
    yarn_attention_factor,
    yarn_inv_freq,
)

FULL, SLIDING = "full_attention", "sliding_attention"
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model type fixes, and its defaults for keys a configuration may leave out.

    Attributes:
        rope_theta: base of the rotary frequencies.
        qkv_bias: `True` always has them; `"attention_bias"` has them, and the output's, when that key says so.
        window: which keys decide about sliding windows.
        sizes: defaults of integer keys; a key without one must be there.
    """

    rope_theta: float = 10_000.0
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool | Literal["attention_bias"] = "attention_bias"
    mlp_bias: bool = False
    window: Literal["none", "all", "upper_layers", "unrotated_layers", "pattern"] = "none"
    sizes: Mapping[str, int] = field(default_factory=dict)


_GEMMA3 = _Family(
    rope_theta=1_000_000.0,
    tied=True,
    qk_norm=True,
    window="pattern",
    # The text_config of the multimodal checkpoints leaves out whatever equals the class's default.
    sizes={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    },
)
_FAMILIES = {
    "llama": _Family(mlp_bias=True),
    "mistral": _Family(qkv_bias=False, window="all"),
    "qwen2": _Family(qkv_bias=True, window="upper_layers"),
    "qwen3": _Family(qk_norm=True, window="upper_layers", sizes={"head_dim": 128}),
    "smollm3": _Family(rope_theta=2_000_000.0, tied=True, mlp_bias=True, window="unrotated_layers"),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
}
SUPPORTED_MODEL_TYPES = tuple(_FAMILIES)


def decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder that a Hugging Face `config.json` describes.

    Both spellings of the rotary keys are read: `rope_theta` with `rope_scaling`, and `rope_parameters`. Of the
    multimodal `gemma3` it is the text model.

    Raises:
        UnsupportedModelError: the model type, or something it asks for, is not covered, or a key is missing or of the
            wrong type; the message names it.
    """
    keys = ConfigKeys(config)
    model_type = keys.text("model_type")
    family = _FAMILIES.get(model_type)
    if family is None:
        raise _unsupported(f"model_type {model_type!r}", ", ".join(SUPPORTED_MODEL_TYPES))
    _refuse_uncovered(keys)
    if model_type == "gemma3":
        text_keys = keys.section("text_config") or ConfigKeys({}, "text_config of config.json")
        _refuse_uncovered(text_keys)
        tied = text_keys.flag("tie_word_embeddings", keys.flag("tie_word_embeddings", family.tied))
        keys = text_keys
    else:
        tied = keys.flag("tie_word_embeddings", family.tied)

    gemma = family is _GEMMA3
    size = {name: keys.integer(name, family.sizes.get(name, REQUIRED)) for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings",
    )}  # fmt: skip
    hidden_size, num_heads = size["hidden_size"], size["num_attention_heads"]
    num_kv_heads = keys.integer("num_key_value_heads", family.sizes.get("num_key_value_heads", num_heads))
    if num_heads % num_kv_heads:
        raise _unsupported(
            f"num_attention_heads {num_heads} with num_key_value_heads {num_kv_heads}",
            "a number of heads that is a multiple of the number of key-value heads",
        )
    head_dim = _head_dim(keys, family, hidden_size, num_heads)
    attention_bias = family.qkv_bias == "attention_bias" and keys.flag("attention_bias", False)
    scalar = keys.number("query_pre_attn_scalar", 256.0) if gemma else float(head_dim)
    return DecoderConfig(
        family=model_type,
        vocab_size=size["vocab_size"],
        hidden_size=hidden_size,
        intermediate_size=size["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=size["max_position_embeddings"],
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        query_scale=scalar**-0.5,
        layers=_layers(keys, family, size["num_hidden_layers"], head_dim, size["max_position_embeddings"]),
        activation=_activation(keys, gemma),
        embedding_scale=math.sqrt(hidden_size) if gemma else 1.0,
        norm_offset=1.0 if gemma else 0.0,
        qk_norm=family.qk_norm,
        sandwich_norms=gemma,
        qkv_bias=family.qkv_bias is True or attention_bias,
        output_bias=attention_bias,
        mlp_bias=family.mlp_bias and keys.flag("mlp_bias", False),
        tie_word_embeddings=tied,
    )


def _unsupported(got: str, supported: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{got} is not supported; supported: {supported}; choose another model")


def _refuse_uncovered(keys: ConfigKeys) -> None:
    """Features that some checkpoints of a covered model type ask for and the decoder does not have."""
    for key, supported in {
        "quantization_config": "unquantised safetensors, or GGUF for quantised weights",
        "attn_logit_softcapping": "attention without soft-capping",
        "final_logit_softcapping": "logits without soft-capping",
        "use_bidirectional_attention": "causal attention",
        "num_experts": "dense models (no mixture of experts)",
        "num_local_experts": "dense models (no mixture of experts)",
        "n_routed_experts": "dense models (no mixture of experts)",
    }.items():
        value = keys.get(key)
        if value:
            shown = "" if isinstance(value, Mapping) else f" {value!r}"
            raise _unsupported(f"{key}{shown} in {keys.name}", supported)


def _head_dim(keys: ConfigKeys, family: _Family, hidden_size: int, num_heads: int) -> int:
    default = family.sizes.get("head_dim")
    if default is None and keys.get("head_dim") is None:
        if hidden_size % num_heads:
            raise _unsupported(
                f"hidden_size {hidden_size} with {num_heads} heads and no head_dim", "a multiple of the number of heads"
            )
        default = hidden_size // num_heads
    head_dim = keys.integer("head_dim", REQUIRED if default is None else default)
    if head_dim % 2:
        raise _unsupported(f"head_dim {head_dim}", "an even head_dim (rotary embedding turns pairs)")
    return head_dim


def _activation(keys: ConfigKeys, gemma: bool) -> Activation:
    key, default = ("hidden_activation", "gelu_pytorch_tanh") if gemma else ("hidden_act", "silu")
    name = keys.text(key, default)
    if name not in ACTIVATIONS:
        raise _unsupported(f"{key} {name!r}", ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def _layers(
    keys: ConfigKeys, family: _Family, num_layers: int, head_dim: int, context_length: int
) -> tuple[LayerConfig, ...]:
    rotated = _rotated_layers(keys, num_layers) if family.window == "unrotated_layers" else [True] * num_layers
    windows = _windows(keys, family, rotated)
    if family.window == "pattern":
        full, sliding = _gemma3_rope_keys(keys, family)
        rope = _rope(full, family.rope_theta, head_dim, context_length)
        window_rope = _rope(sliding, 10_000.0, head_dim, context_length)
    else:
        rope = window_rope = _rope(_flat_rope_keys(keys), family.rope_theta, head_dim, context_length)
    return tuple(
        LayerConfig((rope if window is None else window_rope) if rotate else None, window)
        for rotate, window in zip(rotated, windows, strict=True)
    )


def _rotated_layers(keys: ConfigKeys, num_layers: int) -> list[bool]:
    """SmolLM3: `no_rope_layers` holds 1 for a layer *with* positions; else every fourth layer has none."""
    marks = keys.sequence("no_rope_layers", num_layers)
    if marks is not None:
        return [bool(mark) for mark in marks]
    interval = keys.integer("no_rope_layer_interval", 4)
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def _windows(keys: ConfigKeys, family: _Family, rotated: list[bool]) -> list[int | None]:
    """Each layer's sliding window: which layers have one is `layer_types`, or the family's older keys."""
    num_layers = len(rotated)
    switched_on = keys.flag("use_sliding_window", False)
    window: int | None
    match family.window:
        case "none":
            window, slides = None, [False] * num_layers
        case "all":
            window = keys.nullable_integer("sliding_window", 4096)
            slides = [window is not None] * num_layers
        case "upper_layers":
            window = keys.nullable_integer("sliding_window", 4096) if switched_on else None
            lowest = keys.integer("max_window_layers", 28, minimum=0)
            slides = [window is not None and layer >= lowest for layer in range(num_layers)]
        case "unrotated_layers":
            window = keys.nullable_integer("sliding_window", None) if switched_on else None
            slides = [window is not None and not rotate for rotate in rotated]
        case "pattern":
            window = keys.nullable_integer("sliding_window", 4096)
            period = keys.integer("sliding_window_pattern", 6)
            slides = [(layer + 1) % period != 0 for layer in range(num_layers)]

    layer_types = keys.sequence("layer_types", num_layers)
    if layer_types is not None:
        unknown = next((kind for kind in layer_types if kind not in (FULL, SLIDING)), None)
        if unknown is not None:
            raise _unsupported(f"layer type {unknown!r} in layer_types", f"{FULL}, {SLIDING}")
        declared = [kind == SLIDING for kind in layer_types]
        if family.window in ("none", "all") and declared != slides:
            raise _unsupported("layer_types that differ from what this model type does", "the same for all layers")
        slides = declared
    if window is None and any(slides):
        raise _unsupported(f"layer type {SLIDING!r} without a sliding_window in force", "a sliding_window in use")
    return [window if slide else None for slide in slides]


def _flat_rope_keys(keys: ConfigKeys) -> ConfigKeys:
    """The rotary keys of a model with one kind of rotation, whichever spelling they come in."""
    section = keys.section("rope_scaling") or keys.section("rope_parameters")
    outer = {key: keys.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    rope = ConfigKeys(outer, keys.name)
    if section is not None:
        if FULL in section or SLIDING in section:
            raise _unsupported(f"rotary parameters per layer type in {section.name}", "one set for all layers")
        rope = rope.merged(section)
    pretrained = keys.get("original_max_position_embeddings")  # outranks the one inside, as Phi-3's files need
    if pretrained is not None:
        rope = rope.merged(ConfigKeys({"original_max_position_embeddings": pretrained}, rope.name))
    return rope


def _gemma3_rope_keys(keys: ConfigKeys, family: _Family) -> tuple[ConfigKeys, ConfigKeys]:
    """Rotary keys of Gemma 3's full and sliding layers. The older `rope_scaling` concerns the full layers only."""
    full = ConfigKeys({"rope_theta": keys.get("rope_theta")}, keys.name)
    sliding = ConfigKeys({"rope_theta": keys.get("rope_local_base_freq")}, keys.name)
    section = keys.section("rope_parameters")
    if section is not None:
        if FULL not in section and SLIDING not in section:
            raise _unsupported(f"{section.name} without layer types", f"one object for {FULL}, one for {SLIDING}")
        full = full.merged(section.section(FULL) or full)
        sliding = sliding.merged(section.section(SLIDING) or sliding)
    scaling = keys.section("rope_scaling")
    return (full if scaling is None else full.merged(scaling)), sliding


def _rope(keys: ConfigKeys, default_theta: float, head_dim: int, context_length: int) -> RopeConfig:
    partial = keys.number("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise _unsupported(f"partial_rotary_factor {partial} in {keys.name}", "1 (the whole head is rotated)")
    theta = keys.number("rope_theta", default_theta)
    kind = keys.text("rope_type", keys.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise _unsupported(f"rope type {kind!r} in {keys.name}", ", ".join(ROPE_TYPES))
    if kind == "default":
        return RopeConfig(default_inv_freq(head_dim, theta))
    if kind == "linear":
        return RopeConfig(linear_inv_freq(head_dim, theta, keys.number("factor")))
    original_context = keys.integer("original_max_position_embeddings", context_length)
    if kind == "llama3":
        return RopeConfig(
            llama3_inv_freq(
                head_dim,
                theta,
                factor=keys.number("factor"),
                low_freq_factor=keys.number("low_freq_factor"),
                high_freq_factor=keys.number("high_freq_factor"),
                original_context=original_context,
            )
        )
    factor = keys.number("factor", context_length / original_context)
    inv_freq = yarn_inv_freq(
        head_dim,
        theta,
        factor=factor,
        original_context=original_context,
        beta_fast=keys.number("beta_fast", 32.0),
        beta_slow=keys.number("beta_slow", 1.0),
        truncate=keys.flag("truncate", True),
    )
    temperature = yarn_attention_factor(factor, keys.optional_number("mscale"), keys.optional_number("mscale_all_dim"))
    return RopeConfig(inv_freq, keys.number("attention_factor", temperature))
