"""The device that work is done on, known to be there before the work begins."""

import torch

from cwdfm.errors import InputError


def find_device(device: torch.device | str) -> torch.device:
    """The device of a name; "auto" is a GPU where there is one. One that is not here is refused."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:  # which lists devices that nothing here runs on
        raise _wrong(device, "no such device") from error
    # Not by a tensor, for which every process of a group would take memory of the first GPU.
    if found.type == "cuda" and not torch.cuda.is_available():
        raise _wrong(device, "no CUDA device is available")
    count = torch.cuda.device_count() if found.type == "cuda" else 0
    if found.type == "cuda" and found.index is not None and found.index >= count:
        raise _wrong(device, f"the last of {count} is cuda:{count - 1}")
    if found.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=found).item()  # which "meta", that computes nothing, cannot tell
        except Exception as error:  # of many kinds, one for each kind of device
            raise _wrong(device, "torch cannot compute on such a device here") from error
    return found


def _wrong(device: object, reason: str) -> InputError:
    return InputError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {device!r} ({reason})")
