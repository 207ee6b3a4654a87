"""Plain data for the files of a run: JSON values without secrets, whatever the caller's values were."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any
from weakref import WeakKeyDictionary

from ..envs.addresses import identifying_url, is_secret

HIDDEN = "***"
_SECRET = (
    r"[\w.-]*(?:api[_-]?key|headers|password|secret|authorization|credential)[\w.-]*"
    r"|(?:[\w.-]*(?:access|api|auth|bearer|hf|id|refresh|session))?[_-]?token"
)
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(rf"""((?:^|[={{\[,\s"'])(?:{_SECRET})["']?\s*[=:]\s*).+""", re.IGNORECASE | re.DOTALL)
_objects: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def to_plain(value: Any) -> Any:
    """Return a value as JSON values, without the values of secret names and secrets in addresses, at any depth."""
    if isinstance(value, Mapping):
        return {str(name): HIDDEN if _is_secret(str(name), one) else to_plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if isinstance(value, str):
        return identifying_url(value) if value.startswith(("http://", "https://")) else value
    return value if value is None or isinstance(value, bool | int | float) else encode_object(value)


def encode_object(value: Any) -> Any:
    """Return a JSON value for an object that is none, for `json.dumps`.

    Numbers of NumPy become numbers, and paths texts. Any other object is named by its class and its `identity`,
    such as a retriever's. Without it, a random value, the same for the same object, keeps runs with different
    objects apart.
    """
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    own = getattr(value, "identity", None)
    return (
        f"{type(value).__module__}.{type(value).__qualname__} {own if isinstance(own, str) else object_id(value)}"
    )


def object_id(value: Any) -> str:
    """Return a random text of an object, the same on each call in this process where the object allows it."""
    new = uuid.uuid4().hex[:16]
    try:
        return _objects.setdefault(value, new)
    except TypeError:  # It cannot be referred to weakly, or hashed.
        return new


def hide_secrets_in_text(text: str) -> str:
    """Return an argument of a command without what follows a secret name in it, at any depth."""
    return _SECRET_IN_TEXT.sub(rf"\g<1>{HIDDEN}", text)


def _is_secret(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return False
    return is_secret(name) or _SECRET_NAME.fullmatch(name) is not None
