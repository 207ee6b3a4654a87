"""Failures of the parts of a recipe that other packages define."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...envs.errors import ConfigurationError
from ...envs.user_code import USER_ERRORS, describe_failure, is_ours


class PartFailed(RuntimeError):
    """A part of the recipe raised, or returned something that cannot be trained on. Checkpoints are unchanged."""


@contextmanager
def part_failures(kind: str, part: Any) -> Iterator[None]:
    """Context in which errors of a part of another package become `PartFailed`; those of our own are our faults.

    Args:
        kind: Kind of the part, such as "credit".
        part: The part, whose `name` the message has.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except USER_ERRORS as error:
        if is_ours(type(part)):
            raise
        raise PartFailed(describe_failure(f"{kind} {part.name}", error)) from error
