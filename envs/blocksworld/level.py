"""Level of a task: its problem and notation, with caches of transitions and plans."""

from __future__ import annotations

import random
from typing import NamedTuple

from ..core import Outcome, OutcomeFields
from .notation import Unreadable, vocabulary
from .plans import Verdict
from .rules import (
    Action,
    Arrangement,
    Problem,
    clear_after,
    clear_blocks,
    is_arrangement,
    reached,
    successor,
    unmet,
)
from .solver import optimal_plan

_MAX_SCENES = 1000

# The constructor of a NamedTuple is a Python function; `tuple.__new__` takes half of its time.
_new = tuple.__new__


class Position(NamedTuple):
    """State of an episode.

    Attributes:
        blocks: Arrangement of the blocks.
        verdict: In plan mode, the result of the last plan; None before the first and in step mode.
    """

    blocks: Arrangement
    verdict: Verdict | None = None


class Scene:
    """Observation, solved flag and cached transitions of one arrangement.

    Attributes:
        clear: Blocks that are clear.
        slots: Atoms that hold; see `Vocabulary.slots`.
        text: Observation.
        solved: True if the arrangement satisfies the goal.
        moves: Cached result (next position and outcome) of each action taken so far in canonical wording.
        legal: Legal actions in canonical wording; None until they are needed.
    """

    __slots__ = ("clear", "legal", "moves", "slots", "solved", "text")

    def __init__(self, clear: list[int], slots: list[str], text: str, solved: bool) -> None:
        self.clear = clear
        self.slots = slots
        self.text = text
        self.solved = solved
        self.moves: dict[str, tuple[Position, OutcomeFields]] = {}
        self.legal: tuple[str, ...] | None = None


class Level:
    """Problem in a notation, shared by all environments that open the task.

    Scenes and plans are cached up to a bound, so that repeated visits cost one dictionary access.

    Args:
        problem: Problem of the task.
        notation: "english" or "pddl".
    """

    def __init__(self, problem: Problem, notation: str) -> None:
        self.problem = problem
        self.vocabulary = vocabulary(problem.names, notation)
        self.key = problem.names, problem.goal
        self.start = Position(problem.init)
        self._goal_text = self.vocabulary.goal(problem.goal)
        self._scenes: dict[Arrangement, Scene] = {}
        self._latest: tuple[Arrangement | None, Scene | None] = None, None
        self._plans: dict[Arrangement, tuple[str, ...]] = {}

    def scene(self, blocks: Arrangement) -> Scene:
        """Return the scene of an arrangement."""
        latest, scene = self._latest
        if blocks is latest and scene is not None:  # A step asks several times.
            return scene
        scene = self._scenes.get(blocks)
        if scene is None:
            clear = clear_blocks(blocks)
            scene = self._add_scene(blocks, clear, self.vocabulary.slots(blocks, clear))
        self._latest = blocks, scene
        return scene

    def _scene_after(self, action: Action, scene: Scene, after: Arrangement) -> Scene:
        """Return the scene of an arrangement that an action led to, made from the scene before it if it is new."""
        found = self._scenes.get(after)
        if found is None:
            clear = clear_after(action, scene.clear)
            found = self._add_scene(after, clear, self.vocabulary.slots_after(action, scene.slots))
        self._latest = after, found
        return found

    def _add_scene(self, blocks: Arrangement, clear: list[int], slots: list[str]) -> Scene:
        if len(self._scenes) >= _MAX_SCENES:
            self._scenes.clear()
        solved = reached(self.problem.goal, blocks)
        text = f"{self.vocabulary.situation(slots)}\n{self._goal_text}"
        if solved:
            text = f"{text}\nThe goal is reached."
        scene = self._scenes[blocks] = Scene(clear, slots, text, solved)
        return scene

    def has(self, blocks: object) -> bool:
        """Return True if a value is an arrangement of this problem's blocks."""
        if type(blocks) is not tuple or set(map(type, blocks)) != {int}:
            return False
        return blocks in self._scenes or is_arrangement(blocks, len(self.problem.names))

    def act(self, scene: Scene, position: Position, text: str) -> tuple[Position, OutcomeFields]:
        """Return the next position and the outcome of an action, given as text in either notation."""
        action = self.vocabulary.read(text)
        if isinstance(action, Unreadable):
            return position, _refuse(action[0].upper() + action[1:], scene)
        if text not in (scene.legal or self.legal(position.blocks)):
            missing = unmet(action, position.blocks)
            if missing is not None:
                return position, _refuse(self.vocabulary.refusal(action, missing), scene)
        blocks = successor(action, position.blocks)
        next_scene = self._scene_after(action, scene, blocks)
        solved = next_scene.solved
        result = _new(Position, (blocks, None)), (next_scene.text, float(solved), solved, solved, True, True)
        if text in self.vocabulary.canonical:  # the number of other wordings is unbounded
            scene.moves[text] = result
        return result

    def legal(self, blocks: Arrangement) -> tuple[str, ...]:
        """Return the legal actions of an arrangement in canonical wording."""
        scene = self.scene(blocks)
        if scene.legal is None:
            scene.legal = self.vocabulary.legal_actions(blocks, scene.clear)
        return scene.legal

    def plan(self, blocks: Arrangement) -> tuple[str, ...]:
        """Return a shortest plan from an arrangement: the rest of a cached plan if the arrangement is on one."""
        plan = self._plans.get(blocks)
        if plan is None:
            actions = optimal_plan(blocks, self.problem.goal)
            assert actions is not None, "unreachable: the reader and the generator reject contradictory goals"
            if len(self._plans) >= _MAX_SCENES:
                self._plans.clear()
            plan = tuple(self.vocabulary.action(action) for action in actions)
            for place, action in enumerate(actions):
                self._plans.setdefault(blocks, plan[place:])
                blocks = successor(action, blocks)
        return plan

    def random_walk(self, blocks: Arrangement, rng: random.Random, max_actions: int) -> list[str]:
        """Return uniformly random legal actions up to the goal, `max_actions` at most."""
        actions: list[str] = []
        position = Position(blocks)
        while len(actions) < max_actions and not self.scene(position.blocks).solved:
            actions.append(rng.choice(self.legal(position.blocks)))
            position, _ = self.act(self.scene(position.blocks), position, actions[-1])
        return actions


def _refuse(reason: str, scene: Scene) -> Outcome:
    """Return the outcome of a refused action, which shows the unchanged situation again."""
    return Outcome(f"{reason}\n{scene.text}", 0.0, False, False, False, False)
