"""Linear layers on the native kernels, for small models that are put together in PyTorch.

Owns the exchange of a module's `nn.Linear`s. A draft head's time is its matrices: packed in bfloat16 they are read two
to four times as fast as PyTorch reads them, and its other operations are too small to matter.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pilotfish.errors import UnsupportedModelError
from pilotfish.models.native_executor import native_module


class NativeLinear(nn.Module):
    """A linear layer without gradients, on the CPU. Stored in bfloat16 where that loses nothing, else in float32.

    Args:
        linear: the layer to take over, float32.
        threads: at most this many at work.
    """

    def __init__(self, linear: nn.Linear, threads: int) -> None:
        super().__init__()
        weight = linear.weight.detach().contiguous()
        exact = torch.equal(weight, weight.to(torch.bfloat16).to(torch.float32))
        self.storage = "bfloat16" if exact else "float32"
        self._packed = native_module().PackedLinear(weight, self.storage)
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._outputs = linear.out_features
        self._threads = threads

    def forward(self, x: Float[Tensor, "row inputs"]) -> Float[Tensor, "row outputs"]:
        out = torch.empty((len(x), self._outputs))
        self._packed.multiply(x.detach().contiguous(), out, self._threads)
        return out if self._bias is None else out + self._bias


def use_native_linears(module: nn.Module, threads: int) -> None:
    """Exchanges every `nn.Linear` of a module, in place; it can then no longer be trained.

    Raises:
        UnsupportedModelError: one is not on the CPU in float32.
    """
    for parent, name, linear in list(_linears(module)):
        if linear.weight.device.type != "cpu" or linear.weight.dtype != torch.float32:
            raise UnsupportedModelError(
                f"{name} is {linear.weight.dtype} on {linear.weight.device}; native linear layers start from float32 "
                "on the CPU"
            )
        setattr(parent, name, NativeLinear(linear, threads))


def _linears(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                yield parent, name, child
