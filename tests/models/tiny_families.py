"""Tiny models of every family, made from a seed with `transformers`, and ours with the same weights."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from pilotfish.models.config import DecoderConfig
from pilotfish.models.families import decoder_config
from pilotfish.models.torch_executor import TorchExecutor
from tests.models.memory_weights import MemoryWeights, randomised

VOCAB_SIZE = 97
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
_GEMMA3 = {"sliding_window": 5, "query_pre_attn_scalar": 24, "layer_types": _ALTERNATING}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "head_dim": None},
    "llama-one-kv-head": {"model_type": "llama", "num_key_value_heads": 1},
    "llama-tied-no-gqa": {"model_type": "llama", "num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-gelu": {"model_type": "llama", "hidden_act": "gelu_pytorch_tanh"},
    "llama-linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    },
    "llama-llama3": {"model_type": "llama", "rope_parameters": _LLAMA3},
    "llama-yarn": {"model_type": "llama", "rope_parameters": _YARN},
    "llama-yarn-mscale": {
        "model_type": "llama",
        "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False, "beta_fast": 16.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-window": {"model_type": "mistral", "sliding_window": 5},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "qwen2-yarn-tied": {
        "model_type": "qwen2",
        "rope_parameters": {**_YARN, "attention_factor": 1.5},
        "tie_word_embeddings": True,
    },
    "qwen3": {"model_type": "qwen3"},
    "qwen3-biases-window": {
        "model_type": "qwen3",
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": _ALTERNATING,
    },
    "smollm3": {"model_type": "smollm3"},
    "smollm3-biases-window": {
        "model_type": "smollm3",
        "attention_bias": True,
        "mlp_bias": True,
        "no_rope_layers": [1, 0, 1, 0],
        "use_sliding_window": True,
        "sliding_window": 5,
        "tie_word_embeddings": False,
    },
    "gemma3": {"model_type": "gemma3_text", **_GEMMA3},
    "gemma3-linear-biases": {
        "model_type": "gemma3_text",
        **_GEMMA3,
        "attention_bias": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
}


@cache
def tiny_model(case: str) -> Any:
    """The `transformers` model: float32, eager attention, random weights."""
    values = {**_BASE, **CASES[case]}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return randomised(model, seed=7).eval()


@cache
def tiny_config(case: str) -> DecoderConfig:
    return decoder_config(tiny_model(case).config.to_dict())


@cache
def tiny_weights(case: str) -> MemoryWeights:
    return MemoryWeights(tiny_model(case).state_dict())


def tiny_executor(case: str, dtype: torch.dtype = torch.float32) -> TorchExecutor:
    return TorchExecutor(tiny_config(case), tiny_weights(case), dtype=dtype)


@torch.no_grad()
def expected_logits(case: str, tokens: list[int]) -> Tensor:
    """`[row, vocab]` from `transformers`, all tokens in one pass."""
    return tiny_model(case)(torch.tensor([tokens]), use_cache=False).logits[0]


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
