"""Which tensors a decoder needs, and their shapes.

Owns the list of canonical names that follows from a `DecoderConfig`, and the check of a file's table of contents
against it before any weight is read. Knows no file format.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pilotfish.errors import CorruptModelError, UnsupportedModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.weights import Weights

IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
"""Buffers that old checkpoints saved and that follow from the configuration."""


def tensor_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder has, by canonical name. A tied LM head is not among them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.sandwich_norms:
        norms |= {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}

    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, (out_size, in_size, has_bias) in linears.items():
            shapes[f"{prefix}.{name}.weight"] = (out_size, in_size)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (out_size,)
        for name, size in norms.items():
            shapes[f"{prefix}.{name}.weight"] = (size,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def require_tensors(path: Path, config: DecoderConfig, present: Mapping[str, tuple[int, ...]]) -> None:
    """Compares a file's tensors with those the configuration asks for.

    Raises:
        CorruptModelError: one is missing or has another shape; the message names it.
        UnsupportedModelError: there is one that the decoder would not use.
    """
    needed = tensor_shapes(config)
    for name, shape in needed.items():
        if name not in present:
            raise CorruptModelError(f"{path}: tensor {name!r} is missing; the file is incomplete, fetch it again")
        if tuple(present[name]) != shape:
            raise CorruptModelError(
                f"{path}: tensor {name!r}: got shape {list(present[name])}, expected {list(shape)} by the "
                "configuration; weights and configuration do not belong together"
            )
    for name in present:
        tied_head = name == "lm_head.weight" and config.tie_word_embeddings
        if name not in needed and not tied_head and not name.endswith(IGNORED_SUFFIXES):
            raise UnsupportedModelError(
                f"{path}: tensor {name!r} is not part of a {config.family} decoder as we know it; use another model"
            )


def head_rows(
    target: DecoderConfig, weights: Weights, ids: Int[Tensor, " draft_vocab"]
) -> Float[Tensor, "draft_vocab hidden"]:
    """Rows of the target's LM head, in float32."""
    name = "model.embed_tokens.weight" if target.tie_word_embeddings else "lm_head.weight"
    return weights.read(name)[ids].to(torch.float32)
