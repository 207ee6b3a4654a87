"""Memory that runs out during an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class OutOfMemory(RuntimeError):
    """Memory ran out during an update. Checkpoints are unchanged."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error, or its cause, is torch's for memory that it could not allocate, on GPU or CPU."""
    return any(
        isinstance(one, torch.OutOfMemoryError)
        or (isinstance(one, RuntimeError) and "DefaultCPUAllocator" in str(one))
        for one in (error, error.__cause__)
    )


@contextmanager
def memory_failures(microbatch_tokens: int) -> Iterator[None]:
    """Context of an update, in which memory that runs out becomes `OutOfMemory`.

    Args:
        microbatch_tokens: Tokens of a micro-batch, for the message.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"memory ran out during an update ({str(error).partition('. ')[0]}); lower microbatch_tokens, which "
            f"is {microbatch_tokens}, or set gradient_checkpointing."
        ) from error
