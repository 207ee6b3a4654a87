"""Memory that runs out during an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OutOfMemory(RuntimeError):
    """Memory ran out during an update. Checkpoints are unchanged."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if torch raised an error because it could not allocate memory, on a GPU or on the CPU."""
    is_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpu or isinstance(error, torch.OutOfMemoryError)


@contextmanager
def memory_failures(microbatch_tokens: int) -> Iterator[None]:
    """Context of an update, in which memory that runs out becomes `OutOfMemory`.

    Args:
        microbatch_tokens: Tokens of a micro-batch, for the message.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error) and not is_out_of_memory(error.__cause__):  # of a part of another package
            raise
        raise OutOfMemory(
            f"memory ran out during an update ({str(error).partition('. ')[0]}); lower microbatch_tokens, which "
            f"is {microbatch_tokens}, or set gradient_checkpointing."
        ) from error
