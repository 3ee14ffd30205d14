"""What PyTorch can compute on here, and the check of a device's name. Knows no model."""

from collections.abc import Iterator
from contextlib import contextmanager

from pilotfish.errors import InvalidInputError
from pilotfish.models.machine import available_bytes

CPU = "cpu"


def available_devices() -> list[str]:
    """Names of the CPU and of each accelerator, such as `cuda:0`."""
    import torch

    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return [CPU]
    return [CPU, *(f"{kind.type}:{index}" for index in range(torch.accelerator.device_count()))]


def require_device(name: str) -> None:
    """Refuses a device that is not here, before anything is read for it. A kind without a number is its current one.

    Raises:
        InvalidInputError: names those that are.
    """
    if name == CPU:
        return
    devices = available_devices()
    if name not in (*devices, *(device.partition(":")[0] for device in devices)):
        raise InvalidInputError(f"device={name!r}: expected one of {', '.join(devices)}")


def free_memory(device: str) -> int:
    """Bytes that can be had on a device now."""
    if device != CPU:
        import torch

        if torch.device(device).type == "cuda":
            return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """PyTorch computes on so many threads in a block, and as before after it; `None` changes nothing."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
