"""Trainers: from sampled episodes to better policies.

* `algorithms`: recipes and their parts (samplers, selectors, credits, objectives); pure functions on arrays
* `data`: rollouts and micro-batches
* `config`: settings of a run, checked without torch
* `learning`: policy, optimizer, learner; one process or several
* `sampling`: rolling out episodes with the current policy
* `checkpoints`: all state on disk
* `reporting`: metrics, live curves, reports
* `trainer`, `sft`: the loops
* `commands`: `arboretum train` and `sft`, and `arboretum.train`
* `study`, `bench`, `sapling`: comparisons of recipes, speed, and the model that ships with the package
"""

from typing import TYPE_CHECKING

from ..envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from .algorithms.credit.base import Advantages, Credit
    from .algorithms.objectives.settings import Objective
    from .algorithms.objectives.term import PairTerm, Term
    from .algorithms.recipe import Optimization, Recipe
    from .algorithms.recipes import get_recipe
    from .algorithms.samplers import Chains, Sampler, Trees
    from .algorithms.selectors import Selection, Selector
    from .data.rollouts import Rollouts
    from .data.segments import discounted_sums, group_statistics
    from .reporting.result import TrainingResult, Validation
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            ".algorithms.credit.base": "Advantages Credit",
            ".algorithms.objectives.settings": "Objective",
            ".algorithms.objectives.term": "PairTerm Term",
            ".algorithms.recipe": "Optimization Recipe",
            ".algorithms.recipes": "get_recipe",
            ".algorithms.samplers": "Chains Sampler Trees",
            ".algorithms.selectors": "Selection Selector",
            ".data.rollouts": "Rollouts",
            ".data.segments": "discounted_sums group_statistics",
            ".reporting.result": "TrainingResult Validation",
        },
    )

__all__ = [
    "Advantages",
    "Chains",
    "Credit",
    "Objective",
    "Optimization",
    "PairTerm",
    "Recipe",
    "Rollouts",
    "Sampler",
    "Selection",
    "Selector",
    "Term",
    "TrainingResult",
    "Trees",
    "Validation",
    "discounted_sums",
    "get_recipe",
    "group_statistics",
]
