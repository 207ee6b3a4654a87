"""Statistics of a search tree, against equations worked by hand and a bandit with known values."""

from __future__ import annotations

import math
import random

import pytest

from arboretum.agents.puct import Bounds, Candidate, Node, action_priors, back_up, select


def candidate(action: str, probability: float | None, text: str | None = None) -> Candidate:
    logprob = None if probability is None else math.log(probability)
    return Candidate((action,), text or action, logprob)


def test_prior_of_covered_replies_is_the_policy() -> None:
    candidates = [candidate("a", 0.7), candidate("a", 0.7), candidate("b", 0.3)]
    assert action_priors(candidates) == {("a",): pytest.approx(0.7), ("b",): pytest.approx(0.3)}


def test_prior_of_unseen_mass_follows_the_frequency_of_the_moves() -> None:
    # C = 0.2 + 0.1 + 0.1 = 0.4; of the rest, 0.6, move a has 3 of 4 samples.
    candidates = [
        candidate("a", 0.2, "x"),
        candidate("a", 0.1, "y"),
        candidate("a", 0.2, "x"),
        candidate("b", 0.1),
    ]
    priors = action_priors(candidates)
    assert priors == {("a",): pytest.approx(0.2 + 0.1 + 0.6 * 3 / 4), ("b",): pytest.approx(0.1 + 0.6 / 4)}
    assert sum(priors.values()) == pytest.approx(1.0)


def test_prior_without_log_probabilities_is_the_frequency() -> None:
    candidates = [candidate("a", None), candidate("b", None), candidate("a", None, "c")]
    assert action_priors(candidates) == {("a",): pytest.approx(2 / 3), ("b",): pytest.approx(1 / 3)}


def test_prior_of_long_thoughts_is_not_dominated_by_the_likeliest_one() -> None:
    priors = action_priors([candidate("a", 1e-20, "x"), candidate("b", 1e-30, "y")])
    assert priors[("a",)] == pytest.approx(0.5) and priors[("b",)] == pytest.approx(0.5)


def node(**priors: float) -> Node:
    made = Node(None)
    made.add([candidate(name, probability) for name, probability in priors.items()])
    return made


def test_selection_maximizes_the_bound_of_alphazero() -> None:
    state, bounds = node(a=0.6, b=0.4), Bounds()
    a, b = state.edges.values()
    for edge, value in ((a, 1.0), (a, 0.0), (b, 0.8)):
        edge.in_flight += 1
        back_up([(edge, value)], bounds)
    # Q(a) = 0.5, Q(b) = 0.8; U(a) = 1.25 * 0.6 * sqrt(3) / 3 = 0.433, U(b) = 1.25 * 0.4 * sqrt(3) / 2 = 0.433.
    assert (a.value, b.value, a.visits, b.visits) == (0.5, 0.8, 2, 1)
    assert select(state, 1.25, bounds) is b
    # With c = 10: 0.5 + 3.464 against 0.8 + 3.464.
    b.in_flight += 1
    assert select(state, 10.0, bounds) is a  # 0.5 + 10 * 0.6 * 2 / 3 = 4.5 against 0.8 + 10 * 0.4 * 2 / 3 = 3.47
    assert state.best() is a


def test_first_selection_takes_the_likeliest_move_and_concurrent_ones_spread() -> None:
    state, bounds = node(a=0.3, b=0.5, c=0.2), Bounds()
    chosen = []
    for _ in range(3):
        edge = select(state, 1.25, bounds)
        edge.in_flight += 1
        chosen.append(edge.candidate.text)
    assert chosen[0] == "b" and len(set(chosen)) > 1


def test_back_up_adds_the_return_from_each_move_on() -> None:
    first, second, bounds = node(a=1.0), node(b=1.0), Bounds()
    (a,), (b,) = first.edges.values(), second.edges.values()
    a.in_flight = b.in_flight = 1
    back_up([(a, -0.1), (b, 10.0)], bounds)
    assert (a.value, b.value) == (pytest.approx(9.9), 10.0)
    assert (bounds.low, bounds.high, bounds.scale(9.95)) == (pytest.approx(9.9), 10.0, pytest.approx(0.5))
    assert a.in_flight == b.in_flight == 0


def test_search_finds_the_best_arm_although_its_prior_is_low() -> None:
    means = {"a": 0.3, "b": 0.8, "c": 0.5}
    state, bounds, rng = node(a=0.85, b=0.05, c=0.1), Bounds(), random.Random(0)
    for _ in range(600):
        edge = select(state, 1.25, bounds)
        edge.in_flight += 1
        back_up([(edge, float(rng.random() < means[edge.candidate.text]))], bounds)
    assert state.best().candidate.text == "b"
    assert state.edges[("b",)].value == pytest.approx(0.8, abs=0.06)
