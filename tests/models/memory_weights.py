"""Weights held in memory: a `transformers` model's own state dict, or tensors made up on the spot."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pilotfish.errors import CorruptModelError
from pilotfish.models.config import DecoderConfig
from pilotfish.models.decoder import Decoder
from pilotfish.models.weights import GroupedInt8, Weights


class MemoryWeights(Weights):
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    @property
    def half_precision(self) -> bool:
        return all(tensor.element_size() == 2 for tensor in self.tensors.values())

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def read(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise CorruptModelError(f"tensor {name!r} is missing")
        return self.tensors[name]

    def read_grouped(self, name: str) -> GroupedInt8 | None:
        return None


def random_weights(config: DecoderConfig, seed: int = 0, spread: float = 0.3) -> MemoryWeights:
    """Weights of a tiny decoder, wide enough that every part of it shows in the logits."""
    return MemoryWeights(randomised(Decoder(config), seed, spread).state_dict())


def randomised(model: torch.nn.Module, seed: int, spread: float = 0.3) -> torch.nn.Module:
    """Fills all parameters with noise: norm weights around where they start, everything else around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * spread
            parameter.copy_(parameter + noise if "norm" in name else noise)
    return model
