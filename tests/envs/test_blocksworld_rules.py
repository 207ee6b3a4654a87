"""Blocksworld's rules against the four STRIPS operators on sets of atoms, its notations, and its generator."""

import random
import re

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401
from arboretum.envs.blocksworld.generation import LETTERS, canonical_form, random_arrangement
from arboretum.envs.blocksworld.notation import COLORS, Unreadable, Vocabulary
from arboretum.envs.blocksworld.rules import (
    Goal,
    Problem,
    clear_after,
    clear_blocks,
    facts,
    legal_actions,
    successor,
)

Atom = tuple[str, ...]


def operators(blocks: str) -> dict[str, tuple[set[Atom], set[Atom], set[Atom]]]:
    """Return every ground operator as (preconditions, added, deleted), from the definition of the domain."""
    ops: dict[str, tuple[set[Atom], set[Atom], set[Atom]]] = {}
    hand: Atom = ("handempty",)
    for x in blocks:
        free: set[Atom] = {("clear", x), ("ontable", x), hand}
        ops[f"(pick-up {x})"] = free, {("holding", x)}, free
        ops[f"(put-down {x})"] = {("holding", x)}, free, {("holding", x)}
        for y in blocks:
            if x != y:
                on_top: set[Atom] = {("on", x, y), ("clear", x), hand}
                lifted: set[Atom] = {("holding", x), ("clear", y)}
                ops[f"(stack {x} {y})"] = lifted, on_top, lifted
                ops[f"(unstack {x} {y})"] = on_top, lifted, on_top
    return ops


def atoms(observation: str) -> set[Atom]:
    """Return the atoms in the first line of a PDDL observation."""
    inner = observation.split("\n")[0].removeprefix("(:init ").removesuffix(")")
    return {tuple(part.strip("() ").split()) for part in inner.split(") (")}


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 6), st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_random_walks_agree_with_the_strips_operators(blocks, seed, rng):
    env = gym.make("TextBlocksworld-v0", notation="pddl", blocks=blocks, max_steps=None).unwrapped
    observation, _ = env.reset(seed=seed)
    goal_line = observation.split("\n")[1]
    goal = {tuple(p.strip("() ").split()) for p in goal_line.removeprefix("(:goal (and ")[:-2].split(") (")}
    state = atoms(observation)
    ops = operators(LETTERS[:blocks])
    for _ in range(30):
        legal = {name for name, (needs, _, _) in ops.items() if needs <= state}
        assert set(env.admissible_actions()) == legal
        name = rng.choice(sorted(ops))
        if rng.random() < 0.7:
            name = rng.choice(sorted(legal))
        observation, reward, terminated, _, info = env.step(name)
        needs, added, deleted = ops[name]
        assert info["valid"] is info["changed"] is (needs <= state)
        if info["valid"]:
            state = (state - deleted) | added
            assert atoms(observation) == state
            assert terminated is info["success"] is (goal <= state)
            assert reward == float(goal <= state)
        else:
            missing = {tuple(observation.split(": ")[1].partition(" does not hold.")[0].strip("()").split())}
            assert missing <= needs - state
        if terminated:
            break


@pytest.mark.parametrize(
    ("wording", "meaning"),
    [
        ("pick up the red block", "(pick-up a)"),
        ("Pick up red", "(pick-up a)"),
        ("  PICK-UP   A ", "(pick-up a)"),
        ("pick up block b", "(pick-up b)"),
        ("pick up the blue block from the table.", "(pick-up b)"),
        ("put down the red block", "(put-down a)"),
        ("put down the red block on the table", "(put-down a)"),
        ("stack the red block on top of the blue block", "(stack a b)"),
        ("stack red onto blue", "(stack a b)"),
        ("( stack a b )", "(stack a b)"),
        ("3. **unstack** the blue block from on top of the orange block", "(unstack b c)"),
        ("- unstack blue from orange", "(unstack b c)"),
        ("(unstack blue orange)", "(unstack b c)"),
    ],
)
@pytest.mark.parametrize("notation", ["english", "pddl"])
def test_both_notations_are_parsed_under_either_setting(notation, wording, meaning):
    names = ("a", "b", "c")
    read = Vocabulary(names, notation).read(wording)
    assert Vocabulary(names, "pddl").action(read) == meaning


@pytest.mark.parametrize(
    "wording",
    [
        "",
        "pick",
        "pick up",
        "pick up a block",  # the article, or block a?
        "pick up the purple block",
        "pick up the red block and the blue block",
        "do not pick up the red block",
        "stack the red block",
        "stack the red block under the blue block",
        "put down the red block on top of the blue block",
        "unstack the red block onto the blue block",
        "(pick-up a",
        "(pick-up a b)",
        "pick up the red block\nput down the red block",
        "pick up the red\x00block",
        "pick up the red blo\u0441k",  # a Cyrillic letter
        "x" * 100_000,
    ],
)
def test_invalid_wording_is_not_parsed(wording):
    assert isinstance(Vocabulary(("a", "b", "c"), "english").read(wording), Unreadable)


@given(st.integers(1, 26), st.sampled_from(["english", "pddl"]), st.randoms(use_true_random=False))
def test_every_canonical_wording_is_parsed_back(blocks, notation, rng):
    names = tuple(LETTERS[:blocks])
    state = random_arrangement(blocks, rng)
    for action in legal_actions(state):
        text = Vocabulary(names, notation).action(action)
        assert Vocabulary(names, notation).read(text) == action
        if notation == "english":
            assert all(COLORS[n] in text if n < 12 else f" {names[n]} " in text for n in action[1:] if n >= 0)


@given(st.integers(1, 15), st.sampled_from(["english", "pddl"]), st.randoms(use_true_random=False))
def test_situation_carried_from_step_to_step_is_that_of_the_arrangement(blocks, notation, rng):
    vocabulary = Vocabulary(tuple(LETTERS[:blocks]), notation)
    state = random_arrangement(blocks, rng)
    clear = clear_blocks(state)
    slots = vocabulary.slots(state, clear)
    for _ in range(30):
        action = rng.choice(list(legal_actions(state)))
        state, clear, slots = (
            successor(action, state),
            clear_after(action, clear),
            vocabulary.slots_after(action, slots),
        )
        assert clear == clear_blocks(state)
        told = vocabulary.situation(slots)
        assert told == vocabulary.situation(vocabulary.slots(state, clear))
        if notation == "english":
            facts_told = told.removeprefix("Now ").removesuffix(".").replace(" and ", ", ").split(", ")
        else:
            facts_told = re.findall(r"\([^()]+\)", told.removeprefix("(:init "))
        assert facts_told == [vocabulary.fact(fact) for fact in facts(state)]


def test_names_longer_than_a_letter_are_used_unchanged():
    vocabulary = Vocabulary(("b1", "red", "a"), "english")
    slots = vocabulary.slots((1, -1, -1), clear_blocks((1, -1, -1)))
    assert "the b1 block is on top of the red block" in vocabulary.situation(slots)
    assert vocabulary.read("pick up the a block") == ("pick-up", 2, -3)


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_canonical_form_is_invariant_under_renaming_and_separates_problems(blocks, rng):
    init = random_arrangement(blocks, rng)
    final = random_arrangement(blocks, rng)
    problem = Problem(tuple(LETTERS[:blocks]), init, Goal(on=tuple((b, s) for b, s in enumerate(final) if s >= 0)))
    new = list(range(blocks))
    rng.shuffle(new)
    moved = [0] * blocks
    for block, support in enumerate(init):
        moved[new[block]] = new[support] if support >= 0 else support
    renamed = Problem(
        problem.names, tuple(moved), Goal(on=tuple(sorted((new[b], new[s]) for b, s in problem.goal.on)))
    )
    assert canonical_form(problem) == canonical_form(renamed)
    if problem.goal.on:
        fewer = problem._replace(goal=Goal(on=problem.goal.on[1:]))
        assert canonical_form(problem) != canonical_form(fewer)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_canonical_form_describes_each_component_from_its_least_start(blocks, rng):
    init, final = random_arrangement(blocks, rng), random_arrangement(blocks, rng)
    goal = Goal(on=tuple((block, support) for block, support in enumerate(final) if support >= 0))

    def rows(start):
        """Describe a component from a start: its links below and above, first of `init`, then of the goal."""
        order = [start]
        found = []
        for block in order:
            links = []
            for supports in (init, final):
                links += [supports[block], supports.index(block) if block in supports else -1]
            order += [n for i, n in enumerate(links) if n >= 0 and n not in order and n not in links[:i]]
            found.append((min(init[block], 0), 0, 0, *(order.index(n) if n >= 0 else -1 for n in links)))
        return repr(tuple(found)), frozenset(order)

    described = [rows(block) for block in range(blocks)]
    components = {members: min(text for text, of in described if of == members) for _, members in described}
    problem = Problem(tuple(LETTERS[:blocks]), init, goal)
    assert canonical_form(problem) == (False, tuple(sorted(components.values())))


def test_canonical_forms_count_problems_up_to_renaming():
    """Compare with the number of orbits under all renamings, for all pairs of arrangements of three blocks."""
    from itertools import permutations, product

    arrangements = {s for s in product((-1, 0, 1, 2), repeat=3) if is_consistent(s)}
    assert len(arrangements) == 13
    orbits = set()
    keys = set()
    for init, final in product(arrangements, repeat=2):
        goal = tuple((b, s) for b, s in enumerate(final) if s >= 0)
        keys.add(canonical_form(Problem(("a", "b", "c"), init, Goal(on=goal))))
        images = []
        for new in permutations(range(3)):
            moved = sorted((new[b], new[s] if s >= 0 else s) for b, s in enumerate(init))
            images.append((moved, sorted((new[b], new[s]) for b, s in goal)))
        orbits.add(repr(min(images)))
    assert len(keys) == len(orbits)


def is_consistent(state):
    taken = [s for s in state if s >= 0]
    if len(set(taken)) < len(taken):
        return False
    for block in range(len(state)):
        steps = 0
        while block >= 0 and steps <= len(state):
            block, steps = state[block], steps + 1
        if steps > len(state):
            return False
    return True


def test_random_arrangements_are_uniform():
    rng = random.Random(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(13_000):
        state = random_arrangement(3, rng)
        counts[state] = counts.get(state, 0) + 1
        assert is_consistent(state)
    assert len(counts) == 13
    chi_square = sum((n - 1000) ** 2 / 1000 for n in counts.values())
    assert chi_square < 32.9  # 12 degrees of freedom, p = 0.001


def test_facts_include_the_held_block():
    assert [f[0] for f in facts((-2, -1, 1))] == ["clear", "holding", "on", "ontable"]
