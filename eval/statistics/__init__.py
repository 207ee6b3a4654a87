"""Statistics of evaluations: intervals of rates and means, paired tests, crossed factors, power and repeats."""

from .exact_tests import mcnemar, sign_flips
from .intervals import (
    Interval,
    Moments,
    Tally,
    mean,
    rate,
    student_mean,
    tallied_rate,
    tally,
    weighted_mean,
    wilson,
)
from .paired import Paired, paired, paired_means, stratified, tallied_pairs

__all__ = [
    "Interval",
    "Moments",
    "Paired",
    "Tally",
    "mcnemar",
    "mean",
    "paired",
    "paired_means",
    "rate",
    "sign_flips",
    "stratified",
    "student_mean",
    "tallied_pairs",
    "tallied_rate",
    "tally",
    "weighted_mean",
    "wilson",
]
