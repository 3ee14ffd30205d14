"""Where an executor reads a model's tensors from, whatever file they lie in.

Owns the canonical tensor names (those of Hugging Face's Llama: `model.layers.3.self_attn.q_proj.weight`) and the
grouped int8 form. Knows no file format; `huggingface.py` and `gguf.py` implement it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

GROUP_SIZE = 32
WeightType: TypeAlias = Literal["auto", "float32", "bfloat16", "bfloat16-compute", "int8"]
"""How the native executor stores a model's matrices; `NativeExecutor` has what each means."""
WEIGHT_TYPES: tuple[str, ...] = get_args(WeightType)


@dataclass(frozen=True, slots=True)
class GroupedInt8:
    """A matrix stored as int8 in groups of 32 along its input axis: `value = scale * quant + minimum`.

    The GGUF types Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 map onto it with nothing rounded.
    """

    quants: Int8[Tensor, "out in"]
    scales: Float[Tensor, "out group"]
    minimums: Float[Tensor, "out group"] | None = None

    def dequantise(self) -> Float[Tensor, "out in"]:
        """The matrix as float32 (each product and sum rounded once)."""
        out_size, in_size = self.quants.shape
        # In NumPy: handing each small step to PyTorch's threads takes longer than the step.
        values = self.quants.numpy().reshape(out_size, -1, GROUP_SIZE).astype(np.float32)
        values *= self.scales.numpy()[:, :, None]
        if self.minimums is not None:
            values += self.minimums.numpy()[:, :, None]
        return torch.from_numpy(values.reshape(out_size, in_size))


class Weights(ABC):
    """A model's tensors, read one at a time so that a loader may release each as it is packed."""

    @property
    @abstractmethod
    def half_precision(self) -> bool:
        """True when the checkpoint itself stores no matrix in more than 16 bits a number, quantised ones included."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Canonical names of all tensors."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """One tensor as stored (bfloat16, float16 or float32; quantised types come as float32).

        Raises:
            CorruptModelError: the tensor is missing or its bytes are damaged; names file and tensor.
        """

    @abstractmethod
    def read_grouped(self, name: str) -> GroupedInt8 | None:
        """The exact grouped int8 form of a quantised matrix, or `None` where the stored type has none."""
