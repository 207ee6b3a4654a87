"""FrozenLake as a text environment."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..optimum import Optimum
from ..pictures.canvas import Picture
from ..rendering import PICTURED
from ..snapshots import Snapshot
from ..tasks import GeneratedTasks
from .lake import ACTIONS, Lake, Map, generated_lake, lake_of_map
from .picture import lake_picture
from .render import explain, render
from .settings import resolve_settings
from .values import optimal_policy

_MAP_TASK = "map"


class FrozenLake(TextEnv[int]):
    """## Description
    Cross a frozen lake from the start to the goal without falling into a hole. The ice is slippery: a step goes in
    the chosen direction with probability `success_rate`, and in each of the two perpendicular directions with half
    of the remaining probability. A step off the board leaves the agent in its cell. These are the dynamics of
    Gymnasium's `FrozenLake-v1`.

    ## Actions
    The actions are Left, Down, Right and Up, in upper or lower case. All four are always valid.

    ## Observations
    `observation_format="grid"` shows the board, one line per row. Its symbols are `P` the agent, `_` ice (the
    start included), `O` a hole, `G` the goal, `X` the agent in a hole and `√` the agent on the goal. "coord" shows
    the coordinates (row, column), counted from 0, of start, goal, agent and holes. "grid_coord" shows both. The
    first observation of `reset(seed=0)` is

    ```
    Board: 4 rows, 4 columns; positions are (row, column), counted from 0
    Start: (0, 0)
    Goal: (2, 1)
    Player: (0, 0)
    Holes: (3, 1), (3, 3)
    P___
    ____
    _G__
    _O_O
    ```

    ## Rewards
    The reward is 1.0 on the goal and 0.0 elsewhere. `reward_mode="sparse"` gives the same rewards.

    ## Episode end
    The episode terminates on the goal (success) or in a hole, and truncates after `max_steps` steps.

    ## Splits
    | split | tasks | content |
    |---|---|---|
    | "train" | 2³¹ | 60 % of all maps |
    | "valid" | 2³¹ | 20 % |
    | "test" | 2³¹ | 20 % |

    A map, with its start and goal, belongs to one split. Maps are generated on demand and can repeat within a
    split. A task is named `train/0`, `train/1`, …; equal names and arguments give the same map on every
    machine.

    ## Arguments
    * `preset="ragen"`: settings of a published experiment. The arguments below override single settings.

      | preset | size | p_frozen | success_rate | start and goal | observation |
      |---|---|---|---|---|---|
      | ragen (RAGEN's current code) | 4 | 0.9 | 0.8 | random, distinct | grid_coord |
      | ragen-v1 (code of RAGEN's first paper) | 4 | 0.8 | 1/3 | random, distinct | grid |
      | gymnasium | Gymnasium's 4x4 map | | 1/3 | corners | grid |

    * `size`: number of rows and of columns, 2 to 32.
    * `p_frozen`: probability that a cell other than start and goal is ice. Maps without a path from start to goal
      are drawn again.
    * `start_goal`: "corners" (start at the top left, goal at the bottom right) or "random" (two distinct
      cells).
    * `success_rate`: probability that a step goes in the chosen direction. With 1.0 the ice is not slippery.
    * `map`: rows of S, F, H and G, as in Gymnasium's `desc`. The only task is then "map", and there are no splits.
    * `observation_format`: "grid", "grid_coord" or "coord".
    * `split`: "train", "valid" or "test", which share no map. None uses the maps of all three.
    * `max_steps=100`: step limit; 100 as in Gymnasium. RAGEN uses 10.
    * `count_refused=True`: refused actions count as steps. With False only moves do, as in RAGEN, where a reply
      without one uses up a turn; the dialogue must then limit the turns.

    `render_mode="rgb_array"` gives pictures of 48 x 48 pixels a cell.

    ## Attainable success rates
    Success rates of the optimal and of the uniformly random policy. Each is exact for a map (`optimal_success`,
    `random_success`); the table has mean and standard error over 4,096 test maps.

    | preset | optimal, 10 steps | optimal, 100 steps | random, 10 steps | random, 100 steps |
    |---|---|---|---|---|
    | ragen | 0.956 ± 0.001 | 0.993 ± 0.001 | 0.249 ± 0.003 | 0.528 ± 0.005 |
    | ragen-v1 | 0.499 ± 0.004 | 0.920 ± 0.003 | 0.216 ± 0.003 | 0.336 ± 0.004 |
    | gymnasium (one map) | 0.041 | 0.744 | 0.005 | 0.014 |

    ## Source
    The dynamics are those of Gymnasium's `FrozenLake-v1` (Towers et al., arXiv:2407.17032); settings and symbols
    are those of RAGEN (Wang et al., 2025, arXiv:2504.20073).

    ## Version history
    * `v0`: initial version, of release 0.1.0.
    """

    metadata = PICTURED

    palette: ClassVar[Mapping[str, str]] = {
        "P": "bold cyan",
        "_": "dim",
        "O": "bold red",
        "G": "yellow",
        "X": "bold red",
        "√": "bold green",
    }

    _constant_actions = ACTIONS
    optimum_is_exact = True

    def __init__(
        self,
        split: str | None = None,
        preset: str = "ragen",
        size: int | None = None,
        p_frozen: float | None = None,
        success_rate: float | None = None,
        start_goal: str | None = None,
        map: Sequence[str] | None = None,
        observation_format: str | None = None,
        max_steps: int | None = 100,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
        count_refused: bool = True,
    ) -> None:
        settings = resolve_settings(
            preset,
            size=size,
            p_frozen=p_frozen,
            success_rate=success_rate,
            start_goal=start_goal,
            map=map,
            observation_format=observation_format,
        )
        self.size, self.p_frozen, self.success_rate, self.start_goal, self.observation_format, desc = settings
        if desc is not None and split is not None:
            raise ConfigurationError(f"a single map has no splits; omit split={split!r}.")
        source: dict[str, object] = (
            {"map": desc}
            if desc is not None
            else {"size": self.size, "p_frozen": self.p_frozen, "start_goal": self.start_goal}
        )
        super().__init__(
            config={"success_rate": self.success_rate, "format": self.observation_format, **source},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            max_observation=max(16_384, 16 * len("".join(desc or ()))),  # a symbol and a position per cell
            count_refused=count_refused,
        )
        self._map = desc
        self.tasks = GeneratedTasks(split) if desc is None else (_MAP_TASK,)
        self._slip_left = (1.0 - self.success_rate) / 2.0
        self._slip_right = 1.0 - self._slip_left

    @property
    def map(self) -> Map:
        """Map of the open task, as rows of S, F, H and G."""
        self.task  # noqa: B018  (raises before the first reset)
        return self._lake.desc

    # ------------------------------------------------------------------ transitions

    def _open(self, task: str) -> int:
        if self._map is not None:
            if task != _MAP_TASK:
                raise unknown_name("task", task, (_MAP_TASK,))
            lake = lake_of_map(self._map)
        else:
            lake = generated_lake(self.size, self.p_frozen, self.start_goal, task)
        self._lake = lake
        self._moves = lake.moves
        self._outcome_table = _outcome_table(lake, self.observation_format)
        return lake.start

    def _observe(self) -> str:
        cell = self._state
        return (self._outcome_table[cell] or self._make_outcomes(cell))[1].observation

    def picture(self) -> Picture:
        """Return a picture of the lake, [48 x rows, 48 x columns, 3]."""
        return lake_picture(self._lake, self._state)

    def _apply(self, action: str) -> Outcome:
        direction = _DIRECTIONS.get(action)
        if direction is None:
            direction = _direction(action)
            if direction is None:
                refusal = f"There is no such action. Choose {', '.join(ACTIONS[:3])} or {ACTIONS[3]}."
                return Outcome(refusal, 0.0, False, False, False, False)
        if self.success_rate != 1.0:
            draw = self._random()
            if draw < self._slip_left:
                direction -= 1
            elif draw >= self._slip_right:
                direction = (direction + 1) & 3
        cell = self._state
        self._state = after = self._moves[cell][direction]
        return (self._outcome_table[after] or self._make_outcomes(after))[after != cell]

    def _make_outcomes(self, cell: int) -> tuple[Outcome, Outcome]:
        text = render(self._lake, cell, self.observation_format)
        won, ends = cell == self._lake.goal, self._lake.terminal[cell]
        reward = 1.0 if won else 0.0
        pair = Outcome(text, reward, ends, won, True, False), Outcome(text, reward, ends, won, True, True)
        self._outcome_table[cell] = pair
        return pair

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return False: the player moves, but nothing is modified."""
        return False

    # ------------------------------------------------------------------ snapshots

    def _level_content(self) -> object:
        return self._lake.desc

    def _is_possible(self, snapshot: Snapshot) -> bool:
        cell, lake = snapshot.state, self._lake
        return (
            type(cell) is int
            and 0 <= cell < len(lake.terminal)
            and snapshot.terminated == lake.terminal[cell]
            and snapshot.success == (cell == lake.goal)
        )

    # ------------------------------------------------------------------ for agents

    @property
    def instructions(self) -> str:
        return explain(self.success_rate, self.observation_format)

    def state_key(self) -> Hashable:
        lake = self._lake
        # The board alone does not show the start, so it does not distinguish states in the "grid" format.
        start = None if self.observation_format == "grid" else lake.start
        return lake.columns, lake.holes, start, lake.goal, len(self._moves), self._state

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self._ended else ACTIONS

    def expert_actions(self) -> list[str] | None:
        """Return the optimal actions along the path on which no step slips.

        Each action maximizes the probability of reaching the goal within the remaining steps, then minimizes the
        expected time. The plan ends at the goal, at a cell that it visits a second time, or at the step limit.
        It is None after the end, and if the goal cannot be reached within the remaining steps.
        """
        if self._ended:
            return None
        policy = optimal_policy(self._lake, self.success_rate)
        remaining = None if self.max_steps is None else self.max_steps - self._steps
        cell = self._state
        if policy.value(cell, remaining) == 0.0:
            return None
        plan: list[str] = []
        seen: set[int] = set()
        while cell not in seen and not self._lake.terminal[cell] and (remaining is None or remaining > 0):
            seen.add(cell)
            action = policy.action(cell, remaining)
            plan.append(ACTIONS[action])
            cell = self._moves[cell][action]
            remaining = None if remaining is None else remaining - 1
        return plan

    def optimum(self) -> Optimum:
        """Return the maximum probability of reaching the goal, and the expected number of steps to the end.

        Both are exact for the remaining steps, and without a limit up to the convergence of value iteration (1e-12
        in the probability). The steps are those of the fastest policy that attains the probability, and include
        episodes that end in a hole or at the limit.
        """
        if self._ended:
            return self._final_optimum()
        policy = optimal_policy(self._lake, self.success_rate)
        remaining = None if self.max_steps is None else self.max_steps - self._steps
        value = policy.value(self._state, remaining)
        return Optimum(value, policy.time(self._state, remaining) if value else None)

    def optimum_after(self, action: str) -> Optimum:
        """Return the expectation of the optimum over the three cells in which the step may end.

        With V and Q the values of `optimum()` and of this method, V - Q is the probability of success that the
        choice of direction gives away; where the ice then takes the step makes no difference.
        """
        direction = None if self._ended else _direction(action)
        if direction is None:
            return super().optimum_after(action) or self._final_optimum()
        remaining = None if self.max_steps is None else self.max_steps - self._steps
        value, time = optimal_policy(self._lake, self.success_rate).expected(self._state, direction, remaining)
        return Optimum(value, time if value else None)


_DIRECTIONS = {name: number for number, name in enumerate(ACTIONS)}


def _direction(action: str) -> int | None:
    """Return the index of an action in `ACTIONS`, or None for another text."""
    return _DIRECTIONS.get(action.strip().title()) if len(action) < 100 else None


@lru_cache(maxsize=1024)
def _outcome_table(lake: Lake, observation_format: str) -> list[tuple[Outcome, Outcome] | None]:
    """Return a table, filled on demand, from each cell to the outcomes of staying there and of arriving there.

    All environments with the same lake and observation format share a table.
    """
    del observation_format  # part of the cache key only
    return [None] * len(lake.moves)
