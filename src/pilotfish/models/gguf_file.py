"""Reads a GGUF file: configuration, end-of-sequence ids, and tensors, exactly.

Owns the tensor names and layouts of GGUF: what llama.cpp stores differently from Hugging Face (row order of queries
and keys) is undone here. Everything is read from the memory-mapped file on demand; measured, unpacking the blocks is
as fast as reading a converted copy would be, so weights are not cached. Knows no executor and no tokenizer.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pilotfish.errors import CorruptModelError, UnsupportedModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.gguf_config import gguf_decoder_config
from pilotfish.models.gguf_header import GgufHeader, GgufTensor, read_header
from pilotfish.models.layout import require_tensors
from pilotfish.models.weights import GROUP_SIZE, GroupedInt8, Weights

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FACTORS = "rope_freqs.weight"
INTERLEAVED_ARCHITECTURES = ("llama", "smollm3")
EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
STORED_TYPES: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
GROUPED_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


class GgufFile:
    """An opened GGUF file: header checked, no weight read.

    Attributes:
        config: the decoder.
        eos_ids: ids that end a text, as the metadata has them.

    Raises:
        CorruptModelError: the file is truncated or damaged, or a tensor is missing; names the first such tensor.
        UnsupportedModelError: the architecture, an option or a tensor (all named) is not covered.
    """

    config: DecoderConfig
    eos_ids: tuple[int, ...]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: GgufHeader = read_header(path)
        factors = self.header.tensors.get(ROPE_FACTORS)
        if factors is not None and factors.type_name != "F32":
            raise CorruptModelError(f"{path}: tensor {ROPE_FACTORS!r}: got type {factors.type_name}, expected F32")
        rope_factors = None if factors is None else self.raw(factors).view(np.float32).ravel().tolist()
        self.config = gguf_decoder_config(path, self.header, rope_factors)
        self.weights = GgufWeights(self)
        ids = (self.header.metadata.get(f"tokenizer.ggml.{key}") for key in EOS_KEYS)
        self.eos_ids = tuple(dict.fromkeys(token for token in ids if isinstance(token, int)))

    def raw(self, tensor: GgufTensor) -> Bytes:
        """A tensor's bytes, `[row, byte]`, read anew: a mapping would keep the whole file in memory.

        Raises:
            CorruptModelError: the file has become shorter than it was.
        """
        stored = np.fromfile(self.path, np.uint8, tensor.num_bytes, offset=tensor.offset)
        if stored.size != tensor.num_bytes:
            raise CorruptModelError(
                f"{self.path}: tensor {tensor.name!r}: got {stored.size} bytes, expected {tensor.num_bytes}; the file "
                "was cut short while it was in use"
            )
        return stored.reshape(tensor.shape[0], -1)


class GgufWeights(Weights):
    """The tensors of a GGUF file under their canonical names."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.tensors = {
            canonical_name(file, name): tensor for name, tensor in file.header.tensors.items() if name != ROPE_FACTORS
        }
        for tensor in self.tensors.values():
            require_readable(file.path, tensor)
        require_tensors(file.path, file.config, {name: tensor.shape for name, tensor in self.tensors.items()})

    @property
    def half_precision(self) -> bool:
        matrices = [tensor.type_name for tensor in self.tensors.values() if len(tensor.shape) == 2]
        return "F32" not in matrices

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def read(self, name: str) -> Tensor:
        tensor = self._find(name)
        if tensor.type_name in STORED_TYPES:
            return torch.from_numpy(self._rows(name, tensor)).view(STORED_TYPES[tensor.type_name]).view(tensor.shape)
        grouped = self.read_grouped(name)
        if grouped is not None:
            return grouped.dequantise()
        from gguf import GGMLQuantizationType, quants

        values = quants.dequantize(self._rows(name, tensor), GGMLQuantizationType[tensor.type_name])
        return torch.from_numpy(values).view(tensor.shape)

    def read_grouped(self, name: str) -> GroupedInt8 | None:
        tensor = self._find(name)
        if tensor.type_name not in GROUPED_TYPES or len(tensor.shape) != 2:
            return None
        return unpack_groups(self._rows(name, tensor), tensor.type_name)

    def _find(self, name: str) -> GgufTensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise CorruptModelError(f"{self.file.path}: tensor {name!r} is missing") from None

    def _rows(self, name: str, tensor: GgufTensor) -> Bytes:
        """A tensor's bytes with the rows in Hugging Face's order.

        For rotation of neighbouring pairs llama.cpp stores rows (0, d/2, 1, d/2 + 1, ...) of each query and key head;
        Hugging Face rotates halves and keeps them in order. Whole rows move, so quantised blocks stay as they are.
        """
        rows = self.file.raw(tensor)
        projection = name.split(".")[-2]
        if self.file.header.metadata["general.architecture"] not in INTERLEAVED_ARCHITECTURES or projection not in (
            "q_proj",
            "k_proj",
        ):
            return rows
        half = self.file.config.head_dim // 2
        if len(rows) % (2 * half):
            raise CorruptModelError(
                f"{self.file.path}: tensor {name!r}: got {len(rows)} rows, expected a multiple of {2 * half}"
            )
        return np.ascontiguousarray(rows.reshape(-1, half, 2, rows.shape[1]).swapaxes(1, 2)).reshape(rows.shape)


def canonical_name(file: GgufFile, name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        UnsupportedModelError: no decoder of ours has such a tensor.
    """
    base, _, kind = name.rpartition(".")
    if kind in ("weight", "bias"):
        if base in TOP_NAMES:
            return f"{TOP_NAMES[base]}.{kind}"
        prefix, _, rest = base.partition(".")
        number, _, part = rest.partition(".")
        names = LAYER_NAMES | SANDWICH_NAMES if file.config.sandwich_norms else LAYER_NAMES
        if prefix == "blk" and number.isdecimal() and part in names:
            return f"model.layers.{int(number)}.{names[part]}.{kind}"
    raise UnsupportedModelError(
        f"{file.path}: tensor {name!r} is not part of a {file.config.family} decoder as we know it"
    )


def require_readable(path: Path, tensor: GgufTensor) -> None:
    """Refuses a type the `gguf` package cannot dequantise, before anything is read."""
    if tensor.type_name in STORED_TYPES or tensor.type_name in GROUPED_TYPES:
        return
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

    kind = GGMLQuantizationType[tensor.type_name]
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        raise UnsupportedModelError(
            f"{path}: tensor {tensor.name!r} has type {tensor.type_name}, which cannot be dequantised"
        ) from None


def unpack_groups(rows: Bytes, type_name: str) -> GroupedInt8:
    """Blocks of 32 as GGUF stores them (`[out, byte]`) in the grouped int8 form; nothing is rounded.

    A block is: scale (float16), minimum (float16, types ending in _1), the fifth bits (32 bits, Q5 types), then 32
    int8 values (Q8_0) or 16 bytes with values 0-15 in their low and values 16-31 in their high halves.

    In NumPy, on one thread: PyTorch would share each of these small steps out among its threads, which on a machine
    with anything else to do costs many times what it saves (measured: 6 s against 0.2 s for 130 million values).
    """
    has_minimum, has_fifth_bits = type_name.endswith("_1"), type_name.startswith("Q5")
    body = GROUP_SIZE if type_name == "Q8_0" else GROUP_SIZE // 2
    start = 2 + 2 * has_minimum + 4 * has_fifth_bits
    blocks = rows.reshape(len(rows), -1, start + body)
    scales = np.ascontiguousarray(blocks[..., 0:2]).view(np.float16)[..., 0].astype(np.float32)
    minimums = None
    if has_minimum:
        minimums = torch.from_numpy(np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(np.float32))
    quants = np.empty((*blocks.shape[:2], GROUP_SIZE), dtype=np.uint8)
    if type_name == "Q8_0":
        quants[...] = blocks[..., start:]
    else:
        np.bitwise_and(blocks[..., start:], 0x0F, out=quants[..., :body])
        np.right_shift(blocks[..., start:], 4, out=quants[..., body:])
        if has_fifth_bits:
            quants |= np.unpackbits(blocks[..., start - 4 : start], axis=-1, bitorder="little") << 4
        if not has_minimum:
            quants -= 16 if has_fifth_bits else 8  # wraps around below zero, which is int8's two's complement
    return GroupedInt8(
        torch.from_numpy(quants.view(np.int8).reshape(len(rows), -1)), torch.from_numpy(scales), minimums
    )
