"""Tests of game files: other releases, malformed files, folders, archives and the cache of compiled games."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from arboretum.envs.alfworld import library, rules
from arboretum.envs.alfworld.gamefile import compile_game, display_names, read_game
from arboretum.envs.alfworld.generator import generate_file
from arboretum.envs.alfworld.pddl import Malformed
from arboretum.envs.data import archive_members
from arboretum.envs.errors import ConfigurationError, DataError

SPOTS = ("train/pick_and_place_simple-A-None-B-1", "valid_unseen/look_at_obj_in_light-A-None-B-2")


@pytest.fixture
def content() -> dict[str, Any]:
    return dict(generate_file("train/0"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folder with two games of each of two splits, in the original's layout."""
    for index in range(4):
        folder = tmp_path / "alfworld" / "json_2.1.1" / SPOTS[index % 2] / f"trial_{index}"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps(generate_file(f"train/{index}")))
    return tmp_path / "alfworld"


@pytest.fixture
def real(data: Path) -> dict[str, Any]:
    """A real game whose walkthrough puts an object down."""
    for _, text in archive_members(data / "alfworld" / "valid_unseen.tar.xz"):
        content: dict[str, Any] = json.loads(text)
        if any(command.startswith("move") for command in content["walkthrough"]):
            return content
    raise AssertionError("no such game")


def make(folder: Path, **options: Any) -> Any:
    return gym.make("TextALFWorld-v0", data=folder, **options).unwrapped


# ---------------------------------------------------------------------- other releases


def as_2_1_1(content: dict[str, Any]) -> dict[str, Any]:
    """Revert a file to release 2.1.1: put instead of move, locations instead of receptacles, no help."""
    grammar, domain = content["grammar"], content["pddl_domain"]
    for new, old in (
        ("move {o} to {r}", "put {o} in/on {r}"),
        ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
        ("You arrive at {r.name}.", "You arrive at {lend.name}."),
    ):
        assert new in grammar
        grammar = grammar.replace(new, old)
    help_action = domain.index("(:action help")
    return {
        **content,
        "grammar": grammar[: grammar.index("action help {")],
        "pddl_domain": domain[:help_action] + ")",
        "walkthrough": [c.replace("move", "put").replace(" to ", " in/on ") for c in content["walkthrough"]],
    }


def test_release_2_1_1_uses_its_own_commands_and_replies(real: dict[str, Any]) -> None:
    game = compile_game(as_2_1_1(real))
    state = game.start
    assert "help" not in rules.admissible_commands(game, state)
    assert rules.step(game, state, "help").text == "Nothing happens."
    places = set()
    for command in real["walkthrough"]:
        if command.startswith("move"):
            assert rules.step(game, state, command).text == "Nothing happens."
            _, thing, number, _, where, which = command.split()
            put = f"put {thing} {number} in/on {where} {which}"
            assert put in rules.admissible_commands(game, state)
            state, text, _ = rules.step(game, state, put)
            assert text == f"You put the {thing} {number} in/on the {where} {which}."
        else:
            state, text, _ = rules.step(game, state, command)
            if command.startswith("go to"):
                place, _, rest = text.removeprefix("You arrive at ").partition(". ")
                assert place.split()[0] == "loc"
                assert place.split()[1].isdigit()
                assert command.removeprefix("go to ") in rest
                places.add(place)
    assert rules.is_won(game, state)
    assert places


def test_locations_are_numbered_in_descending_order() -> None:
    ids = ["loc_bar__minus_1_bar_2_bar_0_bar_30", "loc_bar_4_bar_2_bar_0_bar_30", "agent1", "drawer_bar_1"]
    names = display_names(ids)
    assert names["loc_bar__minus_1_bar_2_bar_0_bar_30"] == "loc 1"  # "_" sorts after the digits
    assert names["loc_bar_4_bar_2_bar_0_bar_30"] == "loc 2"
    assert names["agent1"] == "agent1 "


def test_basins_are_named_after_their_part() -> None:
    names = display_names(["sink_bar_1_bar_2_bar_sinkbasin", "sink_bar_1_bar_2", "bathtub_bar_1_bar_sinkbasin"])
    assert list(names.values()) == ["bathtubbasin 1", "sink 1", "sinkbasin 1"]


def test_help_text_in_a_separate_rule_gives_the_same_reply(real: dict[str, Any]) -> None:
    """Later releases of ALFWorld have a separate rule for the help text."""
    grammar = real["grammar"]
    start = grammar.index("action help {")
    text = grammar[grammar.index('"', start + 40) :]
    shown = compile_game(real)
    inline = rules.step(shown, shown.start, "help").text
    assert inline.startswith("Available commands:\n  look:")
    assert inline.endswith("sharp object\n")
    assert inline in text
    rule = json.dumps({"help.feedback": [{"rhs": "\n" + inline}]})
    entry = f'action help {{ template :: "help"; feedback :: "#help.feedback#"; grammar :: """{rule}"""; }}'
    game = compile_game({**real, "grammar": grammar[:start] + entry})
    assert rules.step(game, game.start, "help").text == inline


def test_repaired_domain_allows_examining_objects_in_receptacles(real: dict[str, Any]) -> None:
    """Because of the original's stray comma, `examine` rejects objects that the agent does not hold."""
    fixed = real["pddl_domain"].replace("?l - location, ?r - receptacle", "?l - location ?r - receptacle")
    assert fixed != real["pddl_domain"]
    for domain, visible in ((real["pddl_domain"], False), (fixed, True)):
        game = compile_game({**real, "pddl_domain": domain})
        take = next(command for command in real["walkthrough"] if command.startswith("take"))
        state = game.start
        for command in real["walkthrough"][: real["walkthrough"].index(take)]:
            state = rules.step(game, state, command).state
        look = "examine " + take.split(" from ")[0].removeprefix("take ")
        assert (look in rules.admissible_commands(game, state)) is visible
        assert (rules.step(game, state, look).action is not None) is visible


# ---------------------------------------------------------------------- malformed files


def broken(content: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return malformed variants of a file, each with an expected part of the error message."""
    problem, domain, grammar = content["pddl_problem"], content["pddl_domain"], content["grammar"]
    doubling = "".join(f'"r{n}": [{{"rhs": "#r{n + 1}##r{n + 1}#"}}], ' for n in range(60))
    doubling += '"r60": [{"rhs": "."}], "put_aside": [{"rhs": "#r0#"}], "unused": ['

    def changed(**fields: Any) -> dict[str, Any]:
        return {**content, **fields}

    fact = "(:init\n"
    return {
        "a list": ([1], "not an object"),
        "no problem": ({k: v for k, v in content.items() if k != "pddl_problem"}, "no field pddl_problem"),
        "no walkthrough": ({k: v for k, v in content.items() if k != "walkthrough"}, "no field walkthrough"),
        "a number": (changed(grammar=3), "field grammar is not a text"),
        "unsolvable": (changed(solvable=False), "marked unsolvable"),
        "predicate": (changed(pddl_problem=problem.replace(fact, fact + "(floats agent1)\n")), "predicate floats"),
        "arity": (
            changed(pddl_problem=problem.replace(fact, fact + "(openable a b)\n")),
            "2 arguments instead of 1",
        ),
        "name": (changed(pddl_problem=problem.replace(fact, fact + "(openable moon)\n")), "moon"),
        "type": (changed(pddl_problem=problem.replace("(:objects\n", "(:objects\nx - planet\n")), "type planet"),
        "parenthesis": (changed(pddl_problem=problem + ")"), "parentheses"),
        "two starts": (changed(pddl_problem=problem.replace(fact, fact + "(atLocation agent1 l)\n")), "l, which"),
        "no goal": (changed(pddl_problem=problem.replace("(:goal", "(:aim")), "no :goal"),
        "goal": (changed(pddl_problem=problem.replace("(:goal ", "(:goal (not ") + ")"), ":goal"),
        "action": (changed(pddl_domain=domain[: domain.rindex(")")] + "(:action fly :parameters ()))"), "fly"),
        "effect": (
            changed(pddl_domain=domain.replace(":effect (opened ?r)", ":effect (holds ?a ?r)")),
            "openobject",
        ),
        "no domain": (changed(pddl_domain="hello"), "pddl_domain"),
        "grammar": (changed(grammar=grammar + "nonsense"), "grammar cannot be parsed"),
        "doubling rules": (changed(grammar=grammar.replace('"put_aside": [', doubling)), "more than 10000 times"),
        "nesting": (changed(pddl_domain="(" * 200 + domain), "nests parentheses more than 100 deep"),
        "rule": (changed(grammar=grammar.replace("#put_aside#", "#elsewhere#")), "elsewhere"),
        "question": (changed(grammar=grammar.replace("| holds(a:agent", "| hates(a:agent")), "hates"),
        "half a template": (changed(grammar=grammar.replace('"open {r}"', '"open r}"')), "openobject names no"),
        "listed": (
            changed(grammar=grammar.replace("o.indefinite + ' '", "o.indefinite + + ' '")),
            "grammar lists",
        ),
        "separator": (changed(grammar=grammar.replace('[{"rhs": ", "}]', '["; "]')), "no rule list_separator"),
        "task": (changed(grammar=grammar.replace('[{"rhs": "Your task', '[{"lhs": "Your task')), "no rule task"),
        "template": (changed(grammar=grammar.replace('"open {r}"', '"open {l}"')), "open {l}"),
        "no template": (changed(grammar=grammar.replace("action OpenObject", "action Other")), "openobject"),
    }


@pytest.mark.parametrize("variant", sorted(broken(dict(generate_file("train/0")))))
def test_malformed_file_is_rejected_with_a_one_line_reason(
    content: dict[str, Any], variant: str, tmp_path: Path
) -> None:
    value, expected = broken(content)[variant]
    with pytest.raises(Malformed) as caught:
        compile_game(value)
    assert expected in str(caught.value)
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(value))
    with pytest.raises(DataError) as refused:
        make(path)
    assert str(path) in str(refused.value)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_of_a_generated_task_belongs_to_the_caller() -> None:
    generate_file("train/0")["walkthrough"].clear()
    assert generate_file("train/0")["walkthrough"]


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"null", b'{"a": 1}', b"[" * 100_000])
def test_content_that_is_no_game_is_rejected(text: bytes) -> None:
    with pytest.raises(Malformed):
        read_game(text)


def test_malformed_file_is_skipped_and_the_rest_of_the_folder_is_loaded(
    tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = tree / "json_2.1.1" / SPOTS[0] / "trial_0" / "game.tw-pddl"
    bad.write_text("{")
    with caplog.at_level(logging.WARNING):
        env = make(tree)
    assert len(env.tasks) == 3
    ((path, reason),) = env.skipped
    assert path == str(bad)
    assert "not JSON" in reason
    assert str(bad) in caplog.text
    env.reset(seed=1)


def test_unreadable_file_is_skipped_until_it_can_be_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    age(tree)
    bad = tree / "json_2.1.1" / SPOTS[0] / "trial_0" / "game.tw-pddl"
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == bad:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    with monkeypatch.context() as patch:  # The superuser, who runs some tests, may read every file.
        patch.setattr(Path, "read_bytes", refuse)
        patch.setattr(library, "_libraries", {})
        env = make(tree)
    assert len(env.tasks) == 3 and env.skipped == [(str(bad), "cannot be read (Permission denied)")]
    monkeypatch.setattr(library, "_libraries", {})
    assert len(make(tree).tasks) == 4


def test_links_are_followed_once_and_a_broken_one_is_named(tree: Path, tmp_path: Path) -> None:
    games = tree / "json_2.1.1"
    elsewhere = tmp_path / "elsewhere"
    (games / "train").rename(elsewhere)
    try:
        (games / "train").symlink_to(elsewhere)
    except OSError:
        pytest.skip("this user may not create links")
    (elsewhere / "up").symlink_to(games)
    (games / "again").symlink_to(games / "valid_unseen")
    tasks = make(tree).tasks
    assert len(tasks) == 4 and all(task.count("json_2.1.1") == 1 and "/up/" not in task for task in tasks)
    (elsewhere / "gone.tw-pddl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"gone\.tw-pddl: cannot be read \(No such file"):
        make(tree, split="train")


def test_tasks_that_the_original_excludes_are_skipped(tree: Path) -> None:
    moved = tree / "json_2.1.1" / "train" / "pick_and_place_with_movable_recep-A-Pan-B-1" / "trial_9"
    moved.mkdir(parents=True)
    (moved / "game.tw-pddl").write_text(json.dumps(generate_file("train/9")))
    env = make(tree)
    assert len(env.tasks) == 4
    assert "movable" in env.skipped[0][1]


def test_empty_folder_and_unknown_split_are_rejected(tree: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="no playable ALFWorld game"):
        make(empty)
    with pytest.raises(ConfigurationError, match=r"valid_unsen.*did you mean valid_unseen"):
        make(tree, split="valid_unsen")
    with pytest.raises(ConfigurationError, match="not a folder"):
        make(tmp_path / "absent")


def test_damaged_archive_is_rejected_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.tar.xz").write_bytes(b"\xfd7zXZ\x00 and then nothing")
    with pytest.raises(DataError, match=r"train\.tar\.xz"):
        make(tmp_path)


# ---------------------------------------------------------------------- folders, archives, cache


def test_task_ids_and_splits_are_derived_from_paths(tree: Path) -> None:
    expected = sorted(f"json_2.1.1/{SPOTS[i % 2]}/trial_{i}/game.tw-pddl" for i in range(4))
    assert list(make(tree).tasks) == expected
    assert list(make(tree / "json_2.1.1").tasks) == expected
    assert list(make(tree.parent).tasks) == expected  # The folder that contains alfworld/.
    assert list(make(tree, split="train").tasks) == [task for task in expected if "/train/" in task]
    only = make(tree / "json_2.1.1" / SPOTS[0] / "trial_0" / "game.tw-pddl")
    assert list(only.tasks) == [f"json_2.1.1/{SPOTS[0]}/trial_0/game.tw-pddl"]


def test_folder_and_archive_yield_the_same_games(tree: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, mode in (("a.tar.xz", "w:xz"), ("b.tar", "w")):
        with tarfile.open(packed / name, mode) as archive:  # type: ignore[call-overload]
            archive.add(tree / "json_2.1.1", "json_2.1.1")
    loose, boxed = make(tree), make(packed)
    assert list(loose.tasks) == list(boxed.tasks)  # No duplicates.
    for task in loose.tasks:
        assert loose.reset(options={"task": task}) == boxed.reset(options={"task": task})
        assert loose.expert_actions() == boxed.expert_actions()


def test_second_start_reads_games_from_the_cache(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from arboretum.envs.alfworld import library

    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path / "cache"))
    age(tree)
    first = make(tree).reset(options={"task": 0})
    library._libraries.clear()

    def refuse(content: bytes) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(library, "read_game", refuse)
    env = make(tree)
    assert env.reset(options={"task": 0}) == first
    walk = env.expert_actions()
    assert [env.step(action)[2] for action in walk][-1]


def test_changed_file_is_compiled_again(tree: Path) -> None:
    env = make(tree)
    before = env.reset(options={"task": 0})[0]
    path = tree / env.tasks[0]
    old = path.stat()
    sentence = before.rpartition("Your task is to: ")[2]
    text = path.read_text()
    assert sentence in text
    path.write_text(text.replace(sentence, "x" * len(sentence)))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))  # Same size and modification time as before.
    assert eventually(lambda: make(tree).reset(options={"task": 0})[0].endswith("x" * len(sentence)))
    shutil.rmtree(path.parent)
    assert eventually(lambda: len(make(tree).tasks) == 3)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Return True as soon as a condition holds: listings are reused for a while, longer on a busy machine."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_damaged_cache_is_ignored(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from arboretum.envs.alfworld import library

    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path / "cache"))
    age(tree)
    first = make(tree).reset(options={"task": 0})
    (pack,) = (tmp_path / "cache" / "alfworld").iterdir()
    whole = pack.read_bytes()
    middle = len(whole) // 2
    for damaged in (
        b"",
        b"garbage",
        whole[:40],
        whole[:-1000],
        whole[:middle] + bytes(200) + whole[middle + 200 :],
        whole.replace(b"countertop", b"countertap"),
    ):
        pack.write_bytes(damaged)
        library._libraries.clear()
        env = make(tree)
        for task in env.tasks:
            env.reset(options={"task": task})
            assert env.expert_actions()
        assert env.reset(options={"task": 0}) == first


def test_games_are_playable_without_a_writable_cache(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ARBORETUM_CACHE", str(blocked / "cache"))
    env = make(tree)
    env.reset(options={"task": 0})
    assert env.expert_actions()


def test_concurrent_writers_leave_one_valid_pack(tree: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path / "cache"))
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        firsts = pool.map(first_observation, [str(tree)] * 8)
    assert len(set(firsts)) == 1
    (pack,) = (tmp_path / "cache" / "alfworld").iterdir()  # No temporary file is left behind.
    assert pack.suffix == ".pack"


def first_observation(folder: str) -> str:
    import arboretum

    assert arboretum
    return str(make(Path(folder)).reset(options={"task": 0})[0])


def age(folder: Path) -> None:
    """Wait until the files are so old that an unchanged signature implies unchanged content."""
    while time.time_ns() - max(path.stat().st_ctime_ns for path in folder.rglob("*.tw-pddl")) < 2_100_000_000:
        time.sleep(0.1)
