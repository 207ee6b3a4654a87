"""The solver against breadth-first search over single moves, and on real levels."""

import os
from collections import deque
from pathlib import Path

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401
from arboretum.envs.boxoban import GENERATED
from arboretum.envs.sokoban.generator import Spec, generate, layers
from arboretum.envs.sokoban.level_files import parse_levels
from arboretum.envs.sokoban.rules import STANDARD, Masks
from arboretum.envs.sokoban.solver import solve

STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


class Board:
    """Board as sets of cells, with a reference search over single moves."""

    def __init__(self, text):
        cells = {(r, c): s for r, row in enumerate(text.split("\n")) for c, s in enumerate(row)}
        self.floor = {at for at, s in cells.items() if s != "#"}
        self.targets = frozenset(at for at, s in cells.items() if s in "O√S")
        self.boxes = frozenset(at for at, s in cells.items() if s in "X√")
        (self.player,) = (at for at, s in cells.items() if s in "PS")

    def after(self, player, boxes, step):
        ahead = (player[0] + step[0], player[1] + step[1])
        if ahead not in self.floor:
            return None
        if ahead in boxes:
            beyond = (ahead[0] + step[0], ahead[1] + step[1])
            if beyond not in self.floor or beyond in boxes:
                return None
            boxes = boxes - {ahead} | {beyond}
        return ahead, boxes

    def fewest(self, of_pushes=False):
        """Return the number of moves (or pushes) of an optimal solution by 0-1 breadth-first search, or None."""
        start = self.player, self.boxes
        best, queue = {start: 0}, deque([(0, start)])
        while queue:
            cost, state = queue.popleft()
            if cost > best[state]:
                continue
            if state[1] == self.targets:
                return cost
            for step in STEPS.values():
                next_state = self.after(*state, step)
                if next_state is None:
                    continue
                price = int(next_state[1] != state[1]) if of_pushes else 1
                if cost + price < best.get(next_state, 10**9):
                    best[next_state] = cost + price
                    (queue.append if price else queue.appendleft)((cost + price, next_state))
        return None

    def replay(self, plan):
        """Return (solved, pushes) after a plan in which every action must move the player."""
        state, pushes = (self.player, self.boxes), 0
        for action in plan:
            next_state = self.after(*state, STEPS[action])
            assert next_state is not None, "a move of the plan is blocked"
            pushes += next_state[1] != state[1]
            state = next_state
        return state[1] == self.targets, pushes


@st.composite
def boards(draw):
    """Draw any board, solvable or not: random walls, and one to three boxes and targets anywhere."""
    rows, columns = draw(st.integers(3, 4)), draw(st.integers(3, 5))
    boxes = draw(st.integers(1, 3))
    spots = draw(st.permutations([(r, c) for r in range(rows) for c in range(columns)]))
    placed, targets, player = set(spots[:boxes]), set(draw(st.permutations(spots))[:boxes]), spots[boxes]
    walls = set(spots[boxes + 1 :][: draw(st.integers(0, 4))]) - targets
    cells = [["#"] * (columns + 2) for _ in range(rows + 2)]
    for at in spots:
        symbol = "#" if at in walls else "√X"[at not in targets] if at in placed else "O_"[at not in targets]
        if at == player:
            symbol = "S" if at in targets else "P"
        cells[at[0] + 1][at[1] + 1] = symbol
    return "\n".join("".join(row) for row in cells)


@settings(max_examples=300, deadline=None)
@given(boards())
def test_plans_are_optimal_and_unsolvable_boards_have_none(text):
    board, masks = Board(text), Masks.of(text, STANDARD)
    plan = solve(masks)
    fewest = board.fewest()
    if fewest is None:
        assert plan is None and solve(masks, "pushes") is None
        return
    assert plan is not None and len(plan) == fewest and board.replay(plan)[0]
    by_pushes = solve(masks, "pushes")
    assert by_pushes is not None and board.replay(by_pushes) == (True, board.fewest(of_pushes=True))


@pytest.mark.parametrize("spec", [Spec(6, 1, 3, 9), Spec(7, 2, 10, 19), Spec(8, 2, 20, 40)])
def test_plans_of_generated_levels_have_the_fewest_moves(spec):
    for index in range(40 if spec.boxes == 1 else 12):
        text = generate(spec, f"any/{index}")
        assert len(solve(Masks.of(text, STANDARD))) == Board(text).fewest()


def test_backward_layers_contain_exactly_the_solvable_states_at_their_distance():
    text = "######\n#O__##\n#_X__#\n#__XO#\n#P_#_#\n######"
    board, masks = Board(text), Masks.of(text, STANDARD)
    stride = masks.stride
    listed = {}
    for distance, layer in enumerate(layers(stride, masks.floor, masks.targets)):
        for boxes, players in layer.items():
            for cell in range(players.bit_length()):
                if players >> cell & 1:
                    at = frozenset(divmod(i, stride) for i in range(boxes.bit_length()) if boxes >> i & 1)
                    assert (divmod(cell, stride), at) not in listed
                    listed[divmod(cell, stride), at] = distance
    for (player, boxes), distance in list(listed.items())[::37]:
        board.player, board.boxes = player, boxes
        assert board.fewest() == distance
    floor = sorted(board.floor)
    for pair in [frozenset((a, b)) for a in floor for b in floor if a < b][::11]:
        board.boxes = pair
        board.player = next(at for at in floor if at not in pair)
        assert board.fewest() == listed.get((board.player, pair))


def test_exhausted_budget_ends_the_search():
    masks = Masks.of(generate(GENERATED, "any/3"), STANDARD)
    assert solve(masks) is not None
    assert solve(masks, budget=3) is None


def test_solved_board_has_an_empty_plan():
    assert solve(Masks.of("#####\n#P√_#\n#####", STANDARD)) == []


def test_expert_plan_is_optimal_mid_episode_and_none_in_unsolvable_positions():
    env = gym.make("TextSokoban-v0", max_steps=None)
    env.reset(seed=0)
    dead = alive = 0
    for seed in range(40):
        env.reset(seed=seed)
        for action in ("Up", "Left", "Down", "Right", "Up", "Up", "Left"):
            if env.step(action)[2]:
                assert env.unwrapped.expert_actions() is None
                break
            plan = env.unwrapped.expert_actions()
            text = env.unwrapped.state_key()
            fewest = Board(text).fewest()
            assert (plan is None) == (fewest is None)
            if plan is None:
                dead += 1
            else:
                alive += 1
                assert len(plan) == fewest
    assert dead > 5 and alive > 50


def test_following_the_expert_step_by_step_searches_once(monkeypatch):
    from arboretum.envs.sokoban import board_env

    calls = []
    monkeypatch.setattr(board_env, "find_plan", lambda *args: calls.append(args) or solve(*args))
    env = gym.make("TextBoxoban-v0", generated=True)
    env.reset(seed=8)
    terminated, steps = False, 0
    while not terminated:
        terminated = env.step(env.unwrapped.expert_actions()[0])[2]
        steps += 1
    assert [len(call) for call in calls] == [2, 1] and steps > 10  # one search by pushes and one by moves


DATA = os.environ.get("ARBORETUM_DATA")
FILES = sorted(Path(DATA, "boxoban").glob("*/**/*.txt")) if DATA else []


@pytest.mark.heavy
@pytest.mark.skipif(not FILES, reason="needs the Boxoban files (ARBORETUM_DATA)")
@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_plans_of_published_levels_solve_them(path):
    levels = list(parse_levels(path.read_text(), path).values())
    for text in levels[:: max(1, len(levels) // 12)]:
        plan = solve(Masks.of(text, STANDARD))
        assert plan is not None and Board(text).replay(plan)[0]
        by_pushes = solve(Masks.of(text, STANDARD), "pushes")
        assert by_pushes is not None and len(by_pushes) >= len(plan)
        assert Board(text).replay(by_pushes)[0]
        assert Board(text).replay(by_pushes)[1] <= Board(text).replay(plan)[1]
