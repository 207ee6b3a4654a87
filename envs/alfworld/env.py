"""The ALFWorld environment: the shell around the engine."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core import Outcome, RewardMode, TextEnv
from ..data import data_folder
from ..errors import ConfigurationError
from .domain import household_text
from .gamefile import read_dialect
from .generator import HomeTasks, generate_game
from .library import Library, open_library
from .model import Action, Game, State
from .planner import plan
from .rules import MODIFYING, admissible, introduction, phrase, play, won


class Moment(NamedTuple):
    """State of the environment: the game's state, and the last reply, which no state holds."""

    state: State
    text: str


class ALFWorld(TextEnv[Moment]):
    """## Description
    A household in text: find things in and on furniture, clean, heat and cool them, switch lamps on, and put them
    where the task wants them. The games of ALFWorld (Shridhar et al., ICLR 2021, arXiv:2010.03768) play with the
    same text, the same admissible commands and the same end as in the original engine, without that engine.
    Without the games' files, homes of the same kind are generated.

    ## Actions
    The commands of the game, exactly as written in `admissible_actions()`; outer blanks do not count. Anything
    else is answered "Nothing happens." and costs a step.

    ## Rewards
    1 if the task is solved by this action, else 0 (dense and sparse are the same).

    ## Episode end
    When the task is solved. `max_steps` truncates; refused commands count.

    ## `info`
    Besides the usual entries:
    * `task_type`: "Pick", "Look", "Clean", "Heat", "Cool" or "Pick2";
    * `modifies`: whether the action was carried out and is of a kind that modifies the household (take, move,
      open, close, use, clean, heat, cool, slice: T-STAR's historical compatibility). `changed`, in contrast, says
      whether the state differs now: walking changes it, cleaning a clean mug does not.

    ## Arguments
    * `split`: "train", "valid_seen" or "valid_unseen" (of files: the name of any folder that holds a split); None
      for all games found.
    * `data`: the folder of the games (the original's tree, tar archives of it, or both), or one archive or game
      file. Default: `$ARBORETUM_DATA/alfworld`; without that, generated homes, whose "valid_unseen" has floor
      plans of its own, and "valid_seen" those of "train" with other things in them.
    * `max_steps=50`: ALFWorld's own limit.

    ## Source
    Rules and texts follow alfworld 0.4.2 on TextWorld 1.7.0. Task ids are paths, sorted; the original's order
    follows the file system.
    """

    tasks: Sequence[str]

    def __init__(
        self,
        split: str | None = None,
        data: str | Path | None = None,
        max_steps: int | None = 50,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        path = Path(data).expanduser() if data is not None else None
        folder = path if path is not None and path.is_file() else data_folder("alfworld", data)
        super().__init__(
            config={"games": "generated" if folder is None else "files"},
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
        """The open game, for `rules` and `planner`."""
        if self._game is None:
            raise ConfigurationError("no game is open; call reset() first.")
        return self._game

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Files that hold no playable game, with the reason."""
        return list(self._library.skipped) if self._library else []

    @property
    def instructions(self) -> str:
        game = self._game
        dialect = game.dialect if game else read_dialect(household_text("pddl"), household_text("twl"))
        forms = []
        for pieces in dialect.wording.templates.values():
            forms.append("".join(piece if isinstance(piece, str) else f"({piece[0]})" for piece in pieces))
        return (
            "You are in a household and have a task to do there. Things lie in or on receptacles, and you have to"
            " go to a receptacle to see or reach what is in it; some must be opened first. You can carry one"
            f" object at a time. Answer with one command, exactly in one of these forms: {'; '.join(forms)}."
            " Names have numbers, as in: apple 1, drawer 2. A command that is impossible is answered by: Nothing"
            " happens."
        )

    def _open(self, task: str) -> Moment:
        if self._library is None:
            game = generate_game(task)
        elif task in self._library.tasks:
            game = self._library.game(task)
        else:
            raise ConfigurationError(f"the game {task} is not in {self._library.folder} or not in this split.")
        self._game = game
        self._last = None
        self._listed = (None, ())
        return Moment(game.start, introduction(game))

    def _observe(self) -> str:
        return self._state.text

    def _apply(self, action: str) -> Outcome:
        game, before = self.game, self._state.state
        state, text, self._last = play(game, before, action)
        solved = won(game, state)
        self._state = Moment(state, text)
        return Outcome(text, float(solved), solved, solved, self._last is not None, state != before)

    def _details(self) -> Mapping[str, Any]:
        last, self._last = self._last, None  # of this step only: after the end nothing is carried out any more
        return {"task_type": self.game.task_type, "modifies": last is not None and last.verb in MODIFYING}

    def state_key(self) -> Hashable:
        return self._task, self._state.state

    def admissible_actions(self) -> tuple[str, ...]:
        if self._ended:
            return ()
        state = self._state.state
        if self._listed[0] is not state:
            self._listed = (state, tuple(admissible(self.game, state)))
        return self._listed[1]

    def expert_actions(self) -> list[str] | None:
        if self._ended:
            return None
        game = self.game
        actions = plan(game, self._state.state)
        return None if actions is None else [phrase(game, *action) for action in actions]
