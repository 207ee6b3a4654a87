"""The rules against a second, straightforward simulator on sets of cells, and the texts of the environment."""

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401  (registers the environments)
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.sokoban.rules import VOCABULARIES, Vocabulary

IDS = [
    "TextSokoban-v0",
    "TextSokobanNewVocab-v0",
    "TextLargeSokoban-v0",
    "TextSokobanEasy-v0",
    "TextSokobanMedium-v0",
    "TextSokobanHard-v0",
]
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class ReferenceBoard:
    """Reference simulator on sets of (row, column)."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.v = vocabulary
        self.rows = text.split("\n")
        cells = {(r, c): s for r, row in enumerate(self.rows) for c, s in enumerate(row)}
        v = vocabulary
        self.walls = {at for at, s in cells.items() if s == v.wall}
        self.targets = {at for at, s in cells.items() if s in (v.target, v.box_on_target, v.player_on_target)}
        self.boxes = {at for at, s in cells.items() if s in (v.box, v.box_on_target)}
        (self.player,) = (at for at, s in cells.items() if s in (v.player, v.player_on_target))

    def move(self, direction: str) -> tuple[float, bool, bool]:
        """Apply one move and return (reward, solved, changed)."""
        dr, dc = STEPS[direction]
        ahead = (self.player[0] + dr, self.player[1] + dc)
        beyond = (ahead[0] + dr, ahead[1] + dc)
        on_target = len(self.boxes & self.targets)
        if ahead in self.walls or (ahead in self.boxes and beyond in self.walls | self.boxes):
            return -0.1, False, False
        if ahead in self.boxes:
            self.boxes = self.boxes - {ahead} | {beyond}
        self.player = ahead
        reward = -0.1 + len(self.boxes & self.targets) - on_target
        solved = self.boxes == self.targets
        return reward + (10 if solved else 0), solved, True

    def text(self) -> str:
        def symbol(at: tuple[int, int]) -> str:
            v, on = self.v, at in self.targets
            if at in self.walls:
                return v.wall
            if at in self.boxes:
                return v.box_on_target if on else v.box
            if at == self.player:
                return v.player_on_target if on else v.player
            return v.target if on else v.floor

        return "\n".join("".join(symbol((r, c)) for c in range(len(row))) for r, row in enumerate(self.rows))


@settings(max_examples=150, deadline=None)
@given(
    env_id=st.sampled_from([*IDS, "TextBoxoban-v0"]),
    index=st.integers(0, 2**31 - 1),
    walk=st.lists(st.sampled_from(sorted(STEPS)), max_size=60),
)
def test_every_move_agrees_with_the_reference_simulator(env_id, index, walk):
    kwargs = {"generated": True} if env_id == "TextBoxoban-v0" else {}
    env = gym.make(env_id, max_steps=None, **kwargs)
    text, _ = env.reset(seed=0, options={"task": index})
    reference = ReferenceBoard(text, env.unwrapped.vocabulary)
    for direction in walk:
        reward, solved, changed = reference.move(direction)
        text, paid, terminated, truncated, info = env.step(direction.title())
        assert text == reference.text()
        assert paid == pytest.approx(reward)
        assert (terminated, info["success"], info["changed"]) == (solved, solved, changed)
        assert info["valid"] and not truncated
        if solved:
            break


def write_levels(folder, *boards):
    split = folder / "boxoban" / "mine"
    split.mkdir(parents=True)
    text = "".join(f"; {k}\n{board}\n\n" for k, board in enumerate(boards))
    (split / "000.txt").write_text(text)
    return folder


def test_pushes_between_and_off_targets_pay_the_documented_rewards(tmp_path):
    board = "#########\n#@*. $ ##\n#########"
    env = gym.make("TextBoxoban-v0", data=write_levels(tmp_path, board))
    text, _ = env.reset(seed=0)
    assert text == "#########\n#P√O_X_##\n#########"
    # From target to target (no change), off the target, and against the second box (blocked).
    seen = [env.step("Right")[:2] for _ in range(3)]
    assert [text.split("\n")[1] for text, _ in seen] == ["#_S√_X_##", "#_OSXX_##", "#_OSXX_##"]
    assert [reward for _, reward in seen] == pytest.approx([-0.1, -1.1, -0.1])


def test_walking_over_targets_keeps_them(tmp_path):
    board = "#######\n#@.. .#\n#  $$$#\n#     #\n#######"
    env = gym.make("TextBoxoban-v0", data=write_levels(tmp_path, board))
    env.reset(seed=0)
    assert env.step("Right")[0].split("\n")[1] == "#_SO_O#"
    assert env.step("Right")[0].split("\n")[1] == "#_OS_O#"
    text, reward, *_ = env.step("Down")
    assert text.split("\n")[1:4] == ["#_OO_O#", "#__PXX#", "#__X__#"] and reward == pytest.approx(-0.1)


@settings(max_examples=60, deadline=None)
@given(env_id=st.sampled_from(IDS), index=st.integers(0, 10_000))
def test_expert_solves_every_id_within_its_step_limit_for_the_documented_reward(env_id, index):
    env = gym.make(env_id)
    text, _ = env.reset(seed=0, options={"task": index})
    boxes = text.count(env.unwrapped.vocabulary.box)
    plan = env.unwrapped.expert_actions()
    total = 0.0
    for action in plan:
        assert env.unwrapped.expert_actions()[0] == action  # a second call continues the same plan
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
    assert terminated and info["success"] and not truncated
    assert total == pytest.approx(10 + boxes - 0.1 * len(plan))


@pytest.mark.parametrize("action", ["", "jump", "Up Up", "\x00\x1b[31m", "U" * 100_000, "↑"])
def test_invalid_action_is_refused_without_cost(action):
    env = gym.make("TextSokoban-v0")
    board, _ = env.reset(seed=1)
    text, reward, terminated, truncated, info = env.step(action)
    assert text.endswith(board) and "Up, Down, Left or Right" in text
    assert (reward, terminated, truncated, info["valid"], info["changed"]) == (0.0, False, False, False, False)


@pytest.mark.parametrize("action", ["UP", " up ", "uP", "up\n"])
def test_case_and_white_space_of_actions_are_ignored(action):
    env, twin = gym.make("TextSokoban-v0"), gym.make("TextSokoban-v0")
    env.reset(seed=4), twin.reset(seed=4)
    assert env.step(action) == twin.step("Up")


def test_blocked_move_is_valid_and_costs_a_move():
    env = gym.make("TextSokoban-v0")
    env.reset(seed=2)
    for _ in range(8):
        before = env.unwrapped.state_key()
        _, reward, _, _, info = env.step("Left")
    assert info["valid"] and not info["changed"] and reward == pytest.approx(-0.1)
    assert env.unwrapped.state_key() == before
    assert env.unwrapped.admissible_actions() == ("Up", "Down", "Left", "Right")


@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextSokobanNewVocab-v0"])
@pytest.mark.parametrize("observation_format", ["grid", "coord", "grid_coord"])
def test_instructions_explain_every_symbol_and_the_board_size(env_id, observation_format):
    for size in (6, 9):
        env = gym.make(env_id, size=size, observation_format=observation_format)
        shown = set()
        for seed in range(30):
            text, _ = env.reset(seed=seed)
            for action in [*env.unwrapped.expert_actions()]:
                shown |= set(text.split("Grid Map:\n")[-1])
                text = env.step(action)[0]
            shown |= set(text.split("Grid Map:\n")[-1])
        instructions = env.unwrapped.instructions
        if observation_format == "coord":
            assert f"({size - 1}, {size - 1})" in instructions
            continue
        legend = instructions.split("The board's symbols: ")[1].split(".\n")[0].split(", ")
        symbols = {entry.split(" ", 1)[0] for entry in legend}
        assert shown - {"\n"} <= symbols == set(env.unwrapped.vocabulary)
        assert f"{size} rows and {size} columns" in instructions


def test_new_vocabulary_shows_the_same_levels():
    plain, new = gym.make("TextSokoban-v0"), gym.make("TextSokobanNewVocab-v0")
    table = str.maketrans("".join(VOCABULARIES["new"]), "".join(VOCABULARIES["standard"]))
    for seed in range(20):
        assert new.reset(seed=seed)[0].translate(table) == plain.reset(seed=seed)[0]


def parse_coordinates(text: str, label: str) -> set[tuple[int, int]]:
    for line in text.split("\n"):
        name, _, rest = line.partition(": ")
        if name == label:
            return {
                tuple(map(int, pair.strip("()").split(", "))) for pair in rest.replace("), (", ")|(").split("|")
            }
    return set()


@settings(max_examples=40, deadline=None)
@given(index=st.integers(0, 10_000), walk=st.lists(st.sampled_from(sorted(STEPS)), max_size=30))
def test_coordinates_agree_with_the_grid(index, walk):
    both = gym.make("TextLargeSokoban-v0", observation_format="grid_coord")
    alone = gym.make("TextLargeSokoban-v0", observation_format="coord")
    for env in (both, alone):
        text, _ = env.reset(seed=0, options={"task": index})
    for direction in ["none", *walk]:
        text, other = (both.step(direction)[0], alone.step(direction)[0])
        coordinates, grid = text.split("\nGrid Map:\n")
        assert "8 rows x 8 columns" in coordinates
        rows = grid.split("\n")
        for label, symbol in {
            "Targets": "O",
            "Boxes": "X",
            "Boxes on target": "√",
            "Player": "P",
            "Player on target": "S",
        }.items():
            expected = {(r, c) for r, row in enumerate(rows) for c, s in enumerate(row) if s == symbol}
            assert parse_coordinates(coordinates, label) == parse_coordinates(other, label) == expected
        inner = {(r, c) for r in range(1, 7) for c in range(1, 7) if rows[r][c] == "#"}
        assert parse_coordinates(other, "Inner walls") == inner


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"difficulty": "hrad"}, "did you mean hard"),
        ({"difficulty": "hard", "size": 9}, "either"),
        ({"size": 4}, "5 to 24"),
        ({"size": 6, "boxes": 6}, "more room"),
        ({"boxes": 0}, "1 to 6"),
        ({"vocabulary": "newer"}, "did you mean new"),
        ({"vocabulary": tuple("##OXPS.")}, "seven different"),
        ({"vocabulary": ("#",)}, "seven different"),
        ({"vocabulary": range(7)}, "seven different"),
        ({"boxes": True}, "boxes must be an integer from 1 to 6, not True"),
        ({"observation_format": "grids"}, "did you mean grid"),
        ({"split": "trian"}, "did you mean train"),
    ],
)
def test_bad_setting_raises_a_helpful_error(kwargs, message):
    with pytest.raises(ConfigurationError, match=message):
        gym.make("TextSokoban-v0", **kwargs)
