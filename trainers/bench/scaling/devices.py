"""Accelerators: published peaks, and what fraction of them is assumed where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....envs.errors import ConfigurationError


@dataclass(frozen=True)
class Device:
    """Published figures of an accelerator in a machine of eight.

    Attributes:
        flops: Dense bfloat16 operations per second.
        bandwidth: Bytes per second between memory and processor.
        memory: Bytes of memory.
        link: Bytes per second to the other accelerators of the machine, in one direction.
    """

    flops: float
    bandwidth: float
    memory: float
    link: float


DEVICES: Mapping[str, Device] = {
    "A100": Device(312e12, 2.04e12, 80e9, 300e9),
    "H100": Device(989e12, 3.35e12, 80e9, 450e9),
    "H200": Device(989e12, 4.8e12, 141e9, 450e9),
    "B200": Device(2250e12, 8e12, 180e9, 900e9),
}
"""SXM modules, from the vendors' data sheets."""

GPUS_PER_MACHINE = 8


@dataclass(frozen=True)
class Assumptions:
    """Fractions of a device's peaks, and delays. None of these is measured.

    Attributes:
        bandwidth: Fraction of the memory bandwidth that decoding reaches.
        prefill_flops: Fraction of the peak operations in encoding prompts and in scoring.
        update_flops: Fraction of the peak operations in forward and backward passes.
        network: Bytes per second and GPU between machines.
        step_seconds: Seconds of a decoding step besides memory and operations.
        sequence_seconds: Seconds of a decoding step for each sequence, for sampling and bookkeeping.
        latency: Seconds before a collective operation transfers its first byte.
    """

    bandwidth: float = 0.6
    prefill_flops: float = 0.5
    update_flops: float = 0.4
    network: float = 50e9
    step_seconds: float = 2e-3
    sequence_seconds: float = 1e-5
    latency: float = 2e-5

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        for name in ("bandwidth", "prefill_flops", "update_flops"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigurationError(
                    f"{_option(name)} must be above 0 and at most 1, not {getattr(self, name):g}."
                )
        if self.network <= 0:
            raise ConfigurationError(f"--network must be above 0 bytes per second, not {self.network:g}.")
        for name in ("step_seconds", "sequence_seconds", "latency"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{_option(name)} must be at least 0, not {getattr(self, name):g}.")


def _option(name: str) -> str:
    """Return the option of the command that has the name of a field."""
    return f"--{name.replace('_', '-')}"
