"""`arboretum seed`: making the seed model as a person sees it."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ...envs.errors import ConfigurationError
from ..train import require_torch


def grow(out: Path, number: int = 0, *, console: Console) -> int:
    """Make the seed model and write it to a folder.

    Args:
        out: the folder; one that is there must hold an earlier model.
        number: seed of weights, tasks and luck.
        console: where progress is shown.

    Returns:
        Exit status: 0 when done, 130 when interrupted.

    Raises:
        ConfigurationError: torch is missing, or the folder holds something else.
    """
    require_torch()
    if out.exists() and not (out / "model.safetensors").exists():
        raise ConfigurationError(f"{out}: is there already and holds no model; choose another --out.")
    import torch

    from .grow import SaplingConfig, SaplingTrainer

    torch.set_num_threads(1)  # so that the numbers do not depend on the machine's cores
    growing = SaplingTrainer(SaplingConfig(out, seed=number))
    size = sum(weight.numel() for weight in growing.model.parameters())
    console.print(f"A model of {size / 1e6:.2f} million parameters; {growing.steps} steps.", highlight=False)
    begun = time.monotonic()
    try:
        for look in growing.run():
            shown = ", ".join(f"{name} {look[name]:.0%}" for name in look if name not in ("step", "loss"))
            minutes = (time.monotonic() - begun) / 60
            console.print(
                f"{minutes:5.1f} min  step {look['step']:g}: loss {look['loss']:.3f}; held out: {shown}",
                highlight=False,
                soft_wrap=True,
            )
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted;[/] nothing was written.")
        return 130
    console.print(f"Model: {growing.export()}", soft_wrap=True, highlight=False, markup=False)
    return 0
