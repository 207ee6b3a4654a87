"""Package that verifiers imports by the id of its taskset: `vf-eval arboretum-verifiers`."""

from arboretum.agents.adapters.verifiers import EnvironmentEnv
from arboretum.agents.adapters.verifiers_taskset import EnvironmentTaskset

__all__ = ["EnvironmentEnv", "EnvironmentTaskset"]
