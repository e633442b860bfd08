"""Selecting the device to compute on."""

import torch

from cwdfm.errors import InputError


def find_device(device: torch.device | str) -> torch.device:
    """Parse a device and check that it is available; "auto" prefers a GPU over the CPU."""
    if isinstance(device, str) and device == "auto":  # an array has no truth value
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        # torch's own message lists device types that this library does not support.
        raise _invalid(device, "it does not exist") from error
    # Do not allocate a test tensor: every process of a group would use memory on the first GPU.
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise _invalid(device, "CUDA is not available")
    count = torch.cuda.device_count() if parsed.type == "cuda" else 0
    if parsed.type == "cuda" and parsed.index is not None and parsed.index >= count:
        raise _invalid(device, f"the last of {count} GPUs is cuda:{count - 1}")
    if parsed.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=parsed).item()  # fails on "meta", which holds no values
        except Exception as error:  # the exception type depends on the device type
            raise _invalid(device, "torch cannot compute on it") from error
    return parsed


def _invalid(device: object, reason: str) -> InputError:
    return InputError(
        f"device must be auto, cpu, cuda or cuda:NUMBER, got {device!r} ({reason})",
        fields=("device",),
    )
