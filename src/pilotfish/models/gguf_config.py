"""From a GGUF's metadata to a decoder configuration.

Owns the meaning of GGUF's `<architecture>.*` keys, said in the words of Hugging Face's `config.json` so that
`families.py` stays the only judge of what is covered. Reads no weights but `rope_freqs`, which is configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotfish.errors import CorruptModelError, UnsupportedModelError
from pilotfish.models.config import DecoderConfig, LayerConfig
from pilotfish.models.families import decoder_config
from pilotfish.models.gguf_header import GgufHeader

FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "gemma3": "gemma3_text"}
"""GGUF architecture -> `model_type`. Mistral is stored as llama, from which it differs in nothing that matters here."""

GEMMA3_LOCAL_ROPE_BASE = 10000.0
GEMMA3_GLOBAL_LAYER_INTERVAL = 6
GEMMA3_27B_LAYERS = 62
SMOLLM3_NO_ROPE_INTERVAL = 4

READ_KEYS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.scale", "attention.sliding_window",
    "attention.sliding_window_pattern", "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
}  # fmt: skip
HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "tensor_data_layout": ("Meta AI original pth",),
    "pooling_type": (0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.finetuned": (True, False),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
}
"""Keys we do not implement, and the values that ask for nothing."""


class Metadata:
    """The metadata of one file, read with the type each key must have."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values
        self.architecture = self.text("general.architecture")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise CorruptModelError(f"{self.path}: metadata {key!r}: got {value!r}, expected text")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise UnsupportedModelError(
                    f"{self.path}: {self.architecture}.{key} differs from layer to layer ({value}), expected one value"
                )
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CorruptModelError(
                f"{self.path}: metadata '{self.architecture}.{key}': got {value!r}, expected a positive whole number"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise CorruptModelError(
                f"{self.path}: metadata '{self.architecture}.{key}': got {value!r}, expected a positive number"
            )
        return float(value)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.values


def gguf_decoder_config(path: Path, header: GgufHeader, rope_factors: Sequence[float] | None) -> DecoderConfig:
    """The decoder a GGUF describes.

    Gemma's norm weights stand in a GGUF with their 1 already added. They are used as they are, with `norm_offset` 0:
    the float32 sum is the same number that Hugging Face's model computes at run time, and taking the 1 off again
    would round. Which linear layers have a bias has no key; the tensors say it.

    Args:
        rope_factors: the tensor `rope_freqs.weight` where the file has one: a divisor for each inverse frequency
            (llama3 scaling, already resolved).

    Raises:
        UnsupportedModelError: an architecture or an option we do not cover, named.
        CorruptModelError: a key is missing or makes no sense.
    """
    metadata = Metadata(path, header.metadata)
    if metadata.architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{path}: architecture {metadata.architecture!r} is not covered; expected one of {', '.join(FAMILIES)}"
        )
    refuse_unknown_options(metadata)
    try:
        described = decoder_config(hugging_face_config(metadata, header))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    config = replace(
        described,
        norm_offset=0.0,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
    )
    return config if rope_factors is None else with_rope_factors(path, config, rope_factors)


def refuse_unknown_options(metadata: Metadata) -> None:
    """An option that we would have to ignore is refused by name."""
    prefix = f"{metadata.architecture}."
    for key, value in metadata.values.items():
        option = key.removeprefix(prefix)
        if not key.startswith(prefix) or option in READ_KEYS or value in HARMLESS_VALUES.get(option, ()):
            continue
        raise UnsupportedModelError(f"{metadata.path}: the option {key} = {value!r} is not covered")
    if metadata.has("attention.sliding_window") and metadata.architecture != "gemma3":
        raise UnsupportedModelError(f"{metadata.path}: {prefix}attention.sliding_window is covered for gemma3 only")
    if metadata.values.get("split.count", 1) != 1:
        raise UnsupportedModelError(
            f"{metadata.path}: split.count is {metadata.values['split.count']}; join the parts with "
            "`llama-gguf-split --merge` first"
        )


def hugging_face_config(metadata: Metadata, header: GgufHeader) -> dict[str, Any]:
    """The same description with the keys of `config.json`."""
    tensors = header.tensors
    if "token_embd.weight" not in tensors:
        raise CorruptModelError(f"{metadata.path}: tensor 'token_embd.weight' is missing")
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    head_dim = metadata.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.integer(key, head_dim) != head_dim:
            raise UnsupportedModelError(
                f"{metadata.path}: {metadata.architecture}.{key} is {metadata.integer(key)}, expected the head "
                f"dimension {head_dim}"
            )
    # Numbers that things are made by the dozen from: a damaged one must not fill the memory before it is noticed.
    layers, width = metadata.integer("block_count"), tensors["token_embd.weight"].shape[1]
    if layers > len(tensors) or hidden != width:
        raise CorruptModelError(
            f"{metadata.path}: {layers} layers of width {hidden}, expected at most {len(tensors)}, the number of "
            f"tensors, and the embedding's width, {width}"
        )
    context = metadata.integer("context_length")
    config: dict[str, Any] = {
        "model_type": FAMILIES[metadata.architecture],
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(metadata, context),
        "tie_word_embeddings": "output.weight" not in tensors,
        "hidden_act": "silu",
    }
    if metadata.architecture in ("llama", "smollm3"):
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    if metadata.architecture == "smollm3":
        config["no_rope_layer_interval"] = SMOLLM3_NO_ROPE_INTERVAL
    if metadata.architecture == "gemma3":
        config |= gemma3_options(metadata, config)
    elif metadata.has("attention.scale"):
        raise UnsupportedModelError(f"{metadata.path}: attention.scale is covered for gemma3 only")
    return config


def rope_scaling(metadata: Metadata, context: int) -> dict[str, Any] | None:
    """`rope_scaling` of `config.json`; an unknown type is passed on for `families.py` to refuse."""
    kind = metadata.values.get(f"{metadata.architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": metadata.number("rope.scaling.factor", 1.0)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length", context)
        scaling["beta_fast"] = metadata.number("rope.scaling.yarn_beta_fast", 32.0)
        scaling["beta_slow"] = metadata.number("rope.scaling.yarn_beta_slow", 1.0)
    return scaling


def gemma3_options(metadata: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a Gemma 3 file leaves unsaid: llama.cpp knows these by the architecture's name."""
    layers = config["num_hidden_layers"]
    pattern = metadata.values.get("gemma3.attention.sliding_window_pattern", GEMMA3_GLOBAL_LAYER_INTERVAL)
    if isinstance(pattern, int) and pattern > 0:
        local = [(layer + 1) % pattern != 0 for layer in range(layers)]
    elif isinstance(pattern, list) and len(pattern) == layers:
        local = [bool(flag) for flag in pattern]
    else:
        raise CorruptModelError(
            f"{metadata.path}: metadata 'gemma3.attention.sliding_window_pattern': got {pattern!r}, expected an "
            f"interval or one flag for each of {layers} layers"
        )
    head_dim = config["head_dim"]
    if layers == GEMMA3_27B_LAYERS:
        head_dim = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": metadata.number("attention.scale", head_dim**-0.5) ** -2,
        "sliding_window": metadata.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if flag else "full_attention" for flag in local],
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", GEMMA3_LOCAL_ROPE_BASE),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def with_rope_factors(path: Path, config: DecoderConfig, factors: Sequence[float]) -> DecoderConfig:
    """Divides the inverse frequencies of every layer that rotates."""
    if len(factors) != config.head_dim // 2 or not all(0 < factor < float("inf") for factor in factors):
        raise CorruptModelError(
            f"{path}: tensor 'rope_freqs.weight': expected {config.head_dim // 2} positive numbers, one for each pair"
        )

    def scaled(layer: LayerConfig) -> LayerConfig:
        if layer.rope is None:
            return layer
        frequencies = tuple(freq / factor for freq, factor in zip(layer.rope.inv_freq, factors, strict=True))
        return replace(layer, rope=replace(layer.rope, inv_freq=frequencies))

    return replace(config, layers=tuple(scaled(layer) for layer in config.layers))
