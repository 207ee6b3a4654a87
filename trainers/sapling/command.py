"""The command `arboretum sapling`: pretrains a shipped model anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ...envs.errors import ConfigurationError
from ..checkpoints.run_folder import CHECKPOINTS_FOLDER
from ..commands.outcome import INTERRUPTED, OK
from ..commands.preflight import require_torch
from ..reporting.status import describe_phase, format_duration

if TYPE_CHECKING:
    from .pretraining import SaplingTrainer


def make_sapling(family: str, out: Path | None = None, seed: int = 0, *, console: Console) -> int:
    """Pretrain a shipped model anew, evaluate it and write it to a folder.

    A run that was interrupted continues from its last validation when it is started again with the same arguments.

    Args:
        family: Name of the family; see `families.FAMILIES`.
        out: Folder of the model, which must not exist, unless it holds an interrupted run. None makes a name below
            runs/.
        seed: Seed of the initial weights, the tasks and the episodes; 0 for the shipped models.
        console: Console that shows progress.

    Returns:
        Exit status: 0 when done, 130 when interrupted.

    Raises:
        ConfigurationError: The family is unknown, packages for training are missing, or the folder holds something
            else.
    """
    require_torch()
    from .families import find_family

    definition = find_family(family)
    folder = out or Path("runs") / definition.model
    if folder.exists() and not (folder / CHECKPOINTS_FOLDER).exists():
        holds = "holds a model" if (folder / "model.safetensors").exists() else "exists"
        raise ConfigurationError(f"{folder}: {holds}; choose another --out, or delete the folder.")
    import torch

    from .evaluation import evaluate, scores_table
    from .pretraining import SaplingConfig, SaplingTrainer

    torch.set_num_threads(1)  # The order of floating-point sums depends on the number of threads.
    trainer = SaplingTrainer(SaplingConfig(folder, definition, seed))
    size = sum(weight.numel() for weight in trainer.model.parameters())
    console.print(
        f"Pretraining {size / 1e6:.2f} million parameters on {definition.summary} for {definition.steps} steps.",
        highlight=False,
    )
    if trainer.history:
        console.print(f"Resuming after step {trainer.history[-1]['step']:g}.", highlight=False)
    start = time.monotonic()
    try:
        for record in _shown(trainer, console):
            names = ("step", "tokens", "loss", "observation_loss")
            shown = ", ".join(f"{name} {value:.0%}" for name, value in record.items() if name not in names)
            minutes = (time.monotonic() - start) / 60
            console.print(
                f"{minutes:5.1f} min  step {record['step']:g}, {record['tokens'] / 1e6:.1f} M tokens: loss "
                f"{record['loss']:.3f}; validation: {shown}",
                highlight=False,
                soft_wrap=True,
            )
        console.print(scores_table(list(evaluate(trainer))))
    except KeyboardInterrupt:
        if trainer.history:
            step = trainer.history[-1]["step"]
            rest = f"the same command resumes the run after step {step:g}."
        else:
            rest = "there is no checkpoint yet, so the same command starts again."
        console.print(f"[yellow]Interrupted:[/] no model was written; {rest}", highlight=False)
        return INTERRUPTED
    console.print(f"Model: {trainer.export()}", soft_wrap=True, highlight=False, markup=False)
    return OK


def _shown(trainer: SaplingTrainer, console: Console) -> Iterator[dict[str, float]]:
    """Train, and show the steps in a line below what is printed; a log has the validations only."""
    start, activity = time.monotonic(), trainer.activity

    def line() -> Text:
        return Text(f"{describe_phase(activity, activity.phase)}, {format_duration(time.monotonic() - start)}")

    if not console.is_terminal:
        yield from trainer.run()
        return
    with Live(console=console, get_renderable=line, refresh_per_second=2, transient=True):
        yield from trainer.run()
