"""Cost of a training step by model, tokens and processes, and a simulation of schedules on many GPUs.

`model_shape` counts operations and bytes, `costs` turns them into seconds with coefficients that `fit` finds from
the points of `measure`, `episodes` reads the lengths of played episodes, and `simulate` plays synchronous and
asynchronous schedules with both. `command` has the two verbs of `arboretum scaling`.
"""
