"""The command `arboretum sapling`: pretrains the shipped model anew."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ...envs.errors import ConfigurationError
from ..train import INTERRUPTED, OK, require_torch


def make_sapling(out: Path, seed: int = 0, *, console: Console) -> int:
    """Pretrain the shipped model anew and write it to a folder.

    Args:
        out: Folder of the model; an existing folder must hold an earlier model, which is replaced.
        seed: Seed of the initial weights, the tasks and the episodes; 0 for the shipped model.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when done, 130 when interrupted.

    Raises:
        ConfigurationError: Packages for training are missing, or the folder holds something else.
    """
    require_torch()
    if out.exists() and not (out / "model.safetensors").exists():
        raise ConfigurationError(f"{out}: exists and holds no model; choose another --out.")
    import torch

    from .pretraining import SaplingConfig, SaplingTrainer

    torch.set_num_threads(1)  # The order of floating-point sums depends on the number of threads.
    trainer = SaplingTrainer(SaplingConfig(out, seed=seed))
    size = sum(weight.numel() for weight in trainer.model.parameters())
    console.print(f"Pretraining {size / 1e6:.2f} million parameters for {trainer.steps} steps.", highlight=False)
    start = time.monotonic()
    try:
        for record in trainer.run():
            rates = {name: value for name, value in record.items() if name not in ("step", "loss")}
            shown = ", ".join(f"{name} {value:.0%}" for name, value in rates.items())
            minutes = (time.monotonic() - start) / 60
            console.print(
                f"{minutes:5.1f} min  step {record['step']:g}: loss {record['loss']:.3f}; validation: {shown}",
                highlight=False,
                soft_wrap=True,
            )
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted:[/] no model was written.")
        return INTERRUPTED
    console.print(f"Model: {trainer.export()}", soft_wrap=True, highlight=False, markup=False)
    return OK
