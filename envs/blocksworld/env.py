"""The blocksworld as a text environment."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..tasks import SPLITS, GeneratedTasks
from .generation import FAMILIES, MOST_BLOCKS, generate
from .instances import PLANBENCH, Instances, load_instances
from .level import Level, Position
from .notation import NOTATIONS
from .plans import judge
from .rules import Problem

MODES = ("step", "plan")
_LONGEST_PLAN = 32_768


class Blocksworld(TextEnv[Position]):
    """## Description
    A hand moves one block at a time, between piles on a table. The task is to make the goal's statements true:
    "the red block is on top of the blue block". The four operators are those of PDDL's `blocksworld-4ops`.

    ## Actions
    | `notation="english"` | `notation="pddl"` | needs |
    |---|---|---|
    | pick up the red block | (pick-up a) | empty hand; a clear and on the table |
    | put down the red block | (put-down a) | a in the hand |
    | stack the red block on top of the blue block | (stack a b) | a in the hand; b clear |
    | unstack the red block from on top of the blue block | (unstack a b) | empty hand; a on b; a clear |

    Both notations are understood in either mode; case, blanks and articles do not matter. The first twelve letters
    are red, blue, orange, yellow, white, magenta, black, cyan, green, violet, silver and gold in English; later
    letters, and blocks with longer names, name themselves. An action whose needs are not met is refused with the
    first of them that fails.

    With `mode="plan"` one action is a whole plan, one line an action, optionally between [PLAN] and [PLAN END].
    It is applied as a whole or, if a line cannot be read or done, not at all; then the observation says which line
    failed and why. `info` has `lenient_success`, the verdict by PlanBench's reading (which skips lines
    that it cannot read), and `failed_line` (counted from 1; 0 where no line failed).

    ## Observation
    All that holds now, and the goal, in the notation.

    ## Rewards
    1.0 when the goal is reached, otherwise 0.0 (PlanBench scores plans right or wrong). Sparse is the same.

    ## Episode end
    Terminates at the goal. Step mode truncates after `max_steps` actions. Plan mode terminates with the plan
    numbered `max_steps`, right or wrong.

    ## Arguments
    * `split`: "train", "valid" or "test" of generated tasks; None for generated tasks of all three, with or
      without data. "planbench" for all instances in the data folder; "planbench/<folder>" for those below a
      folder, such as "planbench/blocksworld/generated_basic" (PlanBench's `blocksworld`; 4 and 5 blocks),
      "planbench/blocksworld/generated_basic_3" (3 blocks) and "planbench/blocksworld_hard" (6 to 15 blocks).
    * `family="mixed"`: from one random arrangement to another, of which the goal names who is on whom, as
      PlanBench draws its tasks; "stack": the same from all blocks on the table; "unstack": from a random
      arrangement to all blocks on the table. Arrangements are uniformly random.
    * `blocks=5`: how many, 3 to 26. The grades by optimal plan length (mean and range over 1,000 test tasks):

      | blocks | mixed | stack | unstack |
      |---|---|---|---|
      | 3 | 4.6 (2–6) | 2.8 (2–4) | 3.0 (2–4) |
      | 4 | 7.4 (2–12) | 4.7 (2–6) | 4.0 (2–6) |
      | 5 | 10.1 (2–16) | 5.7 (2–8) | 5.7 (2–8) |
      | 6 | 12.4 (2–20) | 7.5 (2–10) | 7.4 (2–10) |
      | 8 | 18.1 (8–28) | 10.6 (4–14) | 10.7 (4–14) |
      | 10 | 23.8 (8–36) | 13.9 (6–18) | 14.0 (6–18) |
      | 15 | 37.5 (22–52) | 22.6 (14–28) | 22.6 (14–28) |

    * `notation="english"`: or "pddl".
    * `mode="step"`: or "plan".
    * `max_steps="auto"`: in step mode 8 (n - 1) for n blocks, twice the longest optimal plan that n blocks can
      need (each block but one moved twice); in plan mode 1. A greater number in plan mode allows as many
      plans, each from the initial situation, with what was wrong as feedback (PlanBench's back-prompting: 15).
    * `data`: PlanBench's folder, instead of `blocksworld/` below `ARBORETUM_DATA`: `.pddl` files at any depth, or
      tar archives of them.

    Splits share no task: mixed tasks are told apart up to renaming of the blocks, stack and unstack tasks (which,
    up to renaming, are a few lists of tower heights) with the blocks' names. Small sizes have few tasks: the mixed
    test split has 7 of three blocks, 50 of four, some 400 of five and thousands from six on.

    ## Source
    PlanBench (Valmeekam et al., NeurIPS 2023 Datasets and Benchmarks, arXiv:2206.10498). Plans by the
    `expert` are optimal; see `solver.py`.
    """

    def __init__(
        self,
        split: str | None = None,
        family: str = "mixed",
        blocks: int = 5,
        notation: str = "english",
        mode: str = "step",
        data: str | Path | None = None,
        max_steps: int | Literal["auto"] | None = "auto",
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        for kind, value, choices in (
            ("family", family, FAMILIES),
            ("notation", notation, NOTATIONS),
            ("mode", mode, MODES),
        ):
            if value not in choices:
                raise unknown_name(kind, value, choices)
        if isinstance(blocks, bool) or not isinstance(blocks, int) or not 3 <= blocks <= MOST_BLOCKS:
            raise ConfigurationError(f"blocks must be an integer from 3 to {MOST_BLOCKS}, not {blocks!r}.")
        recorded = split is not None and (split == PLANBENCH or split.startswith(f"{PLANBENCH}/"))
        if split is not None and not recorded and split not in SPLITS:
            raise unknown_name("split", split, (*SPLITS, PLANBENCH))
        self._adaptive = max_steps == "auto" and mode == "step"
        source: dict[str, object] = {"planbench": True} if recorded else {"family": family, "blocks": blocks}
        super().__init__(
            config={"notation": notation, "mode": mode, **source},
            max_steps=None if self._adaptive else 1 if max_steps == "auto" else max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            max_observation=65_536 if recorded else 8192,
            max_action=_LONGEST_PLAN if mode == "plan" else 4096,
        )
        self.family, self.blocks, self.notation, self.mode = family, blocks, notation, mode
        self._instances: Instances | None = None
        if recorded:
            assert split is not None
            self._instances = load_instances(data)
            self.tasks = self._instances.split(split)
        else:
            self.tasks = GeneratedTasks(split)

    @property
    def problem(self) -> Problem:
        """The open task as data: names, initial arrangement, goal."""
        self.task  # noqa: B018  (raises before the first reset)
        return self._level.problem

    @property
    def instructions(self) -> str:
        if self.notation == "pddl":
            rules = (
                "Blocks stand on a table or on each other, and a hand moves one at a time. The actions are"
                " (pick-up x): needs (handempty), (ontable x) and (clear x);"
                " (put-down x): needs (holding x);"
                " (stack x y): puts x on y, needs (holding x) and (clear y);"
                " (unstack x y): takes x off y, needs (handempty), (on x y) and (clear x)."
                " A block is clear when nothing is on it and it is not held."
            )
        else:
            rules = (
                "Blocks stand on a table or on each other, and your hand moves one at a time. You can pick up a"
                " block that is clear and on the table; unstack a clear block from on top of another; put down the"
                " block that you hold on the table; and stack the block that you hold on top of a clear block. You"
                " need an empty hand to pick up or unstack. A block is clear when nothing is on it and you do not"
                " hold it."
                " Write actions like these: pick up the red block; put down the red block; stack the red block on"
                " top of the blue block; unstack the red block from on top of the blue block."
            )
        if self.mode == "plan":
            ask = (
                " Bring about the goal: reply with the whole plan, one action a line, between a line [PLAN] and a"
                " line [PLAN END]. One line that is not an action, or cannot be done, fails the plan."
            )
        else:
            ask = " Bring about the goal with one action at a time."
        return rules + ask

    def _open(self, task: str) -> Position:
        if self._instances is not None:
            level = _recorded_level(self._instances, task, self.notation)
        else:
            level = _generated_level(self.family, self.blocks, task, self.notation)
        self._level = level
        if self._adaptive:
            self.max_steps = _step_limit(level.problem)
        return level.start

    def _observe(self) -> str:
        blocks, verdict = self._state
        return self._level.scene(blocks).text if verdict is None else self._reported(verdict.report)

    def _reported(self, report: str) -> str:
        return f"{report}\n{self._level.scene(self._state.blocks).text}"

    def _apply(self, action: str) -> Outcome:
        if self.mode == "plan":
            return self._apply_plan(action)
        position = self._state
        scene = self._level.scene(position.blocks)
        found = scene.moves.get(action)
        if found is None:
            found = self._level.act(scene, position, action)
        self._state, outcome = found
        return outcome

    def _apply_plan(self, reply: str) -> Outcome:
        level = self._level
        start = self._state.blocks
        verdict = judge(reply, start, level.problem.goal, level.vocabulary, _LONGEST_PLAN)
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        ends = verdict.success or last
        self._state = Position(verdict.arrangement if ends else start, verdict)
        changed = self._state.blocks != start
        observation = self._reported(verdict.report)
        return Outcome(observation, float(verdict.success), ends, verdict.success, verdict.legal, changed)

    def _details(self) -> Mapping[str, Any] | None:
        if self.mode == "step":
            return None
        verdict = self._state.verdict
        if verdict is None:
            return {"lenient_success": False, "failed_line": 0}
        return {"lenient_success": verdict.lenient_success, "failed_line": verdict.failed_line}

    def state_key(self) -> Hashable:
        return self._level.key, self._state.blocks, self._terminated  # a failed last plan ends the episode too

    def admissible_actions(self) -> tuple[str, ...] | None:
        if self._ended:
            return ()
        return self._level.legal(self._state.blocks) if self.mode == "step" else None

    def random_action(self, rng: random.Random) -> str:
        """In plan mode: random legal actions up to the goal or step mode's limit, so that chance is the same."""
        if self.mode == "step" or self._ended:
            return super().random_action(rng)
        blocks = self._state.blocks
        return "\n".join(self._level.stroll(blocks, rng, _step_limit(self._level.problem)))

    def expert_actions(self) -> list[str] | None:
        if self._ended:
            return None
        plan = list(self._level.plan(self._state.blocks))
        return plan if self.mode == "step" else ["\n".join(plan)]


def _step_limit(problem: Problem) -> int:
    return max(1, 8 * (len(problem.names) - 1))


@lru_cache(maxsize=256)
def _generated_level(family: str, blocks: int, task: str, notation: str) -> Level:
    return Level(generate(family, blocks, task), notation)


@lru_cache(maxsize=256)
def _recorded_level(instances: Instances, task: str, notation: str) -> Level:
    if task not in instances:
        raise unknown_name("task", task, list(instances.files)[:1000])
    return Level(instances.problem(task), notation)
