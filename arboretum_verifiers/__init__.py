"""Package that verifiers imports by the id of its taskset: `vf-eval arboretum-verifiers`."""

from arboretum.agents.adapters.verifiers import EnvironmentEnv, EnvironmentTaskset

__all__ = ["EnvironmentEnv", "EnvironmentTaskset"]
