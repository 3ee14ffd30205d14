"""Tiny models on disk, made on the spot: tokenizers, Hugging Face directories, GGUF files as llama.cpp writes them."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

from pilotfish.models.rope import default_inv_freq, llama3_inv_freq

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = (
    "A pilotfish swims ahead of the shark and proposes where to go next.",
    "The shark looks once, keeps what it agrees with and turns where it does not.",
    "What the shark would have done alone, it does with the pilotfish, only sooner.",
    "Numbers such as 7, 42, 1999 and 31415 stand among the words; don't they?",
    "    indented lines,\n\n\tblank lines and tabs,  double  spaces",
    "naïve façade, Größe, 日本語, ☃ and 𝄞: characters of two, three and four bytes",
)


@cache
def trained_byte_level(vocab_size: int = 384) -> str:
    """SmolLM's pipeline (single digits, then GPT-2's pattern) with merges learned from a few sentences, as JSON."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer.to_str()


@cache
def trained_sentencepiece_style() -> str:
    """A Llama-2 kind of pipeline: spaces as marks, merges over characters, unknown ones as bytes; as JSON."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.train_from_iterator(
        TEXT[:4], trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    )
    parts = json.loads(trained.to_str())
    parts["model"] |= {"byte_fallback": True, "fuse_unk": True}
    parts["added_tokens"] = [entry for entry in parts["added_tokens"] if entry["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.to_str()


def tiny_tokenizer(path: Path, *, kind: str = "byte_level", vocab_size: int = 384, chat: bool = True) -> Path:
    """Writes a tokenizer into a directory. Kinds: "byte_level" (eos <|im_end|>) and "sentencepiece" (bos, eos)."""
    path.mkdir(parents=True, exist_ok=True)
    byte_level = kind == "byte_level"
    text = trained_byte_level(vocab_size) if byte_level else trained_sentencepiece_style()
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>" if byte_level else "<s>",
        "eos_token": "<|im_end|>" if byte_level else "</s>",
        "unk_token": "<|endoftext|>" if byte_level else "<unk>",
    }
    if chat:
        settings["chat_template"] = CHAT_TEMPLATE
    (path / "tokenizer.json").write_text(text, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


def tiny_transformers_model(family: str = "llama", *, seed: int = 0, **values: Any) -> Any:
    """A `transformers` model with random float32 weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        **{
            "vocab_size": 384,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 256,
            "bos_token_id": 1,
            "eos_token_id": EOS_ID,
            "pad_token_id": None,
            **values,
        },
    )
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 0.0 if "norm" not in name or family.startswith("gemma") else 1.0
            parameter.copy_(centre + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def tiny_hf_directory(
    path: Path,
    *,
    family: str = "llama",
    seed: int = 0,
    padding: int = 0,
    dtype: torch.dtype = torch.float32,
    shard_size: str | None = None,
    vocab_size: int = 384,
    **values: Any,
) -> Path:
    """A complete model directory, saved by `transformers`, with a byte-level tokenizer and a chat template.

    Args:
        padding: rows of the embedding beyond the tokenizer's vocabulary.
        shard_size: such as "40KB", for several files and an index.
        values: keys of `config.json` to change.
    """
    tiny_tokenizer(path, vocab_size=vocab_size)
    model = tiny_transformers_model(family, seed=seed, vocab_size=vocab_size + padding, **values).to(dtype)
    model.save_pretrained(path, **({} if shard_size is None else {"max_shard_size": shard_size}))
    return path


def tokenizer_metadata(writer: gguf.GGUFWriter, tokenizer_json: str, *, padding: int = 0) -> None:
    """Writes a tokenizer into a GGUF the way llama.cpp's converter does."""
    parts = json.loads(tokenizer_json)
    model = parts["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    special = {entry["content"] for entry in parts["added_tokens"]}
    byte_fallback = model["byte_fallback"]
    types = [3 if token in special else 6 if byte_fallback and token.startswith("<0x") else 1 for token in tokens]
    if byte_fallback:
        types[0] = 2
        merged = {left + right: rank for rank, (left, right) in reversed(list(enumerate(model["merges"])))}
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([float(-1 - merged.get(token, len(merged))) for token in tokens])
        writer.add_add_bos_token(False)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_chat_template(CHAT_TEMPLATE)
    writer.add_token_list([*tokens, *(f"[PAD{len(tokens) + row}]" for row in range(padding))])
    writer.add_token_types([*types, *[5] * padding])


ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def write_gguf(
    path: Path,
    model: Any,
    *,
    matrix_type: str = "F32",
    architecture: str | None = None,
    tokenizer_json: str | None = None,
    padding: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a `transformers` model as llama.cpp's converter would: its names, its row order, its norms.

    Args:
        matrix_type: of all matrices; vectors are F32.
        architecture: written in place of the right one.
        options: further metadata, by full key.
    """
    config = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture or gguf.MODEL_ARCH_NAMES[arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    else:
        writer.add_rope_freq_base(rope["rope_theta"])
        writer.add_rope_dimension_count(config.head_dim)
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        plain = default_inv_freq(config.head_dim, rope["rope_theta"])
        scaled = llama3_inv_freq(
            config.head_dim,
            rope["rope_theta"],
            factor=rope["factor"],
            low_freq_factor=rope["low_freq_factor"],
            high_freq_factor=rope["high_freq_factor"],
            original_context=rope["original_max_position_embeddings"],
        )
        factors = np.array([a / b for a, b in zip(plain, scaled, strict=True)], dtype=np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    for key, value in (options or {}).items():
        writer.add_key_value(key, value, *_value_types(value))
    if tokenizer_json is not None:
        tokenizer_metadata(writer, tokenizer_json, padding=padding)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if config.model_type in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            shape = (heads, 2, len(values) // heads // 2, *values.shape[1:])
            values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        quant = gguf.GGMLQuantizationType[matrix_type if values.ndim == 2 else "F32"]
        stored = gguf.quants.quantize(np.ascontiguousarray(values), quant)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _value_types(value: Any) -> tuple[Any, ...]:
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY, kinds[type(value[0])]
    return (kinds.get(type(value), gguf.GGUFValueType.STRING),)
