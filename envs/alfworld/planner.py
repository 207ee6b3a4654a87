"""Shortest plans, by A* over errands.

Any place is one `go to` away, so a plan is a few errands: fetch a thing, wash it, put it there. An errand is a
walk (if need be), an opened door (if need be) and one act, carried out by the engine's own `effect`. The search
is run for each receptacle in which the task may end; its heuristic counts the steps of fetching and bringing the
nearest things, which is exact unless hands must first be freed or two things wait behind one door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from .model import NOTHING, Action, Game, State, members
from .rules import effect, legal, shut, won

_TREATMENTS = {"clean": "cleanobject", "hot": "heatobject", "cool": "coolobject"}

Errand: TypeAlias = tuple[list[Action], State]

Bring: TypeAlias = Callable[[int, int, int], float]
"""The steps to finish with an object held at a location, taken from a receptacle (-1: held already)."""


def plan(game: Game, state: State) -> list[Action] | None:
    """A shortest sequence of actions after which the game is won; None if there is none.

    Tasks that want a thing sliced, which ALFWorld does not have, are not planned: None.
    """
    if won(game, state):
        return []
    search = _Search(game)
    ends = sorted((search.estimate(state, end), end) for end in search.ends(state))
    best: list[Action] | None = None
    for estimate, end in ends:
        if estimate == inf or (best is not None and estimate >= len(best)):
            break
        found = search.run(state, end, inf if best is None else len(best))
        if found is not None:
            best = found
    return best


class _Search:
    def __init__(self, game: Game) -> None:
        self.game = game
        self.goal = game.goal
        self.verbs = game.dialect.wording.templates
        places: dict[str, int] = {"clean": game.cleaners, "hot": game.heaters, "cool": game.coolers}
        able: dict[str, int] = {"clean": game.cleanable, "hot": game.heatable, "cool": game.coolable}
        self.treating = {
            flag: ([r for r in members(places[flag]) if game.location_of[r] >= 0], able[flag], verb)
            for flag, verb in _TREATMENTS.items()
            if verb in self.verbs
        }

    def ends(self, state: State) -> list[int]:
        """The receptacles where the task may end: targets, or those that hold a lamp."""
        game, goal = self.game, self.goal
        if goal.kind == "place":
            return [r for r in members(goal.receptacles) if game.location_of[r] >= 0]
        return [r for r, at in enumerate(game.location_of) if at >= 0 and game.contents(state, r) & goal.lamps]

    def run(self, start: State, end: int, bound: float) -> list[Action] | None:
        """A* towards a win with end `end`, in fewer than `bound` steps."""
        queue: list[tuple[float, int, int, State, list[Action]]] = [(self.estimate(start, end), 0, 0, start, [])]
        costs = {start: 0}
        count = 0
        while queue:
            _, _, _, state, path = heappop(queue)
            if len(path) > costs[state]:
                continue
            if won(self.game, state):
                return path
            for actions, after in self.errands(state, end):
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

    # ------------------------------------------------------------------ what can be done next

    def errands(self, state: State, end: int) -> Iterator[Errand]:
        game, goal, held = self.game, self.goal, state.held
        if goal.kind == "light":
            yield from self._at_lamp(state, end)
        if held == NOTHING:
            for receptacle, at in enumerate(game.location_of):
                if at >= 0:
                    for thing in members(game.contents(state, receptacle) & goal.objects & game.pickupable):
                        yield from self._errand(state, receptacle, Action("pickupobject", thing, receptacle))
            return
        if goal.objects >> held & 1:
            for flag in goal.flags:
                if flag in self.treating and not getattr(state, flag) >> held & 1:
                    receptacles, able, verb = self.treating[flag]
                    if able >> held & 1:
                        for receptacle in receptacles:
                            yield from self._errand(state, receptacle, Action(verb, held, receptacle))
        for receptacle, accepted in enumerate(game.accepts):
            if accepted >> held & 1 and game.location_of[receptacle] >= 0:
                yield from self._errand(state, receptacle, Action("putobject", held, receptacle))

    def _at_lamp(self, state: State, end: int) -> Iterator[Errand]:
        for lamp in members(self.game.contents(state, end) & self.goal.lamps):
            if not state.toggled >> lamp & 1:
                yield from self._errand(state, end, Action("toggleobject", lamp, end))
            else:
                yield from self._errand(state, end, None)

    def _errand(self, state: State, receptacle: int, act: Action | None) -> Iterator[Errand]:
        """Walk to a receptacle, open it if the act needs it open, and act. Nothing where that is impossible."""
        steps = []
        if self.game.location_of[receptacle] != state.location:
            steps.append(Action("gotolocation", 0, receptacle))
        if act is not None and act.verb in ("pickupobject", "putobject") and shut(self.game, state, receptacle):
            steps.append(Action("openobject", 0, receptacle))
        if act is not None:
            steps.append(act)
        for step in steps:
            if step.verb not in self.verbs or not legal(self.game, state, step):
                return
            state = effect(self.game, state, step)
        if steps:
            yield steps, state

    # ------------------------------------------------------------------ how far it is, at least

    def estimate(self, state: State, end: int) -> float:
        """A lower bound of the steps to a win with end `end`; infinite where there is none."""
        game, goal, held = self.game, self.goal, state.held
        bring: Bring
        if goal.kind == "light":
            bring = self._light_costs(state, end)
            missing, settled = 1, 0
        else:
            bring = self._put_costs(state, end)
            settled = game.contents(state, end) & goal.objects
            for flag in goal.flags:
                settled &= getattr(state, flag)
            missing = goal.number - settled.bit_count()
            if missing <= 0:
                return 0
        holds_one = held != NOTHING and goal.objects >> held & 1
        free = 0 if held == NOTHING else 1
        # Behind the end's own door a thing may lie, too: bringing it there counts that door already.
        doors = game.openable & ~state.opened & ~(1 << end if goal.kind == "place" else 0)
        first = self._fetch_costs(state, state.location, doors, bring, settled)
        if missing == 1:
            fetched = free + min(first.values(), default=inf)
            return min(bring(held, state.location, -1), fetched) if holds_one else fetched
        # The second of two is fetched from the end, and its door may have been opened for the first.
        second = self._fetch_costs(state, game.location_of[end], 0, bring, settled)
        pairs = min(
            (one + other for a, one in first.items() for b, other in second.items() if a != b), default=inf
        )
        total = free + pairs
        if holds_one:
            total = min(total, bring(held, state.location, -1) + min(second.values(), default=inf))
        return total - shut(game, state, end)

    def _fetch_costs(
        self, state: State, location: int, doors: int, bring: Bring, settled: int
    ) -> dict[int, float]:
        """For each thing wanted, the steps to get it from where it lies and bring it, starting at `location`.

        Opening one of the receptacles `doors` counts as a step.
        """
        game = self.game
        costs: dict[int, float] = {}
        wanted = game.goal.objects & game.pickupable & ~settled
        inside, width = state.inside, game.width
        for receptacle, at in enumerate(game.location_of):
            found = inside >> receptacle * width & wanted
            if not found or at < 0:
                continue
            steps = 1 + (at != location) + (doors >> receptacle & 1)
            for thing in members(found):
                costs[thing] = min(costs.get(thing, inf), steps + bring(thing, at, receptacle))
        return costs

    def _put_costs(self, state: State, end: int) -> Bring:
        """The steps to treat a thing held at a location and put it into `end`."""
        game, goal = self.game, self.goal
        target = game.location_of[end]
        lying = game.contents(state, end)
        putting = 1 + shut(game, state, end)

        def bring(thing: int, location: int, source: int) -> float:
            missing = [flag for flag in goal.flags if not getattr(state, flag) >> thing & 1]
            # A thing that lies in two receptacles counts as lying in the one it was not taken from.
            done = source != end and lying >> thing & 1
            if not done and not game.accepts[end] >> thing & 1:
                return inf
            back = 0 if done else putting
            if not missing:
                return back + (not done and location != target)
            walks = 0.0
            for flag in missing:
                if flag not in self.treating:
                    return inf
                sites = [game.location_of[receptacle] for receptacle in self.treating[flag][0]]
                ways = ((site != location) + (not done and site != target) for site in sites)
                walks = max(walks, min(ways, default=inf))
            return walks + len(missing) + back

        return bring

    def _light_costs(self, state: State, end: int) -> Bring:
        """The steps to carry a thing held at a location to the lamp and switch it on."""
        lamps = self.game.contents(state, end) & self.goal.lamps
        target = self.game.location_of[end]
        switch = 0 if state.toggled & lamps else 1
        return lambda thing, location, source: (location != target) + switch
