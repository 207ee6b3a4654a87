"""Exit statuses of training commands, and what they print of a run, such as where it ended before its time."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..checkpoints.run_folder import SETTINGS_FILE, is_main, read_run_settings
from ..checkpoints.store import Checkpoints
from ..config.task_data import describe_edits

OK, FAILED, INTERRUPTED = 0, 1, 130


def print_edits(folder: Path, console: Console) -> None:
    """Print which environments' code was edited while the run in a folder was trained."""
    if is_main():
        for sentence in describe_edits(read_run_settings(folder) or {}):
            console.print(f"[yellow]Note:[/] {escape(sentence)}", soft_wrap=True, highlight=False)


def report_failure(failure: str, place: str, console: Console) -> None:
    """Print where and why a run failed.

    Args:
        failure: The reason.
        place: Position in the run, such as "update 3 of 200"; empty while it is prepared.
        console: Console to print to.
    """
    if is_main():
        console.print(f"[red]Stopped{place and f' ({place})'}:[/] {escape(failure)}")


def report_interrupt(checkpoints: Checkpoints, again: str, console: Console) -> int:
    """Print how to continue an interrupted run, and return the exit status.

    Args:
        checkpoints: Checkpoints of the run.
        again: Command that resumes it.
        console: Console to print to.
    """
    last = checkpoints.last
    where = f"the last checkpoint is {last.name}" if last else "there is no checkpoint yet"
    text = f"{where}; continue with: {escape(again)}"
    if not (checkpoints.folder.parent / SETTINGS_FILE).exists():
        text = "the run had not begun; start it with the same command."
    if is_main():
        console.print(f"[yellow]Interrupted:[/] {text}", soft_wrap=True)
    return INTERRUPTED
