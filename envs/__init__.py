"""Text worlds. They know nothing of language models.

Every world is a `TextEnv`, registered under the ids listed by `arboretum envs`.
"""

from .core import Info, Outcome, Snapshot, TextEnv
from .errors import ConfigurationError, DataError

__all__ = ["ConfigurationError", "DataError", "Info", "Outcome", "Snapshot", "TextEnv"]
