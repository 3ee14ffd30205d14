"""What PyTorch can compute on here, and the check of a device's name. Knows no model."""

from pilotfish.errors import InvalidInputError

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
