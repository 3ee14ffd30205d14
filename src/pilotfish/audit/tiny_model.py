"""A real decoder of a few thousand weights, and a draft head for it, made on the spot from a seed.

Owns their shape and their numbers. For drafters that a probability table cannot serve: those that run the target's own
layers, or look at its hidden states.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from pilotfish.errors import ExecutorUnavailableError
from pilotfish.models.base import Executor
from pilotfish.models.config import DecoderConfig, LayerConfig, RopeConfig
from pilotfish.models.decoder import Decoder
from pilotfish.models.eagle import EagleConfig, EagleHead
from pilotfish.models.native_executor import NativeExecutor
from pilotfish.models.torch_executor import TorchExecutor
from pilotfish.models.weights import GroupedInt8, Weights

BOUNDARIES = (1, 2, 3)
_SPREAD = 0.35


class _Tensors(Weights):
    """Weights that lie in memory."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    @property
    def half_precision(self) -> bool:
        return False

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def read(self, name: str) -> Tensor:
        return self._tensors[name]

    def read_grouped(self, name: str) -> GroupedInt8 | None:
        return None


def tiny_config(vocab_size: int, layers: int = 3) -> DecoderConfig:
    """A Llama-like decoder of hidden size 16."""
    rope = RopeConfig(tuple(100.0 ** (-pair / 4) for pair in range(4)))
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        context_length=256,
        norm_eps=1e-5,
        query_scale=8**-0.5,
        layers=(LayerConfig(rope),) * layers,
        tie_word_embeddings=True,
    )


def tiny_executor(seed: int, vocab_size: int) -> Executor:
    """Random weights on the native executor, on the reference where that was not built."""
    config = tiny_config(vocab_size)
    tensors = {name: tensor.detach() for name, tensor in _randomised(Decoder(config), seed).state_dict().items()}
    try:
        return NativeExecutor(config, _Tensors(tensors), weight_type="float32", threads=1, kv_cache_tokens=8192)
    except ExecutorUnavailableError:
        return TorchExecutor(config, _Tensors(tensors))


def tiny_head(seed: int, target: DecoderConfig) -> EagleHead:
    """A draft head that nobody trained; it is right now and then."""
    layer = tiny_config(target.vocab_size, layers=1)
    config = EagleConfig(layer, target.vocab_size, target.hidden_size, boundaries=BOUNDARIES)
    head = _randomised(EagleHead(config), seed)
    assert isinstance(head, EagleHead), "filled in place"
    return head


def _randomised(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed % 2**63)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = _SPREAD * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + noise if "norm" in name else noise)
    return module
