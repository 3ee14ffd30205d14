"""Small decoders with random weights for the tests of the native executor, shapes chosen to be awkward."""

import dataclasses
import math

import torch
from torch import Tensor

from pilotfish.models.config import DecoderConfig, LayerConfig, RopeConfig
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.weights import GROUP_SIZE, GroupedInt8, Weights


class TensorWeights(Weights):
    """Tensors in memory, some of them also in grouped form; counts what was read."""

    def __init__(self, tensors: dict[str, Tensor], grouped: dict[str, GroupedInt8] | None = None, half: bool = False):
        self.tensors = tensors
        self.groups = grouped or {}
        self.half = half

    @property
    def half_precision(self) -> bool:
        return self.half

    def names(self):
        return self.tensors.keys()

    def read(self, name):
        return self.groups[name].dequantise() if name in self.groups else self.tensors[name]

    def read_grouped(self, name):
        return self.groups.get(name)


def rope(head_dim: int, theta: float = 10000.0, factor: float = 1.0) -> RopeConfig:
    return RopeConfig(tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2)), factor)


def config(**changes) -> DecoderConfig:
    """Two layers, the second with a window; no size a multiple of 16."""
    head_dim = changes.get("head_dim", 12)
    turning = rope(head_dim)
    base = DecoderConfig(
        family="test",
        vocab_size=101,
        hidden_size=40,
        intermediate_size=56,
        num_heads=6,
        num_kv_heads=2,
        head_dim=head_dim,
        context_length=512,
        norm_eps=1e-5,
        query_scale=head_dim**-0.5,
        layers=(LayerConfig(turning), LayerConfig(turning, sliding_window=7)),
    )
    return dataclasses.replace(base, **changes)


PLAIN = config()
# Everything a family may switch on, at once.
RICH = config(
    activation="gelu_tanh",
    embedding_scale=math.sqrt(40.0),
    norm_offset=1.0,
    qk_norm=True,
    sandwich_norms=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    tie_word_embeddings=True,
    layers=(
        LayerConfig(rope(12), sliding_window=5),
        LayerConfig(None),
        LayerConfig(rope(12, 500.0, 1.2), sliding_window=40),
    ),
)
# Odd sizes, which storage in pairs of inputs has to complete.
ODD = config(hidden_size=37, intermediate_size=51)
# Inputs in whole groups of 32, so that every matrix has a grouped form.
GROUPED = config(hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=1, head_dim=16)


def shapes(decoder: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, middle = decoder.hidden_size, decoder.intermediate_size
    queries, keys = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
    result: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (decoder.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not decoder.tie_word_embeddings:
        result["lm_head.weight"] = (decoder.vocab_size, hidden)
    linear = {
        "self_attn.q_proj": (queries, hidden, decoder.qkv_bias),
        "self_attn.k_proj": (keys, hidden, decoder.qkv_bias),
        "self_attn.v_proj": (keys, hidden, decoder.qkv_bias),
        "self_attn.o_proj": (hidden, queries, decoder.output_bias),
        "mlp.gate_proj": (middle, hidden, decoder.mlp_bias),
        "mlp.up_proj": (middle, hidden, decoder.mlp_bias),
        "mlp.down_proj": (hidden, middle, decoder.mlp_bias),
    }
    norms = ["input_layernorm", "post_attention_layernorm"]
    if decoder.sandwich_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for index in range(decoder.num_layers):
        layer = f"model.layers.{index}."
        for name, (out_size, in_size, bias) in linear.items():
            result[f"{layer}{name}.weight"] = (out_size, in_size)
            if bias:
                result[f"{layer}{name}.bias"] = (out_size,)
        for name in norms:
            result[f"{layer}{name}.weight"] = (hidden,)
        if decoder.qk_norm:
            result[f"{layer}self_attn.q_norm.weight"] = (decoder.head_dim,)
            result[f"{layer}self_attn.k_norm.weight"] = (decoder.head_dim,)
    return result


def random_tensors(decoder: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(decoder).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            tensors[name] = noise * (2.0 / math.sqrt(shape[1]))
        else:
            tensors[name] = 0.3 * noise + (1.0 - decoder.norm_offset if "norm" in name else 0.0)
    return tensors


def grouped_form(matrix: Tensor, bits: int, minimum: bool) -> GroupedInt8:
    """Groups of 32 with scales (and minimums) that float16 holds, as GGUF's types have them."""
    groups = matrix.view(matrix.shape[0], -1, GROUP_SIZE)
    top = 2**bits - 1
    if minimum:
        minimums = groups.amin(-1).half().float()
        scales = ((groups.amax(-1) - minimums) / top).half().float()
        quants = ((groups - minimums.unsqueeze(-1)) / scales.unsqueeze(-1)).round().clamp(0, top)
        return GroupedInt8(quants.to(torch.int8).view(matrix.shape), scales, minimums)
    scales = (groups.abs().amax(-1) / (top // 2)).half().float()
    quants = (groups / scales.unsqueeze(-1)).round().clamp(-(top // 2), top // 2)
    return GroupedInt8(quants.to(torch.int8).view(matrix.shape), scales)


def grouped_forms(tensors: dict[str, Tensor]) -> dict[str, GroupedInt8]:
    """A mixture as in llama.cpp's files: Q8_0 embedding and down projection, Q4_1 elsewhere, value projection Q4_0."""
    forms = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or tensor.shape[1] % GROUP_SIZE:
            continue
        wide = "embed" in name or "down" in name or "lm_head" in name
        forms[name] = grouped_form(tensor, 8 if wide else 4, minimum=not wide and "v_proj" not in name)
    return forms


MODELS = (
    "plain-float32",
    "rich-bfloat16",
    "rich-float32",
    "plain-int8",
    "grouped-auto",
    "rich-bfloat16_compute",
    "odd-bfloat16_compute",
)


def executor(model: str, threads: int = 1, **options) -> NativeExecutor:
    """One of `MODELS`: shapes and weight type."""
    shape, weight_type = model.split("-")
    decoder = {"plain": PLAIN, "rich": RICH, "grouped": GROUPED, "odd": ODD}[shape]
    weight_type = weight_type.replace("_", "-")
    tensors = random_tensors(decoder, seed=3)
    weights = TensorWeights(tensors, grouped_forms(tensors) if weight_type == "auto" else None)
    return NativeExecutor(decoder, weights, weight_type=weight_type, threads=threads, **options)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(101, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
