"""Blocksworld as a text environment."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ..core import Outcome, OutcomeFields, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..pictures.canvas import Picture
from ..rendering import PICTURED
from ..snapshots import Snapshot
from ..tasks import SPLITS, GeneratedTasks
from ..tools import Tool
from .generation import FAMILIES, MAX_BLOCKS, generate
from .instances import PLANBENCH, Instances, load_instances
from .level import Level, Position
from .notation import NOTATIONS
from .picture import blocks_picture
from .plans import Verdict, is_consistent, score_plan
from .rules import Problem
from .tools import move_tools, plan_tool

MODES = ("step", "plan")
_MAX_PLAN_LENGTH = 32_768


class Blocksworld(TextEnv[Position]):
    """## Description
    A hand moves one block at a time between towers on a table. The task is to reach a goal such as "the red block
    is on top of the blue block". The four operators are those of the PDDL domain `blocksworld-4ops`.

    ## Actions
    | `notation="english"` | `notation="pddl"` | preconditions |
    |---|---|---|
    | pick up the red block | (pick-up a) | empty hand; a is clear and on the table |
    | put down the red block | (put-down a) | a is in the hand |
    | stack the red block on top of the blue block | (stack a b) | a is in the hand; b is clear |
    | unstack the red block from on top of the blue block | (unstack a b) | empty hand; a is clear and on b |

    Both notations are accepted under either setting; case, white space and articles do not matter. In English the
    blocks a to l are called red, blue, orange, yellow, white, magenta, black, cyan, green, violet, silver and
    gold; later letters and longer names are used unchanged. The refusal of an illegal action names the first
    precondition that does not hold, and shows the situation again.

    With `mode="plan"` an action is a complete plan with one line per action, optionally between the lines [PLAN]
    and [PLAN END]. A plan is applied as a whole. If a line cannot be parsed or executed, no line is applied, and
    the observation names the line and the reason. `info` then also contains `lenient_success`, the result of
    PlanBench's lenient parser (which skips lines that it cannot parse, such as those that leave out the word
    "block"), and `failed_line` (counted from 1; 0 if no line failed).

    ## Observations
    The observation lists all facts that hold, and the goal, in the chosen notation. The first observation of
    `reset(seed=0)` with `blocks=3` and `notation="pddl"` is

    ```
    (:init (clear a) (clear b) (handempty) (on a c) (ontable b) (ontable c))
    (:goal (and (on c b)))
    ```

    ## Rewards
    The reward is 1.0 when the goal is reached and 0.0 otherwise, like PlanBench's scores. `reward_mode="sparse"`
    gives the same rewards.

    ## Episode end
    The episode terminates at the goal (success). In step mode it truncates after `max_steps` actions; in plan mode
    it terminates after `max_steps` plans.

    ## Splits
    | split | tasks | content |
    |---|---|---|
    | "train" | 2³¹ | generated: 60 % of all tasks |
    | "valid" | 2³¹ | generated: 20 % |
    | "test" | 2³¹ | generated: 20 % |
    | "planbench" | files | PlanBench's instances; "planbench/<folder>" for those below a folder |

    The generated splits share no task. Mixed tasks count as the same if they differ only by a renaming of the
    blocks; for stack and unstack tasks, which up to renaming are only a few lists of tower heights, the names
    count. Tasks can repeat within a split, and small numbers of blocks give few: the mixed test split has 7
    tasks of three blocks, 50 of four, about 400 of five, and thousands of six or more.

    ## Arguments
    * `split`: "train", "valid" or "test" for generated tasks; None for generated tasks of all three. "planbench"
      for all instances in the data folder; "planbench/<folder>" for the instances below a folder, such as
      "planbench/blocksworld/generated_basic" (PlanBench's `blocksworld`; 4 and 5 blocks),
      "planbench/blocksworld/generated_basic_3" (3 blocks) and "planbench/blocksworld_hard" (6 to 15 blocks).
    * `family="mixed"`: kind of generated tasks. "mixed" starts at a random arrangement; the goal is every "on"
      fact of another one, as in PlanBench's generator. "stack" is the same with all blocks initially on the table.
      "unstack" starts at a random arrangement; the goal is to have all blocks on the table. Arrangements are
      uniformly random.
    * `blocks=5`: number of blocks, 3 to 26. Optimal plan lengths (mean and range over 1,000 test tasks):

      | blocks | mixed | stack | unstack |
      |---|---|---|---|
      | 3 | 4.6 (2–6) | 2.8 (2–4) | 3.0 (2–4) |
      | 4 | 7.4 (2–12) | 4.7 (2–6) | 4.0 (2–6) |
      | 5 | 10.1 (2–16) | 5.7 (2–8) | 5.7 (2–8) |
      | 6 | 12.4 (2–20) | 7.5 (2–10) | 7.4 (2–10) |
      | 8 | 18.1 (8–28) | 10.6 (4–14) | 10.7 (4–14) |
      | 10 | 23.8 (8–36) | 13.9 (6–18) | 14.0 (6–18) |
      | 15 | 37.5 (22–52) | 22.6 (14–28) | 22.6 (14–28) |

    * `notation="english"`: "english" or "pddl", the language of observations and refusals.
    * `mode="step"`: "step" (one action per step) or "plan" (one plan per step).
    * `max_steps="auto"`: step limit. In step mode "auto" is 8 (n - 1) for n blocks, twice the length of the
      longest optimal plan that n blocks can need (all blocks but one move twice). In plan mode "auto" is 1; a
      larger number allows as many plans, each applied to the initial arrangement, with the reason of the last
      failure as feedback (PlanBench's back-prompting uses 15).
    * `data`: folder of PlanBench's instances, `.pddl` files at any depth or tar archives of them; by default
      `blocksworld/` in the folder that `ARBORETUM_DATA` names.

    `render_mode="rgb_array"` gives pictures of the hand, the towers and, below them, the towers of the goal; five
    blocks take 516 pixels across.

    ## Source
    PlanBench (Valmeekam et al., NeurIPS 2023 Datasets and Benchmarks, arXiv:2206.10498). The plans of
    `expert_actions` are optimal; see `solver.py`.

    ## Version history
    * `v0`: initial version, of release 0.1.0. Since then the refusal of an illegal action also shows the
      situation.
    """

    metadata = PICTURED

    optimum_is_exact = True

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
        if isinstance(blocks, bool) or not isinstance(blocks, int) or not 3 <= blocks <= MAX_BLOCKS:
            raise ConfigurationError(f"blocks must be an integer from 3 to {MAX_BLOCKS}, not {blocks!r}.")
        uses_planbench = split is not None and (split == PLANBENCH or str(split).startswith(f"{PLANBENCH}/"))
        if split is not None and not uses_planbench and split not in SPLITS:
            raise unknown_name("split", split, (*SPLITS, PLANBENCH))
        if data is not None and not uses_planbench:
            raise ConfigurationError(f"data= belongs to split='{PLANBENCH}'; set that split, or omit data=.")
        self._limit_by_task = max_steps == "auto" and mode == "step" and uses_planbench
        if max_steps == "auto":
            max_steps = 1 if mode == "plan" else None if uses_planbench else _step_limit(blocks)
        source: dict[str, object] = {"planbench": True} if uses_planbench else {"family": family, "blocks": blocks}
        super().__init__(
            config={"notation": notation, "mode": mode, **source},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            max_observation=65_536 if uses_planbench else 8192,
            max_action=_MAX_PLAN_LENGTH if mode == "plan" else 4096,
        )
        self.family, self.blocks, self.notation, self.mode = family, blocks, notation, mode
        self._has_extra_info = admissible or mode == "plan"
        self._instances: Instances | None = None
        if uses_planbench:
            assert split is not None
            self._instances = load_instances(data)
            self.tasks = self._instances.split(split)
        else:
            self.tasks = GeneratedTasks(split)

    @property
    def reads_files(self) -> bool:
        return self._instances is not None

    @property
    def problem(self) -> Problem:
        """Problem of the open task: names, initial arrangement and goal."""
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

    @property
    def tools(self) -> tuple[Tool, ...]:
        if self.mode == "plan":
            return (plan_tool(),)
        if self._task is None:
            return move_tools(self.notation, ())
        vocabulary = self._level.vocabulary
        return move_tools(self.notation, vocabulary.names if self.notation == "pddl" else vocabulary.words)

    def _open(self, task: str) -> Position:
        if self._instances is not None:
            level = _planbench_level(self._instances, task, self.notation)
        else:
            level = _generated_level(self.family, self.blocks, task, self.notation)
        self._level = level
        if self._limit_by_task:
            self.max_steps = _step_limit(len(level.problem.names))
        return level.start

    def _observe(self) -> str:
        blocks, verdict = self._state
        return self._level.scene(blocks).text if verdict is None else self._with_report(verdict.report)

    def picture(self) -> Picture:
        """Return a picture of the hand, the towers and the goal, [height, width, 3]."""
        return blocks_picture(self._level.vocabulary.words, self._state.blocks, self._level.problem.goal)

    def _with_report(self, report: str) -> str:
        return f"{report}\n{self._level.scene(self._state.blocks).text}"

    def _apply(self, action: str) -> OutcomeFields:
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
        verdict = score_plan(reply, start, level.problem.goal, level.vocabulary, _MAX_PLAN_LENGTH)
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        ends = verdict.success or last
        self._state = Position(verdict.arrangement if ends else start, verdict)
        observation = self._with_report(verdict.report)
        return Outcome(observation, float(verdict.success), ends, verdict.success, verdict.legal, ends)

    def _details(self) -> Mapping[str, Any] | None:
        if self.mode == "step":
            return None
        verdict = self._state.verdict
        if verdict is None:
            return {"lenient_success": False, "failed_line": 0}
        return {"lenient_success": verdict.lenient_success, "failed_line": verdict.failed_line}

    def _level_content(self) -> object:
        return self._level.problem

    def _is_possible(self, snapshot: Snapshot) -> bool:
        level, position = self._level, snapshot.state
        if type(position) is not Position or not level.has(position.blocks):
            return False
        blocks, verdict = position
        if self.mode == "plan":
            if verdict is None:
                return not snapshot.steps
            if not (type(verdict) is Verdict and is_consistent(verdict) and level.has(verdict.arrangement)):
                return False
            ends = verdict.success or snapshot.steps == snapshot.max_steps
            shown = verdict.arrangement if ends else level.start.blocks
            return snapshot.terminated == ends and snapshot.success == verdict.success and blocks == shown
        return verdict is None and snapshot.success == snapshot.terminated == level.scene(blocks).solved

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True for all legal actions."""
        return bool(info["valid"])

    def state_key(self) -> Hashable:
        # A failed last plan terminates the episode without reaching the goal, so the flag is part of the key.
        return self._level.key, self._state.blocks, self._terminated

    def admissible_actions(self) -> tuple[str, ...] | None:
        if self._ended:
            return ()
        return self._level.legal(self._state.blocks) if self.mode == "step" else None

    def random_action(self, rng: random.Random) -> str:
        """Return a random legal action; in plan mode a random plan with the success rate of random steps.

        A random plan consists of random legal actions up to the goal or up to the step limit of step mode.
        """
        if self.mode == "step" or self._ended:
            return super().random_action(rng)
        blocks = self._state.blocks
        return "\n".join(self._level.random_walk(blocks, rng, _step_limit(len(self._level.problem.names))))

    def expert_actions(self) -> list[str] | None:
        return None if self._ended else self._within_limit(self._find_plan())

    def _find_plan(self) -> list[str] | None:
        plan = list(self._level.plan(self._state.blocks))
        return plan if self.mode == "step" else ["\n".join(plan)]


def _step_limit(blocks: int) -> int:
    return max(1, 8 * (blocks - 1))


def _generated_level(*key: Any) -> Level:
    """Return the level of (family, blocks, task, notation).

    A level with its scenes can take 200 kB, too much to keep many that are never opened again: random play in new
    tasks would spend a quarter of its time waiting for memory.
    """
    return _reopened_level(*key) if next(_openings(*key)) else _new_level(*key)


@lru_cache(maxsize=4096)
def _openings(*key: Any) -> Iterator[int]:
    return count()


@lru_cache(maxsize=4)
def _new_level(family: str, blocks: int, task: str, notation: str) -> Level:
    return Level(generate(family, blocks, task), notation)


@lru_cache(maxsize=64)
def _reopened_level(*key: Any) -> Level:
    return _new_level(*key)


@lru_cache(maxsize=256)
def _planbench_level(instances: Instances, task: str, notation: str) -> Level:
    if task not in instances:
        raise unknown_name("task", task, list(instances.files)[:1000])
    return Level(instances.problem(task), notation)
