"""The Sokoban worlds: a text environment over any source of levels, and the world that makes its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import ClassVar, Literal, NamedTuple

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..tasks import GeneratedTasks
from .generator import EXACT_BOXES, Spec, generate
from .render import OBSERVATION_FORMATS, ObservationFormat, Renderer, board_size, explain, renderer
from .rules import (
    ACTIONS,
    MOVE_REWARD,
    SOLVED_REWARD,
    STANDARD,
    VOCABULARIES,
    Masks,
    Move,
    State,
    Vocabulary,
    moves,
    start_state,
    translate,
)
from .solver import solve

Difficulty = Literal["easy", "medium", "hard"]

_STYLES = ("dim", "dim", "yellow", "bold green", "bold red", "bold cyan", "bold cyan")
"""Terminal colours, in the order of a `Vocabulary`'s fields."""

_REFUSAL = "There is no such action. Choose Up, Down, Left or Right.\n"
_LONGEST_ACTION = 64

# The constructor of a NamedTuple is a Python function; a step makes two of them, and this halves its time.
_new = tuple.__new__


class Band(NamedTuple):
    """A difficulty: what levels to make and how many steps to allow."""

    spec: Spec
    max_steps: int


BANDS: dict[str, Band] = {
    "easy": Band(Spec(size=7, boxes=1, shortest=3, longest=9), max_steps=20),
    "medium": Band(Spec(size=7, boxes=2, shortest=10, longest=19), max_steps=40),
    "hard": Band(Spec(size=8, boxes=2, shortest=20, longest=40), max_steps=60),
}
"""Optimal solution lengths of the bands do not overlap, and every level fits into its step limit."""

STEP_LIMIT = 100
"""RAGEN's limit for its Sokoban worlds."""


class BoardEnv(TextEnv[State]):
    """Sokoban over boards from anywhere: rules, observations, solver. A subclass sets `tasks` and `_level`."""

    palette: ClassVar[Mapping[str, str]] = {
        symbol: style for words in VOCABULARIES.values() for symbol, style in zip(words, _STYLES, strict=True)
    }

    _STOCK = 20_000
    """Positions whose plans are remembered, at most."""

    def __init__(
        self,
        *,
        config: Mapping[str, object],
        vocabulary: str | Vocabulary,
        observation_format: ObservationFormat,
        max_steps: int | None,
        reward_mode: RewardMode,
        admissible: bool,
        render_mode: str | None,
    ) -> None:
        self.vocabulary = _vocabulary(vocabulary)
        if observation_format not in OBSERVATION_FORMATS:
            raise unknown_name("observation_format", observation_format, OBSERVATION_FORMATS)
        self.observation_format: ObservationFormat = observation_format
        super().__init__(
            config={**config, "vocabulary": "".join(self.vocabulary), "observation_format": observation_format},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            max_observation=8192,
        )
        self._moves: dict[str, Move] = {}
        self._render: Renderer | None = None
        self._size: tuple[int, int] | None = None
        self._plans: dict[str, tuple[list[str], int] | None] = {}

    @abstractmethod
    def _level(self, task: str) -> str:
        """The board of a task, in the standard vocabulary."""

    # ------------------------------------------------------------------ the game

    def _open(self, task: str) -> State:
        board = translate(self._level(task), STANDARD, self.vocabulary)
        self._size = board_size(board)
        self._moves = moves(self._size[1] + 1, self.vocabulary)
        self._render = renderer(board, self.vocabulary, self.observation_format)
        self._plans = {}
        return start_state(board, self.vocabulary)

    def _observe(self) -> str:
        board, player, _ = self._state
        return board if self._render is None else self._render(board, player)

    def _apply(self, action: str) -> Outcome:
        move = self._moves.get(action)
        if move is None:
            move = self._moves.get(action.strip().lower()) if len(action) <= _LONGEST_ACTION else None
            if move is None:
                return Outcome(_REFUSAL + self._observe(), 0.0, False, False, False, False)
        board, player, missing = self._state
        shift, first, last, step, effects = move
        first += player
        last += player
        effect = effects.get(board[first:last:step])
        if effect is None:
            text = board if self._render is None else self._render(board, player)
            return _new(Outcome, (text, MOVE_REWARD, False, False, True, False))
        cells, reward, change = effect
        if step == 1:
            board = board[:first] + cells + board[last:]
        else:
            middle = first + step
            board = (
                f"{board[:first]}{cells[0]}{board[first + 1 : middle]}{cells[1]}"
                f"{board[middle + 1 : last - 1]}{cells[2]}{board[last:]}"
            )
        missing += change
        player += shift
        self._state = _new(State, (board, player, missing))
        text = board if self._render is None else self._render(board, player)
        if missing:
            return _new(Outcome, (text, reward, False, False, True, True))
        return _new(Outcome, (text, reward + SOLVED_REWARD, True, True, True, True))

    # ------------------------------------------------------------------ for agents

    @property
    def instructions(self) -> str:
        return explain(self._size, self.vocabulary, self.observation_format)

    def state_key(self) -> Hashable:
        return self._state.board

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self._ended else ACTIONS

    def expert_actions(self) -> list[str] | None:
        """A plan with the fewest moves; None after the end, and where a box is stuck for good.

        Boards of many boxes may exceed the search's budget: then the plan has the fewest pushes instead, or, if
        that search gives up too, there is none. No generated level, and none of 3000 Boxoban levels, came to that.
        Plans are remembered along their whole course: asking again after each of their steps searches nothing.
        """
        if self._ended:
            return None
        board = self._state.board
        if board not in self._plans:
            if len(self._plans) > self._STOCK:
                self._plans = {}
            masks = Masks.of(board, self.vocabulary)
            # Whether there is a solution at all is found soonest by pushes; dead positions end here.
            plan = solve(masks, "pushes")
            if plan is not None:
                plan = solve(masks) or plan
            self._plans[board] = None
            if plan is not None:
                self._remember(plan)
        found = self._plans[board]
        return None if found is None else found[0][found[1] :]

    def _remember(self, plan: list[str]) -> None:
        """Store a plan under every board on its course."""
        here = self._state
        for index, action in enumerate(plan):
            self._plans[self._state.board] = plan, index
            self._apply(action)
        self._state = here


class Sokoban(BoardEnv):
    """## Description
    Push every box onto a target. Levels are generated by exact backward play, so their optimal solution lengths
    are known: see the table. No level starts solved or with a box on a target, every level can be solved within
    its step limit, and the splits share no room, not even a rotated or mirrored one.

    | id | board | boxes | optimal moves (mean, 95 % at most) | step limit |
    |---|---|---|---|---|
    | `TextSokoban-v0`, `TextSokobanNewVocab-v0` | 6x6 | 1 | 3 to 9 (5.5, 9) | 100 |
    | `TextLargeSokoban-v0` | 8x8 | 2 | 4 to 10 (7.3, 10) | 100 |
    | `TextSokobanEasy-v0` | 7x7 | 1 | 3 to 9 (5.9, 9) | 20 |
    | `TextSokobanMedium-v0` | 7x7 | 2 | 10 to 19 (13.6, 18) | 40 |
    | `TextSokobanHard-v0` | 8x8 | 2 | 20 to 40 (25.4, 33) | 60 |

    Every level of the first two can be solved within the ten actions that published agents are given.

    ## Observations
    `observation_format`: "grid" (the default) is the board; "coord" lists the (row, column) of targets, boxes, the
    player and inner walls; "grid_coord" is the coordinates without walls, then the board. A line of coordinates
    names the cells that show one symbol: "Targets" are the targets with nothing on them.

    ## Actions
    Up, Down, Left, Right, in any case. All four are always valid; a move that is blocked changes nothing.

    ## Rewards
    -0.1 for every move, +1 for a box pushed onto a target, -1 for one pushed off, +10 when all boxes are on
    targets: a level of one box solved in n moves pays 11 - 0.1 n.

    ## Episode end
    When every box is on a target (success), or after `max_steps` steps.

    ## Arguments
    * `split`: "train", "valid", "test", or None for levels of all three.
    * `size=6`, `boxes=1`: cells along a side with the walls (5 to 24), and the number of boxes (1 to 6).
    * `difficulty`: "easy", "medium" or "hard": sets size, boxes, solution lengths and step limit as in the table.
    * `vocabulary`: "standard", "new", or a `Vocabulary`.
    * `max_steps`: by default 100, or the difficulty's.

    ## Source
    Rewards: gym-sokoban 0.0.5 (Schrader, 2018). Symbols, sizes and the step limit of 100: RAGEN (Wang et al.,
    2025, arXiv:2504.20073), where 6x6 levels have 1 to 14 optimal moves, 4.0 on average, and one in five
    validation layouts is also a training layout.
    """

    def __init__(
        self,
        split: str | None = None,
        size: int | None = None,
        boxes: int | None = None,
        difficulty: Difficulty | None = None,
        vocabulary: str | Vocabulary = "standard",
        observation_format: ObservationFormat = "grid",
        max_steps: int | Literal["default"] | None = "default",
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        limit = STEP_LIMIT
        if difficulty is None:
            self.level_spec = default_spec(6 if size is None else size, 1 if boxes is None else boxes)
        elif difficulty not in BANDS:
            raise unknown_name("difficulty", difficulty, BANDS)
        elif size is not None or boxes is not None:
            raise ConfigurationError("difficulty= decides size and boxes; give either it or them.")
        else:
            self.level_spec, limit = BANDS[difficulty]
        super().__init__(
            config=self.level_spec._asdict(),
            vocabulary=vocabulary,
            observation_format=observation_format,
            max_steps=limit if max_steps == "default" else max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
        )
        self.tasks = GeneratedTasks(split)
        self._size = self.level_spec.size, self.level_spec.size

    def _level(self, task: str) -> str:
        return generate(self.level_spec, task)


def default_spec(size: int, boxes: int) -> Spec:
    """The default kind of level for a size and a number of boxes.

    Raises:
        ConfigurationError: the boxes do not fit, or the numbers are out of range.
    """
    if not isinstance(size, int) or not 5 <= size <= 24:
        raise ConfigurationError(f"size must be a whole number from 5 to 24 (walls included), not {size!r}.")
    if not isinstance(boxes, int) or not 1 <= boxes <= 6:
        raise ConfigurationError(f"boxes must be a whole number from 1 to 6, not {boxes!r}.")
    if (size - 2) ** 2 < 8 * boxes:
        raise ConfigurationError(f"{boxes} boxes need more room than a size of {size}; enlarge size.")
    if boxes == 1:
        return Spec(size, boxes, shortest=3, longest=9)
    if boxes <= EXACT_BOXES:
        return Spec(size, boxes, shortest=4, longest=10)
    return Spec(size, boxes, shortest=2 * boxes, longest=8 * boxes)


def _vocabulary(given: str | Vocabulary) -> Vocabulary:
    if isinstance(given, str):
        if given not in VOCABULARIES:
            raise unknown_name("vocabulary", given, VOCABULARIES)
        return VOCABULARIES[given]
    symbols = Vocabulary(*given)
    if len(set(symbols)) != len(symbols) or any(len(s) != 1 or not s.isprintable() for s in symbols):
        raise ConfigurationError(f"a vocabulary is seven different single printable characters, not {symbols!r}.")
    return symbols
