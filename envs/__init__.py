"""Text environments, independent of any language model.

Every environment is a `TextEnv`, registered with Gymnasium under the ids that `arboretum envs` lists.
"""

from .core import Info, Outcome, TextEnv
from .errors import ConfigurationError, DataError
from .optimum import Optimum
from .registry import EnvSpec, make_env
from .seeding import stable_seed
from .snapshots import Snapshot
from .tasks import GeneratedTasks, belongs

__all__ = [
    "ConfigurationError",
    "DataError",
    "EnvSpec",
    "GeneratedTasks",
    "Info",
    "Optimum",
    "Outcome",
    "Snapshot",
    "TextEnv",
    "belongs",
    "make_env",
    "stable_seed",
]
