"""Text environments, independent of any language model.

Every environment is a `TextEnv`, registered with Gymnasium under the ids that `arboretum envs` lists.
"""

from .core import Info, Outcome, TextEnv
from .errors import ConfigurationError, DataError
from .optimum import Optimum
from .snapshots import Snapshot

__all__ = ["ConfigurationError", "DataError", "Info", "Optimum", "Outcome", "Snapshot", "TextEnv"]
