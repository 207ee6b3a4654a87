"""Level files: splits by folder, indexing without reading, and errors with file and line."""

import os
import pickle
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import arboretum  # noqa: F401
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.sokoban import level_files
from arboretum.envs.sokoban.level_files import LevelFiles, parse_levels

TO_FILE = str.maketrans("_OXP", " .$@")
LEVEL = "\n".join(
    [
        "##########",
        "#@ $.    #",
        "#  $.    #",
        "#  $.    #",
        "#  $.    #",
        *["#        #"] * 4,
        "##########",
    ]
)


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)


def numbered_level(k: int) -> str:
    """Return level k of a test file; the player's position encodes k modulo 32."""
    rows = [list(row.replace("@", " ")) for row in LEVEL.split("\n")]
    rows[5 + k % 4][1 + k // 4 % 8] = "@"
    return "\n".join("".join(row) for row in rows)


def write_level_file(path: Path, levels: int, number=lambda k: k) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"; {number(k)}\n{numbered_level(k)}\n\n" for k in range(levels)))


@pytest.fixture
def folder(tmp_path):
    write_level_file(tmp_path / "boxoban/medium/train/000.txt", 120)
    write_level_file(tmp_path / "boxoban/medium/train/001.txt", 7)
    write_level_file(tmp_path / "boxoban/medium/valid/000.txt", 12)
    write_level_file(
        tmp_path / "boxoban/hard/000.txt", 3, number=lambda k: 10 * k + 4
    )  # a subset of a file keeps the original numbers
    (tmp_path / "boxoban/LICENSE.txt").write_text("not a level\n")
    return tmp_path


def test_tasks_are_named_by_folder_file_and_number(folder):
    env = gym.make("TextBoxoban-v0", data=folder).unwrapped
    tasks = env.tasks
    assert len(tasks) == len(list(tasks)) == 120 + 7 + 12 + 3
    assert list(tasks) == [tasks[i] for i in range(len(tasks))] == tasks[:]
    assert tasks[:4] == ["hard/000#4", "hard/000#14", "hard/000#24", "medium/train/000#0"]
    assert tasks[-1] == "medium/valid/000#11"
    assert "medium/train/000#119" in tasks and "medium/train/000#120" not in tasks
    assert all(
        wrong not in tasks
        for wrong in ("hard/000#" + "4" * 5000, "hard/000#0", "hard/000", "hard/000#04", "hard/001#4", "#", 5)
    )


@pytest.mark.parametrize(
    ("split", "count"), [("medium", 139), ("medium/train", 127), ("valid", 12), ("hard", 3), (None, 142)]
)
def test_split_selects_folders(folder, split, count):
    env = gym.make("TextBoxoban-v0", data=folder, split=split).unwrapped
    assert len(env.tasks) == count
    assert env.reset(seed=1)[1]["task"] in env.tasks


def test_every_task_opens_the_level_it_names(folder):
    env = gym.make("TextBoxoban-v0", data=folder)
    for task in env.unwrapped.tasks:
        text, info = env.reset(seed=0, options={"task": task})
        assert info["task"] == task
        k = int(task.rpartition("#")[2])
        assert text.translate(TO_FILE) == numbered_level((k - 4) // 10 if task.startswith("hard") else k)


def test_files_of_the_published_layout_are_opened_without_parsing(folder, monkeypatch):
    monkeypatch.setattr(level_files, "parse_levels", lambda *_: pytest.fail("the file was parsed"))
    files = LevelFiles(folder / "boxoban", "medium")
    assert len(files) == 139
    assert files.board("medium/train/000#117").translate(TO_FILE) == numbered_level(117)


def test_data_variable_selects_files_and_its_absence_generates_levels(folder, monkeypatch):
    assert gym.make("TextBoxoban-v0").unwrapped.tasks[0] == "any/0"
    monkeypatch.setenv("ARBORETUM_DATA", str(folder))
    assert gym.make("TextBoxoban-v0").unwrapped.tasks[0] == "hard/000#4"
    assert gym.make("TextBoxoban-v0", generated=True, split="test").unwrapped.tasks[0] == "test/0"


def test_generated_level_has_four_boxes_on_a_ten_by_ten_board():
    env = gym.make("TextBoxoban-v0")
    text, info = env.reset(seed=3)
    rows = text.split("\n")
    assert [len(row) for row in rows] == [10] * 10 and text.count("X") == 4
    for action in env.unwrapped.expert_actions():
        _, _, terminated, _, info = env.step(action)
    assert terminated and info["success"]


def test_gymnasium_env_checker_passes_with_files_and_generated_levels(folder):
    check_env(gym.make("TextBoxoban-v0", data=folder).unwrapped, skip_render_check=True)
    check_env(gym.make("TextBoxoban-v0", generated=True).unwrapped, skip_render_check=True)


def test_snapshot_is_restored_where_its_level_is_a_task_of_the_same_files(folder):
    env = gym.make("TextBoxoban-v0", data=folder, split="hard").unwrapped
    env.reset(seed=0)
    env.step("Down")
    twin = gym.make("TextBoxoban-v0", data=folder).unwrapped
    twin.restore(pickle.loads(pickle.dumps(env.snapshot())))
    assert twin.step("Right") == env.step("Right")
    with pytest.raises(ConfigurationError, match="not in"):
        gym.make("TextBoxoban-v0", data=folder, split="medium").unwrapped.restore(env.snapshot())
    made = gym.make("TextBoxoban-v0", generated=True).unwrapped
    with pytest.raises(ConfigurationError, match="snapshot"):
        made.restore(env.snapshot())


GOOD = f"; 0\n{LEVEL}\n\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (GOOD + f"; 1\n{LEVEL[:60]}", 19, "has 5 cells.*cut off"),
        (GOOD + f"; 1\n{LEVEL[:65]}", 19, "edge.*cut off"),
        (GOOD + "; 1\n", 14, "cut off"),
        (GOOD + f"; 1\n{LEVEL.replace('@', '%')}\n", 15, "'%' is not part of a level"),
        (GOOD + f"; 1\n{LEVEL.replace('@', ' ')}\n", 14, "0 players"),
        (GOOD + f"; 1\n{LEVEL.replace('@ ', '@@')}\n", 14, "2 players"),
        (GOOD + f"; 1\n{LEVEL.replace('@ $', '@  ')}\n", 14, "3 boxes but 4 targets"),
        (GOOD + f"; 1\n{LEVEL.replace(' ' * 8, ' ' * 7)}\n", 19, "has 9 cells"),
        (GOOD + f"; 1\n{LEVEL.replace('#  $', '   $', 1)}\n", 16, "edge"),
        (GOOD + f"; 1\n{LEVEL.replace('$', '#').replace('.', '#')}\n", 14, "no box"),
        (GOOD + f"; 0\n{LEVEL}\n", 13, "twice"),
        (GOOD + f"level 1\n{LEVEL}\n", 13, "header"),
        (GOOD + f"\n\n{LEVEL}\n", 15, "header"),
        (f"; {'1' * 5000}\n{LEVEL}\n", 1, "header"),
        ("", 1, "no level"),
        (f"; 0\n{'#' * 31}\n{'#' * 31}\n{'#' * 31}\n", 2, "larger"),
    ],
)
def test_malformed_file_is_rejected_with_its_line_on_opening(tmp_path, text, line, message):
    path = tmp_path / "boxoban" / "mine" / "000.txt"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        gym.make("TextBoxoban-v0", data=tmp_path)
    assert error.value.line == line and str(path) in str(error.value)


def test_damage_that_keeps_the_file_size_is_reported_when_the_level_is_opened(folder):
    path = folder / "boxoban/medium/train/000.txt"
    lines = path.read_text().split("\n")
    lines[12 * 50 + 3] = "#  $?    #"
    path.write_text("\n".join(lines))
    env = gym.make("TextBoxoban-v0", data=folder, split="medium/train")
    env.reset(seed=0, options={"task": "medium/train/000#49"})
    with pytest.raises(DataError, match="line 604") as error:
        env.reset(seed=0, options={"task": "medium/train/000#50"})
    assert str(path) in str(error.value)
    env.reset(seed=0, options={"task": "medium/train/000#51"})


def test_bytes_that_are_not_text_are_rejected_with_their_line(tmp_path):
    path = tmp_path / "boxoban" / "mine" / "000.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD.encode() + b"; 1\n\xff\xfe")
    with pytest.raises(DataError, match="line 14"):
        gym.make("TextBoxoban-v0", data=tmp_path)


def test_small_file_that_is_numbered_from_one_has_these_numbers(tmp_path):
    write_level_file(tmp_path / "boxoban/mine/a.txt", 3, number=lambda k: k + 1)
    env = gym.make("TextBoxoban-v0", data=tmp_path)
    assert list(env.unwrapped.tasks) == ["mine/a#1", "mine/a#2", "mine/a#3"]
    for k, task in enumerate(env.unwrapped.tasks):
        assert env.reset(options={"task": task})[0].translate(TO_FILE) == numbered_level(k)


def test_file_with_windows_line_endings_is_read(tmp_path):
    path = tmp_path / "boxoban" / "mine" / "000.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD.replace("\n", "\r\n").encode())
    text, _ = gym.make("TextBoxoban-v0", data=tmp_path).reset(seed=0)
    assert text.translate(TO_FILE) == LEVEL


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"split": "hrad"}, r"unknown split of .*boxoban 'hrad'; did you mean hard"),
        ({"data": "/no/such/folder"}, "not a folder"),
        ({"generated": True, "split": "hard"}, "choose train, valid, test"),
    ],
)
def test_bad_setting_raises_a_helpful_error(folder, kwargs, message):
    if "data" not in kwargs and "generated" not in kwargs:
        kwargs = {**kwargs, "data": folder}
    with pytest.raises(ConfigurationError, match=message):
        gym.make("TextBoxoban-v0", **kwargs)


def test_empty_folder_is_rejected_with_an_example_file_name(tmp_path):
    (tmp_path / "boxoban").mkdir()
    with pytest.raises(DataError, match=r"medium/valid/000\.txt"):
        gym.make("TextBoxoban-v0", data=tmp_path)


def test_unknown_task_is_rejected_with_nearest_names(folder):
    env = gym.make("TextBoxoban-v0", data=folder)
    with pytest.raises(ConfigurationError, match="did you mean"):
        env.reset(seed=0, options={"task": "medium/valid/000#12"})


DATA = os.environ.get("ARBORETUM_DATA")


@pytest.mark.skipif(
    not (DATA and Path(DATA, "boxoban").is_dir()), reason="needs the Boxoban files (ARBORETUM_DATA)"
)
def test_published_files_parse_to_the_levels_read_by_offset():
    files = LevelFiles(Path(DATA, "boxoban"))
    for name in sorted({task.rpartition("#")[0] for task in files}):
        path = files.folder / f"{name}.txt"
        parsed = parse_levels(path.read_text(), path)
        assert list(parsed) == list(range(len(parsed)))
        assert {(board.count("X"), board.count("\n")) for board in parsed.values()} == {(4, 9)}
        for number, board in parsed.items():
            assert files.board(f"{name}#{number}") == board
