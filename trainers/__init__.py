"""Trainers: from sampled episodes to better policies.

* `algorithms`: recipes and their parts (samplers, selectors, credits, objectives); pure functions on arrays
* `data`: rollouts and micro-batches
* `config`: settings of a run, checked without torch
* `learning`: policy, optimizer, learner; one process or several
* `sampling`: rolling out episodes with the current policy
* `checkpoints`: all state on disk
* `reporting`: metrics, live curves, reports
* `trainer`, `sft`, `train`: the loops and their commands
* `study`, `bench`, `sapling`: comparisons of recipes, speed, and the model that ships with the package
"""
