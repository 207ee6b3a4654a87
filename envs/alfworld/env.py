"""The ALFWorld environment: the Gymnasium interface to the household engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gymnasium.error import ResetNeeded

from ..core import Outcome, RewardMode, TextEnv
from ..data import data_file_or_folder
from ..errors import ConfigurationError, unknown_name
from ..rendering import Part
from ..snapshots import Snapshot
from ..tools import Tool
from .domain import household_text
from .gamefile import read_dialect
from .generator import HomeTasks, generate_game
from .library import Library, open_library
from .model import Action, Dialect, Game, State
from .parts import household_parts
from .planner import plan
from .rules import MODIFYING, admissible_commands, format_command, introduction, is_state, is_won, step
from .searcher import next_command
from .tools import command_tools

HOMES = ("full", "easy")
"""Kinds of generated homes."""


class Moment(NamedTuple):
    """Environment state.

    Attributes:
        state: State of the game.
        text: Last reply, which cannot be derived from the game's state.
    """

    state: State
    text: str


class ALFWorld(TextEnv[Moment]):
    """## Description
    A text-based household. The agent finds objects in and on furniture, cleans, heats or cools them, switches
    lamps on, and puts objects where the task asks for them.

    The engine runs the game files of ALFWorld (Shridhar et al., ICLR 2021, arXiv:2010.03768) and reproduces the
    original's observations, admissible commands and end of the game byte for byte, without TextWorld. If no game
    files are available, the environment generates homes in the same file format.

    ## Actions
    A command of the game, exactly as listed by `admissible_actions()`; surrounding white space is ignored. Any
    other text is answered with "Nothing happens.", leaves the state unchanged and uses up a step.

    ## Observations
    The reply of the game to the last command. The first observation describes the room and states the task.

    ## Rewards
    1 for the action that solves the task, else 0. `reward_mode="dense"` and `"sparse"` are equivalent.

    ## Episode end
    The episode terminates when the task is solved and is truncated after `max_steps` steps, refused commands
    included.

    ## Info
    In addition to the common entries:
    * `task_type`: "Pick", "Look", "Clean", "Heat", "Cool" or "Pick2".
    * `modifies`: True if the action was executed and its verb modifies the household (take, move, open, close,
      use, clean, heat, cool, slice), as T-STAR's historical compatibility requires. It differs from `changed`,
      which compares states: walking changes the state but does not modify the household, and cleaning a clean mug
      modifies the household but does not change the state.

    ## Splits
    | split | tasks of ALFWorld | tasks in generated homes | content |
    |---|---|---|---|
    | "train" | 3,553 | 2³¹ | |
    | "valid_seen" | 140 | 2³¹ | rooms of "train", other objects and tasks |
    | "valid_unseen" | 134 | 2³¹ | rooms of its own |

    A generated task is named `train/0`, `train/1`, …; equal names give the same home on every machine.

    ## Arguments
    * `split`: "train", "valid_seen" or "valid_unseen"; with game files, the name of any folder at the level of
      these. None selects all games.
    * `data`: Folder of game files (the original's tree, tar archives of it, or both), a single archive, or a
      single game file. None selects `$ARBORETUM_DATA/alfworld` if it exists, else generated homes. Of the
      generated splits, "valid_unseen" uses floor plans of its own; "valid_seen" shares those of "train" but places
      other objects in them.
    * `homes`: "full" or "easy" for generated homes of that kind, also where game files are available. None selects
      game files if there are any, else full homes. Easy homes have at most 8 pieces of furniture, at most 2 of a
      kind, and only tasks of the types "Pick" and "Look"; tables of results name them "easy generated homes".
    * `max_steps=50`: Step limit, 50 in ALFWorld. None lifts it.

    ## State
    `state_key` is the task together with the state of the game: the agent's location, the object it holds, and the
    position and condition of every object and door. The last reply is not part of it.

    ## Expert
    `expert_actions()` is a shortest plan, found by A* search over the engine's rules; it uses what no observation
    has shown. `searching_actions()`, the plan of the agent `searching_expert`, follows from the commands and
    replies so far: it visits receptacles in the order of the first observation and opens closed ones until it sees
    an object that the task asks for. It understands the sentences of ALFWorld's tasks.

    ## Source
    Rules and texts follow alfworld 0.4.2 on TextWorld 1.7.0. Task ids are sorted paths; the original's task order
    depends on the file system.

    ## Version history
    * `v0`: initial version, of release 0.1.0. Since then `homes` selects generated homes where game files are
      available, and offers easy ones.
    """

    tasks: Sequence[str]

    optimum_is_exact = True

    def __init__(
        self,
        split: str | None = None,
        data: str | Path | None = None,
        homes: Literal["full", "easy"] | None = None,
        max_steps: int | None = 50,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if homes not in (None, *HOMES):
            raise unknown_name("kind of homes", str(homes), HOMES)
        if homes is not None and data is not None:
            raise ConfigurationError("homes= selects generated homes, and data= game files; omit one of them.")
        folder = data_file_or_folder("alfworld", data) if homes is None else None
        self._easy = homes == "easy"
        super().__init__(
            config={"games": "files" if folder is not None else "generated easy" if self._easy else "generated"},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
        )
        self._library: Library | None = None
        if folder is None:
            self.tasks = HomeTasks(split)
        else:
            self._library = open_library(folder, split)
            self.tasks = self._library.tasks
        self._game: Game | None = None
        self._last: Action | None = None
        self._listed: tuple[State | None, tuple[str, ...]] = (None, ())

    @property
    def game(self) -> Game:
        """Compiled game of the current task, as `rules` and `planner` take it."""
        if self._game is None:
            raise ResetNeeded("No game is loaded; call reset() first.")
        return self._game

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(file, reason) of each file that was skipped because it holds no playable game."""
        return list(self._library.skipped) if self._library else []

    @property
    def generated_data(self) -> str | None:
        if self._library is not None:
            return None
        return "easy generated homes" if self._easy else "generated homes"

    @property
    def instructions(self) -> str:
        forms = []
        for pieces in self._dialect.wording.templates.values():
            forms.append("".join(piece if isinstance(piece, str) else f"({piece[0]})" for piece in pieces))
        return (
            "You are in a household and have a task to do there. Things lie in or on receptacles, and you have to"
            " go to a receptacle to see or reach what is in it; some must be opened first. You can carry one"
            f" object at a time. Answer with one command, exactly in one of these forms: {'; '.join(forms)}."
            " Names have numbers, as in: apple 1, drawer 2. A command that is impossible is answered by: Nothing"
            " happens."
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        return command_tools(self._dialect.wording)

    @property
    def _dialect(self) -> Dialect:
        """Domain and grammar of the open game, or those of the generated homes."""
        game = self._game
        return game.dialect if game else read_dialect(household_text("pddl"), household_text("twl"))

    def _open(self, task: str) -> Moment:
        if self._library is None:
            game = generate_game(task, self._easy)
        elif task in self._library:
            game = self._library.game(task)
        else:
            raise ConfigurationError(
                f"the game {task} is not in {self._library.folder} or not in the chosen split; see `tasks`."
            )
        self._game = game
        self._last = None
        self._listed = (None, ())
        return Moment(game.start, introduction(game))

    def _observe(self) -> str:
        return self._state.text

    def parts(self) -> tuple[Part, ...]:
        """Return the agent's hand and all receptacles, with contents that the agent may not have seen."""
        return household_parts(self.game, self._state.state)

    def _apply(self, action: str) -> Outcome:
        game, before = self.game, self._state.state
        state, text, self._last = step(game, before, action)
        solved = is_won(game, state)
        self._state = Moment(state, text)
        return Outcome(text, float(solved), solved, solved, self._last is not None, state != before)

    def _level_content(self) -> object:
        return self.game.digest

    def _is_possible(self, snapshot: Snapshot) -> bool:
        moment, game = snapshot.state, self.game
        if type(moment) is not Moment or type(moment.text) is not str or not is_state(game, moment.state):
            return False
        won = snapshot.terminated
        # A game may begin won; it ends when a command is answered in a won state.
        return snapshot.success == won and (not snapshot.steps or won == is_won(game, moment.state))

    def _has_task(self, task: str) -> bool:
        return task in (self.tasks if self._library is None else self._library)

    def _details(self) -> Mapping[str, Any]:
        # Cleared after each step: steps after the end of the episode do not reach `_apply`.
        last, self._last = self._last, None
        return {"task_type": self.game.task_type, "modifies": last is not None and last.verb in MODIFYING}

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return `info["modifies"]`: take, move, open, close, use, clean, heat, cool and slice count."""
        return bool(info["modifies"])

    def state_key(self) -> Hashable:
        return self._task, self._state.state

    def admissible_actions(self) -> tuple[str, ...]:
        if self._ended:
            return ()
        state = self._state.state
        if self._listed[0] is not state:
            self._listed = (state, tuple(admissible_commands(self.game, state)))
        return self._listed[1]

    def searching_actions(self, observations: Sequence[str], actions: Sequence[str]) -> list[str] | None:
        if self._ended:
            return None
        command = next_command(observations, actions)
        return None if command is None else [command]

    def expert_actions(self) -> list[str] | None:
        return None if self._ended else self._within_limit(self._find_plan())

    def _find_plan(self) -> list[str] | None:
        game = self.game
        actions = plan(game, self._state.state)
        return None if actions is None else [format_command(game, *action) for action in actions]
