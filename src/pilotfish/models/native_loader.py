"""How a model's tensors become packed matrices of the native decoder.

Owns the order in which tensors are read, their shapes, and the choice of storage for each. One tensor (or the two of
a pair) is held at a time, so that a model never lies in memory twice. Must not know file formats or passes.
"""

from typing import Any

import torch
from torch import Tensor

from pilotfish.errors import CorruptModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.weights import GROUP_SIZE, GroupedInt8, Weights, WeightType


class NativeLoader:
    """Reads tensors one at a time, checks them and hands them to the native decoder to pack."""

    def __init__(self, decoder: Any, config: DecoderConfig, weights: Weights, weight_type: WeightType) -> None:
        self.decoder = decoder
        self.config = config
        self.weights = weights
        self.weight_type = weight_type
        self.storages: set[str] = set()

    def load(self) -> None:
        config = self.config
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, middle = config.hidden_size, config.intermediate_size
        self.matrices(0, "embedding", ["model.embed_tokens"], config.vocab_size, hidden)
        for index in range(config.num_layers):
            layer = f"model.layers.{index}."
            attention, mlp = layer + "self_attn.", layer + "mlp."
            self.norm(index, "attention_in", layer + "input_layernorm.weight", hidden)
            if config.sandwich_norms:
                self.norm(index, "attention_out", layer + "post_attention_layernorm.weight", hidden)
                self.norm(index, "mlp_in", layer + "pre_feedforward_layernorm.weight", hidden)
                self.norm(index, "mlp_out", layer + "post_feedforward_layernorm.weight", hidden)
            else:
                self.norm(index, "mlp_in", layer + "post_attention_layernorm.weight", hidden)
            if config.qk_norm:
                self.norm(index, "query", attention + "q_norm.weight", config.head_dim)
                self.norm(index, "key", attention + "k_norm.weight", config.head_dim)
            self.matrices(index, "query", [attention + "q_proj"], queries, hidden, bias=config.qkv_bias)
            self.matrices(index, "key", [attention + "k_proj"], keys, hidden, bias=config.qkv_bias)
            self.matrices(index, "value", [attention + "v_proj"], keys, hidden, bias=config.qkv_bias)
            self.matrices(index, "output", [attention + "o_proj"], hidden, queries, bias=config.output_bias)
            self.matrices(index, "gate_up", [mlp + "gate_proj", mlp + "up_proj"], middle, hidden, bias=config.mlp_bias)
            self.matrices(index, "down", [mlp + "down_proj"], hidden, middle, bias=config.mlp_bias)
        self.norm(0, "final", "model.norm.weight", hidden)
        if config.tie_word_embeddings:
            self.decoder.tie_head()
        else:
            self.matrices(0, "head", ["lm_head"], config.vocab_size, hidden)
        self.decoder.check_loaded()

    def read(self, name: str, *shape: int) -> Tensor:
        """A tensor of that shape, contiguous on the CPU, in float32 or 16 bits."""
        tensor = self.weights.read(name).detach()
        self.check_shape(name, tuple(tensor.shape), shape)
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            tensor = tensor.to(torch.float32)
        return tensor.to("cpu").contiguous()

    @staticmethod
    def check_shape(name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if got != expected:
            raise CorruptModelError(f"tensor {name} has shape {list(got)}; the configuration asks for {list(expected)}")

    def norm(self, layer: int, place: str, name: str, size: int) -> None:
        weight = self.read(name, size).to(torch.float32) + self.config.norm_offset
        self.decoder.set_norm(layer, place, weight.contiguous())

    def matrices(
        self, layer: int, place: str, names: list[str], out_size: int, in_size: int, *, bias: bool = False
    ) -> None:
        biases = [self.read(f"{name}.bias", out_size).to(torch.float32) for name in names] if bias else []
        names = [f"{name}.weight" for name in names]
        if self.weight_type in ("auto", "int8"):
            grouped = [self.grouped(name, out_size, in_size) for name in names]
            if all(each is not None for each in grouped):
                sources = [_grouped_arrays(each) for each in grouped if each is not None]
                self.decoder.pack_grouped(layer, place, sources, biases)
                self.storages.add("int8")
                return
        tensors = [self.read(name, out_size, in_size) for name in names]
        storage: str = self.weight_type
        if storage == "auto":
            half = self.weights.half_precision or any(tensor.dtype != torch.float32 for tensor in tensors)
            storage = "bfloat16" if half else "float32"
        if len({tensor.dtype for tensor in tensors}) > 1:
            tensors = [tensor.to(torch.float32) for tensor in tensors]
        self.decoder.pack_floats(layer, place, tensors, storage, biases)
        self.storages.add(storage)

    def grouped(self, name: str, out_size: int, in_size: int) -> GroupedInt8 | None:
        if in_size % GROUP_SIZE:
            return None
        form = self.weights.read_grouped(name)
        if form is not None:
            self.check_shape(name, tuple(form.quants.shape), (out_size, in_size))
            factors = [form.scales] if form.minimums is None else [form.scales, form.minimums]
            for each in factors:
                self.check_shape(f"{name} (scales)", tuple(each.shape), (out_size, in_size // GROUP_SIZE))
        return form


def _grouped_arrays(form: GroupedInt8) -> tuple[Tensor, Tensor, Tensor | None]:
    minimums = None if form.minimums is None else form.minimums.to(torch.float32).contiguous()
    return form.quants.contiguous(), form.scales.to(torch.float32).contiguous(), minimums
