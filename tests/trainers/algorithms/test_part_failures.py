"""Mistakes in parts of recipes of other packages: the error names the part, the method and its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from arboretum.trainers.algorithms.credit.base import Advantages, Credit, assign_credit
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.settings import Objective
from arboretum.trainers.algorithms.objectives.term import Term
from arboretum.trainers.algorithms.part_failures import PartFailed
from arboretum.trainers.algorithms.selectors import Selection, Selector, select_by_env
from support.rollouts import chain_rollouts

torch = pytest.importorskip("torch")

from arboretum.trainers.algorithms.objectives.loss import policy_loss
from arboretum.trainers.algorithms.objectives.tokens import Tokens

ROLLOUTS = chain_rollouts([[1.0], [0.0, 0.0]], [0, 1])  # 6 tokens


@dataclass(frozen=True)
class Own(Credit):
    result: Any = None

    name = "own"

    def assign(self, rollouts: Any, values: Any = None, in_loss: Any = None) -> Any:
        if isinstance(self.result, str):
            return getattr(rollouts, self.result)
        return self.result


@dataclass(frozen=True)
class Picks(Selector):
    result: Any = None

    name = "picks"

    def select(self, rollouts: Any) -> Any:
        return self.result


@dataclass(frozen=True)
class Added(Term):
    length: int | None = None

    name = "added"

    def losses(self, tokens: Any) -> Any:
        return None if self.length is None else tokens.logp.new_zeros(self.length)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, r"Own.assign \(test_part_failures.py, line \d+\) must return Advantages, not None"),
        (Advantages(np.zeros(3)), r"must return advantages of shape \(6,\), one for each copy .*, not \(3,\)"),
        (Advantages(np.zeros(6), multiplicity=np.ones((6, 1))), r"multiplicity of shape \(6,\), .* not \(6, 1\)"),
        (Advantages(np.array([np.nan, 0, 0, 0, 0, np.inf])), r"returned 2 of 6 advantages that are not finite"),
        ("turns_of", r"no attribute 'turns_of' \(test_part_failures.py, line \d+, in Own.assign\)"),
    ],
)
def test_credit_that_cannot_be_trained_on(result: Any, message: str) -> None:
    with pytest.raises(PartFailed, match=rf"^credit own failed: .*{message}"):
        assign_credit(Own(result), ROLLOUTS, None, None)


def test_own_credit_is_passed_through() -> None:
    found = assign_credit(Own(Advantages(np.arange(6.0))), ROLLOUTS, None, None)
    assert found.advantages.tolist() == [0, 1, 2, 3, 4, 5]


def test_fault_of_a_shipped_rule_keeps_its_traceback() -> None:
    with pytest.raises(AttributeError):
        assign_credit(Group(), None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [(99,), (-1,), (1, 0), (0, 0)])
def test_selection_of_groups_that_there_are_not(groups: Sequence[int]) -> None:
    message = (
        r"^selector picks failed: .*Picks.select .* must return different groups from 0 to 1 in ascending order"
    )
    with pytest.raises(PartFailed, match=message):
        select_by_env(Picks(Selection(tuple(groups))), ROLLOUTS)


def test_selector_without_a_selection() -> None:
    with pytest.raises(PartFailed, match=r"Picks.select \(.*\) must return a Selection, not None"):
        select_by_env(Picks(), ROLLOUTS)
    assert select_by_env(Picks(Selection((1,))), ROLLOUTS).groups == (1,)


@pytest.mark.parametrize(("length", "found"), [(None, "None"), (1, r"\(1,\)")])
def test_term_of_another_shape(length: int | None, found: str) -> None:
    tokens = Tokens(torch.zeros(2), torch.ones(2), torch.ones(2), torch.tensor([0, 0]))
    message = rf"^term added failed: .*Added.losses \(.*\) must return a tensor of shape \(2,\), not {found}"
    with pytest.raises(PartFailed, match=message):
        policy_loss(Objective(terms=(Added(length),)), tokens)
