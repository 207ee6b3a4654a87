"""Devices of local models."""

from __future__ import annotations

import torch

from ....envs.errors import ConfigurationError


def best_device() -> str:
    """Return the best available device: "cuda", else "mps", else "cpu"."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(name: str) -> None:
    """Raise unless a device is available.

    Raises:
        ConfigurationError: torch has no device of this name, or cannot use it on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigurationError(f"unknown device {name!r}; use cuda, cuda:1 and so on, mps, or cpu.") from None
    if device.type == "cuda":
        if torch.version.cuda is None and torch.version.hip is None:
            reason = f"the installed PyTorch {torch.__version__} is built without CUDA"
        elif not torch.cuda.is_available():
            reason = "PyTorch finds no GPU with a working driver"
        elif (device.index or 0) >= torch.cuda.device_count():
            reason = f"PyTorch finds {torch.cuda.device_count()} GPU(s), counted from cuda:0"
        else:
            return
    elif device.type == "mps" and not torch.backends.mps.is_available():
        reason = "PyTorch finds no GPU of Apple"
    else:
        return
    raise ConfigurationError(f"device {name!r} is not available: {reason}; without a device the best one is used.")
