"""Shortest plans, found by A* search over subtasks.

Every location is one `go to` away, so a plan consists of a few subtasks, such as fetching an object, cleaning it
and putting it down. A subtask walks to a receptacle (if necessary), opens it (if necessary) and performs one
action; its effects are computed by `apply_action`. One search is run for each receptacle in which the task can
end. The heuristic counts the steps of fetching and delivering the nearest objects. It is a lower bound, and exact
unless the agent must first put down another object or two objects are behind the same door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from .model import NOTHING, Action, Game, State, members
from .rules import apply_action, is_closed, is_legal, is_won

_TREATMENTS = {"clean": "cleanobject", "hot": "heatobject", "cool": "coolobject"}

Subtask: TypeAlias = tuple[list[Action], State]

CompletionCost: TypeAlias = Callable[[int, int, int], float]
"""Function (object, location, source receptacle) → steps to finish once the object is held at the location.

The source is the receptacle from which the object is taken, or -1 if the agent already holds it.
"""


def plan(game: Game, state: State) -> list[Action] | None:
    """Return a shortest sequence of actions that wins the game, or None if there is none.

    Goals that require a sliced object, which do not occur in ALFWorld, are not supported: None.
    """
    if is_won(game, state):
        return []
    search = _Search(game)
    ends = sorted((search.estimate(state, end), end) for end in search.end_receptacles(state))
    best: list[Action] | None = None
    for estimate, end in ends:
        if estimate == inf or (best is not None and estimate >= len(best)):
            break
        found = search.run(state, end, inf if best is None else len(best))
        if found is not None:
            best = found
    return best


class _Search:
    """A* search for one game."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.goal = game.goal
        self.verbs = game.dialect.wording.templates
        places: dict[str, int] = {"clean": game.cleaners, "hot": game.heaters, "cool": game.coolers}
        able: dict[str, int] = {"clean": game.cleanable, "hot": game.heatable, "cool": game.coolable}
        self.treatments = {
            flag: ([r for r in members(places[flag]) if game.location_of[r] >= 0], able[flag], verb)
            for flag, verb in _TREATMENTS.items()
            if verb in self.verbs
        }

    def end_receptacles(self, state: State) -> list[int]:
        """Return the receptacles in which the task can end: targets of a "place" goal, or those with a lamp."""
        game, goal = self.game, self.goal
        if goal.kind == "place":
            return [r for r in members(goal.receptacles) if game.location_of[r] >= 0]
        return [r for r, at in enumerate(game.location_of) if at >= 0 and game.contents(state, r) & goal.lamps]

    def run(self, start: State, end: int, bound: float) -> list[Action] | None:
        """Return a shortest plan that ends at receptacle `end` in fewer than `bound` steps, or None."""
        queue: list[tuple[float, int, int, State, list[Action]]] = [(self.estimate(start, end), 0, 0, start, [])]
        costs = {start: 0}
        count = 0
        while queue:
            _, _, _, state, path = heappop(queue)
            if len(path) > costs[state]:
                continue
            if is_won(self.game, state):
                return path
            for actions, after in self.subtasks(state, end):
                cost = len(path) + len(actions)
                if cost >= costs.get(after, inf):
                    continue
                total = cost + self.estimate(after, end)
                if total >= bound:
                    continue
                costs[after] = cost
                count += 1
                heappush(queue, (total, -cost, count, after, path + actions))
        return None

    # ------------------------------------------------------------------ successors

    def subtasks(self, state: State, end: int) -> Iterator[Subtask]:
        """Yield the subtasks that can be performed next, each with the state after it."""
        game, goal, held = self.game, self.goal, state.held
        if goal.kind == "light":
            yield from self._lamp_subtasks(state, end)
        if held == NOTHING:
            for receptacle, at in enumerate(game.location_of):
                if at >= 0:
                    for thing in members(game.contents(state, receptacle) & goal.objects & game.pickupable):
                        yield from self._subtask(state, receptacle, Action("pickupobject", thing, receptacle))
            return
        if goal.objects >> held & 1:
            for flag in goal.flags:
                if flag in self.treatments and not getattr(state, flag) >> held & 1:
                    receptacles, able, verb = self.treatments[flag]
                    if able >> held & 1:
                        for receptacle in receptacles:
                            yield from self._subtask(state, receptacle, Action(verb, held, receptacle))
        for receptacle, accepted in enumerate(game.accepts):
            if accepted >> held & 1 and game.location_of[receptacle] >= 0:
                yield from self._subtask(state, receptacle, Action("putobject", held, receptacle))

    def _lamp_subtasks(self, state: State, end: int) -> Iterator[Subtask]:
        for lamp in members(self.game.contents(state, end) & self.goal.lamps):
            if not state.toggled >> lamp & 1:
                yield from self._subtask(state, end, Action("toggleobject", lamp, end))
            else:
                yield from self._subtask(state, end, None)

    def _subtask(self, state: State, receptacle: int, act: Action | None) -> Iterator[Subtask]:
        """Yield the subtask of performing `act` at a receptacle; nothing if that is impossible."""
        steps = []
        if self.game.location_of[receptacle] != state.location:
            steps.append(Action("gotolocation", 0, receptacle))
        if (
            act is not None
            and act.verb in ("pickupobject", "putobject")
            and is_closed(self.game, state, receptacle)
        ):
            steps.append(Action("openobject", 0, receptacle))
        if act is not None:
            steps.append(act)
        for step in steps:
            if step.verb not in self.verbs or not is_legal(self.game, state, step):
                return
            state = apply_action(self.game, state, step)
        if steps:
            yield steps, state

    # ------------------------------------------------------------------ heuristic

    def estimate(self, state: State, end: int) -> float:
        """Return a lower bound on the steps to a win at receptacle `end`; infinite if no win is possible."""
        game, goal, held = self.game, self.goal, state.held
        complete: CompletionCost
        if goal.kind == "light":
            complete = self._light_costs(state, end)
            missing, placed = 1, 0
        else:
            complete = self._put_costs(state, end)
            placed = game.contents(state, end) & goal.objects
            for flag in goal.flags:
                placed &= getattr(state, flag)
            missing = goal.number - placed.bit_count()
            if missing <= 0:
                return 0
        holds_one = held != NOTHING and goal.objects >> held & 1
        free = 0 if held == NOTHING else 1
        # An object may be behind the door of `end` itself; the cost of delivering it already counts that door.
        doors = game.openable & ~state.opened & ~(1 << end if goal.kind == "place" else 0)
        first = self._fetch_costs(state, state.location, doors, complete, placed)
        if missing == 1:
            fetched = free + min(first.values(), default=inf)
            return min(complete(held, state.location, -1), fetched) if holds_one else fetched
        # The second object is fetched starting from `end`, and its door may have been opened for the first.
        second = self._fetch_costs(state, game.location_of[end], 0, complete, placed)
        pairs = min(
            (one + other for a, one in first.items() for b, other in second.items() if a != b), default=inf
        )
        total = free + pairs
        if holds_one:
            total = min(total, complete(held, state.location, -1) + min(second.values(), default=inf))
        return total - is_closed(game, state, end)

    def _fetch_costs(
        self, state: State, location: int, doors: int, complete: CompletionCost, placed: int
    ) -> dict[int, float]:
        """Return, for each object that the goal needs, the steps to fetch it from `location` and to finish.

        Opening a receptacle of the set `doors` counts as a step.
        """
        game = self.game
        costs: dict[int, float] = {}
        wanted = game.goal.objects & game.pickupable & ~placed
        inside, width = state.inside, game.width
        for receptacle, at in enumerate(game.location_of):
            found = inside >> receptacle * width & wanted
            if not found or at < 0:
                continue
            steps = 1 + (at != location) + (doors >> receptacle & 1)
            for thing in members(found):
                costs[thing] = min(costs.get(thing, inf), steps + complete(thing, at, receptacle))
        return costs

    def _put_costs(self, state: State, end: int) -> CompletionCost:
        """Return the cost of treating a held object and putting it into `end`."""
        game, goal = self.game, self.goal
        target = game.location_of[end]
        lying = game.contents(state, end)
        putting = 1 + is_closed(game, state, end)

        def complete(thing: int, location: int, source: int) -> float:
            missing = [flag for flag in goal.flags if not getattr(state, flag) >> thing & 1]
            # An object that is in two receptacles remains in the one from which it is not taken.
            done = source != end and lying >> thing & 1
            if not done and not game.accepts[end] >> thing & 1:
                return inf
            back = 0 if done else putting
            if not missing:
                return back + (not done and location != target)
            walks = 0.0
            for flag in missing:
                if flag not in self.treatments:
                    return inf
                sites = [game.location_of[receptacle] for receptacle in self.treatments[flag][0]]
                ways = ((site != location) + (not done and site != target) for site in sites)
                walks = max(walks, min(ways, default=inf))
            return walks + len(missing) + back

        return complete

    def _light_costs(self, state: State, end: int) -> CompletionCost:
        """Return the cost of carrying a held object to the lamp and switching the lamp on."""
        lamps = self.game.contents(state, end) & self.goal.lamps
        target = self.game.location_of[end]
        switch = 0 if state.toggled & lamps else 1
        return lambda thing, location, source: (location != target) + switch
