"""The base class of every text world: Gymnasium's interface, and what tree sampling and benchmarks need on top.

A world is a level (static, built from a task's name) and a state (small, immutable, replaced by every action).
Everything that depends on both is a pure function of them, which is why a snapshot is a tuple, a restore is an
assignment, and the same seed gives the same episode anywhere.
"""

from __future__ import annotations

import operator
import random
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from .errors import ConfigurationError, unknown_name
from .seeding import split_mix
from .spaces import AnyText

StateT = TypeVar("StateT")
Info = dict[str, Any]
RewardMode = Literal["dense", "sparse"]

_REWARD_MODES = ("dense", "sparse")


class Outcome(NamedTuple):
    """What one action did.

    Attributes:
        observation: the text shown next; for a refused action, the world's refusal.
        reward: the reward of the published environment.
        terminated: whether the episode has ended by the world's own rules.
        success: whether the task is solved now.
        valid: whether the action was understood and legal.
        changed: whether it changed the state.
    """

    observation: str
    reward: float
    terminated: bool
    success: bool
    valid: bool
    changed: bool


class Snapshot(NamedTuple):
    """A whole episode as a value: immutable, picklable, small. Made by `snapshot`, used by `restore`."""

    task: str
    identity: str
    state: Any
    steps: int
    max_steps: int | None
    chance: int
    terminated: bool
    truncated: bool
    success: bool


class TextEnv(gym.Env[str, str], Generic[StateT]):
    """A Gymnasium environment whose observations and actions are text.

    Common arguments of all worlds:
        split: the task split to draw from ("train", "valid", "test", or a world's own names); None for all.
        max_steps: steps after which an unfinished episode is truncated; None lifts the limit. The count is part
            of a snapshot, so the limit holds along every branch of a tree.
        reward_mode: "dense" for the published rewards, "sparse" for 1.0 at a successful end and 0.0 otherwise.
        admissible: put `admissible_actions` into every `info`.
        render_mode: None or "ansi" (`render()` returns the current observation).

    `reset(seed=n)` draws a task and the episode's luck from n. `reset(seed=n, options={"task": t})` opens task t
    (a name, or an index into `tasks`) and takes only the luck from n: members of a group share t and differ in n.

    `info` after every reset and step has `task` (str), `success`, `valid` and `changed` (bool; see `Outcome`).

    To write a world, call `super().__init__`, set `tasks`, and define `instructions`, `_open`, `_observe`,
    `_apply`, `state_key`, `admissible_actions` and `expert_actions`. `envs/bandit.py` is the shortest example.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (declared so by gymnasium.Env)

    palette: ClassVar[Mapping[str, str]] = {}
    """Colours for a person's terminal: symbol of the board -> style (`rich` style names)."""

    tasks: Sequence[str]
    """The names of the tasks in the chosen split."""

    _state: StateT
    """The current state: an immutable, picklable value."""

    def __init__(
        self,
        *,
        config: Mapping[str, object],
        max_steps: int | None,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
        max_observation: int = 4096,
        max_action: int = 4096,
    ) -> None:
        """
        Args:
            config: whatever decides levels and rules; a snapshot is refused by a world of another config.
            max_observation: the longest observation in characters, a bound for shared memory.
            max_action: the longest action in the action space; longer ones are still refused politely.
        """
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise ConfigurationError(f"max_steps must be a positive integer or None, not {max_steps!r}.")
        if reward_mode not in _REWARD_MODES:
            raise unknown_name("reward_mode", reward_mode, _REWARD_MODES)
        if render_mode not in (None, "ansi"):
            raise unknown_name("render_mode", render_mode, ("ansi",))
        self.observation_space = AnyText(max_observation)
        self.action_space = AnyText(max_action)
        self.max_steps = max_steps
        self.reward_mode: RewardMode = reward_mode
        self.admissible = admissible
        self.render_mode = render_mode
        self._adds_info = admissible or type(self)._details is not TextEnv._details
        self._identity = f"{type(self).__name__}{sorted(config.items())} {reward_mode}"
        self._task: str | None = None
        self._steps = 0
        self._chance = 0
        self._terminated = self._truncated = self._success = False

    # ------------------------------------------------------------------ what a world defines

    @property
    @abstractmethod
    def instructions(self) -> str:
        """What the world is and which actions it takes, as an agent should be told once."""

    @abstractmethod
    def _open(self, task: str) -> StateT:
        """Make `task`'s level the current one and return its initial state (no chance involved)."""

    @abstractmethod
    def _observe(self) -> str:
        """The text of the current state, as shown after `reset`."""

    @abstractmethod
    def _apply(self, action: str) -> Outcome:
        """Replace `self._state` by its successor under `action`. Never raises on any string."""

    @abstractmethod
    def state_key(self) -> Hashable:
        """An identity of the underlying state: equal exactly when the distribution of futures is the same.

        The step budget and the random generator do not count. Used for anchor-state grouping, cycle detection
        and tree merging.
        """

    @abstractmethod
    def admissible_actions(self) -> tuple[str, ...] | None:
        """The valid actions in the current state (none after the end), or None where they cannot be listed."""

    @abstractmethod
    def expert_actions(self) -> list[str] | None:
        """A plan from the current state to success, or None where there is none.

        In a world with chance the plan's first action is the optimal one; ask again after every step.
        """

    def random_action(self, rng: random.Random) -> str:
        """An action drawn uniformly from the admissible ones; worlds that cannot list theirs define their own."""
        actions = self.admissible_actions()
        if actions is None:
            raise TypeError(f"{type(self).__name__} lists no actions and defines no random_action.")
        return rng.choice(actions) if actions else ""

    def _details(self) -> Mapping[str, Any] | None:
        """What a world adds to `info` on reset and step."""
        return None

    # ------------------------------------------------------------------ Gymnasium's interface

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Open a task.

        Args:
            seed: decides the task (unless named) and the episode's luck.
            options: `{"task": name or index}`; nothing else.

        Returns:
            The first observation and `info`.

        Raises:
            ConfigurationError: unknown option or task.
        """
        super().reset(seed=seed)
        # Raw 64-bit outputs of PCG64 are stable across NumPy versions; `integers()` is not promised to be.
        raw = self.np_random.bit_generator.random_raw
        chance, pick = int(raw()), int(raw())
        task = self._named_task(options) if options else None
        if task is None:
            task = self.tasks[pick * len(self.tasks) >> 64]
        if task != self._task:
            self._task = None  # stays so if the level cannot be opened
        self._state = self._open(task)
        self._task = task
        self._steps = 0
        self._chance = chance
        self._terminated = self._truncated = self._success = False
        info = self._info(valid=True, changed=False)
        return self._observe(), info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Take one action. A bad one is refused in words: `info["valid"]` is False and nothing changes.

        Returns:
            Observation, reward, terminated, truncated, info. After the end of an episode: the last observation
            again, reward 0, the same flags, and `valid` False.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset`.
        """
        if self._task is None:
            raise ResetNeeded("call reset() before step().")
        if self._terminated or self._truncated:
            return self._observe(), 0.0, self._terminated, self._truncated, self._info(False, False)
        if not isinstance(action, str):
            action = ""  # refused, like every other thing that is no action
        observation, reward, terminated, success, valid, changed = self._apply(action)
        steps = self._steps = self._steps + 1
        truncated = not terminated and self.max_steps is not None and steps >= self.max_steps
        self._terminated = terminated
        self._truncated = truncated
        self._success = success
        if self.reward_mode == "sparse":
            reward = 1.0 if success and terminated else 0.0
        info: Info = {"task": self._task, "success": success, "valid": valid, "changed": changed}
        if self._adds_info:
            self._complete(info)
        return observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """The current observation, in render mode "ansi"."""
        if self.render_mode is None:
            return None
        if self._task is None:
            raise ResetNeeded("call reset() before render().")
        return self._observe()

    # ------------------------------------------------------------------ Arboretum's additions

    @property
    def task(self) -> str:
        """The name of the open task."""
        if self._task is None:
            raise ResetNeeded("no task is open; call reset() first.")
        return self._task

    @property
    def steps(self) -> int:
        """Steps taken in this episode."""
        return self._steps

    def snapshot(self) -> Snapshot:
        """The whole episode as a small immutable value, its random generator and step count included.

        Gymnasium's `np_random`, which draws the *next* task on an unseeded reset, is not part of an episode.
        """
        return Snapshot(
            self.task,  # raises before the first reset
            self._identity,
            self._state,
            self._steps,
            self.max_steps,
            self._chance,
            self._terminated,
            self._truncated,
            self._success,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot, of this environment or of an equal one in any process.

        Raises:
            ConfigurationError: the snapshot is of another world or of another configuration.
        """
        task, identity, state, steps, max_steps, chance, terminated, truncated, success = snapshot
        if identity != self._identity:
            raise ConfigurationError(f"this snapshot is of {identity}, not of {self._identity}.")
        if task != self._task:
            self._task = None
            self._open(task)
            self._task = task
        self._state = state
        self._steps = steps
        self.max_steps = max_steps
        self._chance = chance
        self._terminated = terminated
        self._truncated = truncated
        self._success = success

    # ------------------------------------------------------------------ for worlds

    @property
    def _ended(self) -> bool:
        return self._terminated or self._truncated

    def _random(self) -> float:
        """A uniform float in [0, 1) of the episode's own generator."""
        self._chance, value = split_mix(self._chance)
        return value

    def _info(self, valid: bool, changed: bool) -> Info:
        info: Info = {"task": self._task, "success": self._success, "valid": valid, "changed": changed}
        if self._adds_info:
            self._complete(info)
        return info

    def _complete(self, info: Info) -> None:
        """Add what the configuration asks for and the world's own details."""
        if self.admissible:
            info["admissible_actions"] = self.admissible_actions()
        details = self._details()
        if details is not None:
            info.update(details)

    def _named_task(self, options: Mapping[str, Any]) -> str | None:
        if not isinstance(options, Mapping):
            raise ConfigurationError(f'options must be a mapping such as {{"task": 0}}, not {options!r}.')
        for key in options:
            if key != "task":
                raise unknown_name("reset option", key, ("task",))
        task = options.get("task")
        if task is None:
            return None
        if isinstance(task, str):
            if task not in self.tasks:
                raise unknown_name("task", task, self.tasks[:1000])
            return task
        if isinstance(task, bool) or not hasattr(task, "__index__"):
            raise ConfigurationError(f"a task is given by its name or its index, not by {task!r}.")
        index = operator.index(task)
        if not 0 <= index < len(self.tasks):
            raise ConfigurationError(f"task index {index} is outside 0 … {len(self.tasks) - 1} of this split.")
        return self.tasks[index]
