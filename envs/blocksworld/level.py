"""One opened task: its problem, its wording, and what has been worked out about its arrangements so far."""

from __future__ import annotations

import random
from typing import NamedTuple

from ..core import Outcome
from .notation import Unreadable, vocabulary
from .plans import Verdict
from .rules import Arrangement, Problem, legal_actions, reached, successor, unmet
from .solver import optimal_plan

_MOST_SCENES = 1000


class Position(NamedTuple):
    """State: the arrangement, and in plan mode what became of the last plan."""

    blocks: Arrangement
    verdict: Verdict | None = None


class Scene:
    """What is known of one arrangement: its text, whether it solves the task, and where actions lead."""

    __slots__ = ("legal", "moves", "solved", "text")

    def __init__(self, text: str, solved: bool) -> None:
        self.text = text
        self.solved = solved
        self.moves: dict[str, tuple[Position, Outcome]] = {}
        self.legal: tuple[str, ...] | None = None


class Level:
    """A problem in a notation. Shared by all environments on the task; everything here depends on nothing else.

    Scenes and plans are kept as they are met, up to a bound, so that repeated visits cost one look-up.
    """

    def __init__(self, problem: Problem, notation: str) -> None:
        self.problem = problem
        self.vocabulary = vocabulary(problem.names, notation)
        self.key = problem.names, problem.goal
        self.start = Position(problem.init)
        self._goal_text = self.vocabulary.goal(problem.goal)
        self._scenes: dict[Arrangement, Scene] = {}
        self._plans: dict[Arrangement, tuple[str, ...]] = {}

    def scene(self, blocks: Arrangement) -> Scene:
        """The scene of an arrangement."""
        scene = self._scenes.get(blocks)
        if scene is None:
            if len(self._scenes) >= _MOST_SCENES:
                self._scenes.clear()
            solved = reached(self.problem.goal, blocks)
            text = f"{self.vocabulary.situation(blocks)}\n{self._goal_text}"
            if solved:
                text = f"{text}\nThe goal is reached."
            scene = self._scenes[blocks] = Scene(text, solved)
        return scene

    def act(self, scene: Scene, position: Position, text: str) -> tuple[Position, Outcome]:
        """What an action does, given as text in either notation."""
        action = self.vocabulary.read(text)
        if isinstance(action, Unreadable):
            return position, Outcome(action[0].upper() + action[1:], 0.0, False, False, False, False)
        missing = unmet(action, position.blocks)
        if missing is not None:
            return position, Outcome(self.vocabulary.refusal(action, missing), 0.0, False, False, False, False)
        after = Position(successor(action, position.blocks))
        next_scene = self.scene(after.blocks)
        solved = next_scene.solved
        done = after, Outcome(next_scene.text, float(solved), solved, solved, True, True)
        if text in self.vocabulary.canonical:  # other wordings are endless and are not kept
            scene.moves[text] = done
        return done

    def legal(self, blocks: Arrangement) -> tuple[str, ...]:
        """The legal actions in the canonical wording."""
        scene = self.scene(blocks)
        if scene.legal is None:
            scene.legal = tuple([self.vocabulary.action(action) for action in legal_actions(blocks)])
        return scene.legal

    def plan(self, blocks: Arrangement) -> tuple[str, ...]:
        """A shortest plan; an arrangement on a plan found before gets the rest of that plan."""
        plan = self._plans.get(blocks)
        if plan is None:
            actions = optimal_plan(blocks, self.problem.goal)
            assert actions is not None, "readers and generators make no contradictory goal"
            if len(self._plans) >= _MOST_SCENES:
                self._plans.clear()
            plan = tuple(self.vocabulary.action(action) for action in actions)
            for place, action in enumerate(actions):
                self._plans.setdefault(blocks, plan[place:])
                blocks = successor(action, blocks)
        return plan

    def stroll(self, blocks: Arrangement, rng: random.Random, most: int) -> list[str]:
        """Uniformly random legal actions, until the goal is reached or `most` are taken."""
        actions: list[str] = []
        position = Position(blocks)
        while len(actions) < most and not self.scene(position.blocks).solved:
            actions.append(rng.choice(self.legal(position.blocks)))
            position, _ = self.act(self.scene(position.blocks), position, actions[-1])
        return actions
