"""Sokoban on boards from any source of levels: transitions, snapshots and optimal plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, NamedTuple

from ..core import OutcomeFields, RewardMode, TextEnv
from ..errors import unknown_name
from ..optimum import Optimum
from ..pictures.canvas import Picture
from ..rendering import PICTURED
from ..snapshots import Snapshot
from .distances import TABLE_LIMIT, Distances, level_distances
from .picture import board_picture
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
    resolve_vocabulary,
    start_state,
    translate,
)
from .solver import OutOfBudget, find_plan

_STYLES = ("dim", "dim", "yellow", "bold green", "bold red", "bold cyan", "bold cyan")
"""Terminal styles, in the order of a `Vocabulary`'s fields."""

_REFUSAL = "There is no such action. Choose Up, Down, Left or Right.\n"
_MAX_ACTION_LENGTH = 64

_UNKNOWN = -1
"""Length of a shortest plan that the search did not find within its budget."""

# The constructor of a NamedTuple is a Python function; `tuple.__new__` takes half of its time.
_new = tuple.__new__


class _Plan(NamedTuple):
    """Cached result of the solver for one position.

    Attributes:
        actions: Plan from an earlier position, or None if none was found.
        place: Place of this position in the plan.
        proven: True if the plan has the fewest moves, or if it is proven that there is none.
    """

    actions: list[str] | None
    place: int
    proven: bool


class BoardEnv(TextEnv[State]):
    """Sokoban on boards from any source. A subclass sets `tasks` and defines `_level`."""

    metadata = PICTURED

    palette: ClassVar[Mapping[str, str]] = {
        symbol: style for words in VOCABULARIES.values() for symbol, style in zip(words, _STYLES, strict=True)
    }

    _constant_actions = ACTIONS
    optimum_is_exact = True

    _MAX_PLANS = 20_000
    """Maximum number of positions whose plans are cached."""

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
        count_refused: bool = True,
    ) -> None:
        self.vocabulary = resolve_vocabulary(vocabulary)
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
            count_refused=count_refused,
        )
        self._moves: dict[str, Move] = {}
        self._render: Renderer | None = None
        self._size: tuple[int, int] | None = None
        self._start = self._room = ""
        self._boxes = 0
        self._emptied = _empty(self.vocabulary)
        self._plans: dict[str, _Plan] = {}
        self._distances: Distances | None = None

    @abstractmethod
    def _level(self, task: str) -> str:
        """Return the board of a task in the standard vocabulary."""

    # ------------------------------------------------------------------ transitions

    def _open(self, task: str) -> State:
        board = translate(self._level(task), STANDARD, self.vocabulary)
        self._size = board_size(board)
        self._moves = moves(self._size[1] + 1, self.vocabulary)
        self._render = renderer(board, self.vocabulary, self.observation_format)
        self._plans = {}
        self._distances = None
        self._start = board
        self._room = board.translate(self._emptied)
        self._boxes = board.count(self.vocabulary.box) + board.count(self.vocabulary.box_on_target)
        return start_state(board, self.vocabulary)

    def _observe(self) -> str:
        board, player, _ = self._state
        return board if self._render is None else self._render(board, player)

    def picture(self) -> Picture:
        """Return a picture of the board, [48 x rows, 48 x columns, 3]."""
        return board_picture(self._state.board, self.vocabulary)

    def _apply(self, action: str) -> OutcomeFields:
        move = self._moves.get(action)
        if move is None:
            move = self._moves.get(action.strip().lower()) if len(action) <= _MAX_ACTION_LENGTH else None
            if move is None:
                return _REFUSAL + self._observe(), 0.0, False, False, False, False
        board, player, missing = self._state
        shift, first, last, step, effects = move
        first += player
        last += player
        effect = effects.get(board[first:last:step])
        if effect is None:
            text = board if self._render is None else self._render(board, player)
            return text, MOVE_REWARD, False, False, True, False
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
            return text, reward, False, False, True, True
        return text, reward + SOLVED_REWARD, True, True, True, True

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True for pushes; steps that move only the player do not count."""
        words = self.vocabulary
        without_player = str.maketrans({words.player: words.floor, words.player_on_target: words.target})
        return str(before).translate(without_player) != self._state.board.translate(without_player)

    # ------------------------------------------------------------------ snapshots

    def _level_content(self) -> object:
        return self._start

    def _is_possible(self, snapshot: Snapshot) -> bool:
        if type(snapshot.state) is not State or list(map(type, snapshot.state)) != [str, int, int]:
            return False
        board, player, missing = snapshot.state
        words = self.vocabulary
        return (
            board.translate(self._emptied) == self._room
            and 0 <= player < len(board)
            and board[player] in (words.player, words.player_on_target)
            and board.count(words.player) + board.count(words.player_on_target) == 1
            and missing == board.count(words.box)
            and missing + board.count(words.box_on_target) == self._boxes
            and snapshot.terminated == snapshot.success == (missing == 0)
        )

    # ------------------------------------------------------------------ for agents

    @property
    def instructions(self) -> str:
        return explain(self._size, self.vocabulary, self.observation_format)

    def state_key(self) -> Hashable:
        return self._state.board

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self._ended else ACTIONS

    def expert_actions(self) -> list[str] | None:
        """Return a plan with the fewest moves, or None after the end and where none fits into the remaining steps.

        On boards with many boxes the search may exceed its budget. The plan then has the fewest pushes instead
        of the fewest moves; it is None if that search exceeds its budget as well. No generated level of one or
        two boxes and none of 3000 Boxoban levels exceeded either budget; large boards of four boxes and more do.
        A plan is cached for every position along it, so that following it step by step does not search again.
        """
        return None if self._ended else self._within_limit(self._find_plan())

    def _find_plan(self) -> list[str] | None:
        actions, index, _ = self._solve()
        return None if actions is None else actions[index:]

    def optimum(self) -> Optimum | None:
        """Return the optimum, which is exact, or None if the search for a shortest plan exceeded its budget.

        On small boards the fewest moves of all positions are computed at once, which takes less than a search.
        """
        if self._ended:
            return self._final_optimum()
        steps = self._cached_length()
        if steps == _UNKNOWN:
            return None
        return Optimum(0.0, None) if steps is None or steps > self.steps_left() else Optimum(1.0, steps)

    def _plan_length(self) -> int | None:
        if self._distances is None:
            self._distances = level_distances(Masks.of(self._start, self.vocabulary))
        if self._distances.states <= TABLE_LIMIT:
            return self._distances.find(self._state.board, self._state.player, self.vocabulary)
        actions, index, proven = self._solve()
        if not proven:
            return _UNKNOWN
        return None if actions is None else len(actions) - index

    def _solve(self) -> _Plan:
        """Return the plan of the current position, from the cache if it is there."""
        board = self._state.board
        if board not in self._plans:
            if len(self._plans) > self._MAX_PLANS:
                self._plans = {}
            masks = Masks.of(board, self.vocabulary)
            plan, proven = None, True
            try:
                # The search by pushes is the faster one to detect unsolvable positions.
                plan = find_plan(masks, "pushes")
                if plan is not None:
                    plan = find_plan(masks)
            except OutOfBudget:
                proven = False
            self._plans[board] = _Plan(None, 0, proven)
            if plan is not None:
                self._cache_plan(plan, proven)
        return self._plans[board]

    def _cache_plan(self, plan: list[str], proven: bool) -> None:
        """Cache a plan for every position along it."""
        start = self._state
        for index, action in enumerate(plan):
            self._plans[self._state.board] = _Plan(plan, index, proven)
            self._apply(action)
        self._state = start


def _empty(vocabulary: Vocabulary) -> dict[int, str]:
    """Return the table for `str.translate` that removes player and boxes from a board."""
    _, floor, target, box_on_target, box, player, player_on_target = vocabulary
    return str.maketrans({box: floor, player: floor, box_on_target: target, player_on_target: target})
