"""Linear layers on the native kernels, for small models that are put together in PyTorch.

Owns the exchange of a module's `nn.Linear`s. A draft head's time is its matrices: packed in bfloat16 they are read two
to four times as fast as PyTorch reads them, and its other operations are too small to matter.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pilotfish.errors import ExecutorUnavailableError, UnsupportedModelError
from pilotfish.models.native_executor import native_module

STORAGES = ("float32", "bfloat16", "bfloat16-compute")
"""Of the native executor's those that need nothing but the inputs."""


class NativeLinear(nn.Module):
    """A linear layer without gradients, on the CPU.

    Args:
        linear: the layer to take over, float32.
        threads: at most this many at work.
        storage: one of `STORAGES`; bfloat16 where that loses nothing, else float32, by default.
    """

    def __init__(self, linear: nn.Linear, threads: int, storage: str | None = None) -> None:
        super().__init__()
        weight = linear.weight.detach().contiguous()
        exact = torch.equal(weight, weight.to(torch.bfloat16).to(torch.float32))
        self.storage = storage or ("bfloat16" if exact else "float32")
        self._packed = native_module().PackedLinear(weight, self.storage)
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._outputs = linear.out_features
        self._threads = threads

    def forward(self, x: Float[Tensor, "row inputs"]) -> Float[Tensor, "row outputs"]:
        out = torch.empty((len(x), self._outputs))
        self._packed.multiply(x.detach().contiguous(), out, self._threads)
        return out if self._bias is None else out + self._bias


def native_linear(linear: nn.Linear, storage: str | None) -> NativeLinear | None:
    """A layer stored as an executor stores its matrices, on as many threads as PyTorch's; `None` where it cannot be."""
    if storage not in STORAGES:
        return None
    try:
        return NativeLinear(linear, torch.get_num_threads(), storage)
    except ExecutorUnavailableError:
        return None


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
