"""PDDL parser: accepted files, and errors with file and line for all others."""

import lzma
import tarfile

import gymnasium as gym
import pytest

import arboretum  # noqa: F401
from arboretum.envs import ConfigurationError, DataError
from arboretum.envs.blocksworld.pddl import read_problem
from arboretum.envs.blocksworld.rules import HAND, TABLE, Goal

GOOD = """

(define (problem BW-rand-3)
(:domain blocksworld-4ops)
(:objects a b c )
(:init
(handempty)
(on a b)
(ontable b)
(ontable c)
(clear a)
(clear c)
)
(:goal
(and
(on b c))
)
)
"""


def test_planbench_file_is_parsed():
    problem = read_problem(GOOD, "x.pddl")
    assert problem == (("a", "b", "c"), (1, TABLE, TABLE), Goal(on=((1, 2),)))


def test_case_comments_types_and_a_single_goal_atom_are_accepted():
    text = """(DEFINE (PROBLEM p) ; a comment (with parentheses
    (:requirements :strips :typing) (:domain d)
    (:objects B1 B2 - block)
    (:init (holding b1) (ontable B2) (clear b2)) (:goal (on b1 b2)))"""
    problem = read_problem(text, "x.pddl")
    assert problem == (("b1", "b2"), (HAND, TABLE), Goal(on=((0, 1),)))


def without(line):
    assert line in GOOD
    return GOOD.replace(line, "", 1)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "empty file"),
        ("hello", 1, "opening parenthesis"),
        (GOOD[:-4], None, "closing parenthesis"),
        (GOOD[: len(GOOD) // 2], None, "truncated"),
        (GOOD + ")", 19, "opening parenthesis|end of the file"),
        (GOOD + "(extra)", 19, "end of the file"),
        (GOOD.replace("(problem BW-rand-3)", "(domain blocksworld-4ops)"), 3, "problem"),
        (GOOD.replace("(on a b)", "(above a b)"), 8, "unknown predicate 'above'"),
        (GOOD.replace("(on a b)", "(on a)"), 8, "expected 2 block"),
        (GOOD.replace("(on a b)", "(on a d)"), 8, "'d' is not declared"),
        (GOOD.replace("(on a b)", "on"), 8, "expected an atom"),
        (GOOD.replace("(on a b)", "(on (a) b)"), 8, "expected an atom"),
        (GOOD.replace("(on a b)", "(on a a)"), 6, "cycle"),
        (GOOD.replace("a b c )", "a b c a)"), 5, "declared twice"),
        (GOOD.replace("a b c )", "a b <c> )"), 5, "block's name"),
        (GOOD.replace("(ontable c)", "(on c b)"), 10, "both on block b"),
        (GOOD.replace("(ontable c)", "(holding c)"), 7, r"\(handempty\) contradicts"),
        (GOOD.replace("(ontable b)", "(on b a)"), 6, "cycle"),
        (GOOD.replace("(ontable b)", "(ontable b)(on b c)"), 9, "two places"),
        (GOOD.replace("(clear c)", "(clear b)"), 12, r"\(clear b\) contradicts"),
        (without("(clear c)"), 6, r"expected \(clear c\)"),
        (without("(handempty)"), 6, r"expected \(handempty\)"),
        (without("(ontable b)"), 6, "ontable b"),
        (GOOD.replace("(:goal", "(:gaol"), 14, "expected"),
        (GOOD.replace("a b c )", f"a b c {' '.join(f'x{n}' for n in range(254))})"), 5, "1 to 256 blocks"),
        (GOOD + "(" * 10, 19, "end of the file"),
        ("(" * 100_000, 1, "more than 32 deep"),
        (GOOD.replace("(:init", "(:objects a) (:init"), 6, "second"),
        (GOOD.replace("(on b c)", ""), 14, "at least one atom"),
        (GOOD.replace("(on b c)", "(not (on b c))"), 16, "expected an atom|unknown predicate"),
        (GOOD.replace("(on b c)", "(on b c) (on c b)"), 14, "impossible"),
        (GOOD.replace("(on b c)", "(holding c)"), 14, "holding"),
        (GOOD.replace("(on b c)", "(on a b)"), 14, "already holds"),
    ],
)
def test_fault_is_reported_with_file_line_and_expectation(text, line, words):
    with pytest.raises(DataError, match=words) as caught:
        read_problem(text, "some/file.pddl")
    assert str(caught.value).startswith("some/file.pddl, line ")
    if line is not None:
        assert caught.value.line == line


def test_every_truncation_or_dropped_character_parses_or_raises_data_error():
    for cut in range(len(GOOD) - 1):
        for text in (GOOD[:cut], GOOD[:cut] + GOOD[cut + 1 :]):
            try:
                read_problem(text, "x.pddl")
            except DataError as error:
                assert error.line is not None


def folder_with(tmp_path, files):
    folder = tmp_path / "blocksworld"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def planbench(folder, **kwargs):
    return gym.make("TextBlocksworld-v0", split=kwargs.pop("split", "planbench"), data=folder, **kwargs).unwrapped


def test_folder_and_archive_give_the_same_tasks(tmp_path):
    files = {
        "basic/instance-10.pddl": GOOD,
        "basic/instance-2.pddl": GOOD,
        "hard/deep/instance-1.pddl": GOOD,
        "basic/generated_domain.pddl": "(define (domain d))",
        "basic/info.json": "{}",
    }
    unpacked = folder_with(tmp_path / "one", files)
    packed = tmp_path / "two"
    packed.mkdir()
    with tarfile.open(packed / "set.tar.xz", "w:xz") as archive:
        archive.add(unpacked, arcname=".")
    expected = ["basic/instance-2", "basic/instance-10", "hard/deep/instance-1"]
    for folder in (unpacked, tmp_path / "one", packed):
        env = planbench(folder)
        assert list(env.tasks) == expected
        observation, info = env.reset(seed=1, options={"task": "hard/deep/instance-1"})
        assert (
            info["task"] == "hard/deep/instance-1" and "the red block is on top of the blue block" in observation
        )
    assert list(planbench(packed, split="planbench/basic").tasks) == expected[:2]
    assert list(planbench(packed, split="planbench/hard/deep").tasks) == expected[2:]
    with pytest.raises(ConfigurationError, match="planbench/basic"):
        planbench(packed, split="planbench/basik")


def test_broken_data_is_reported_with_its_path(tmp_path, monkeypatch):
    bad = folder_with(tmp_path / "a", {"instance-1.pddl": GOOD[:60], "instance-2.pddl": b"\n\xff"})
    with pytest.raises(DataError, match=r"instance-1\.pddl, line \d+: expected a closing"):
        planbench(bad).reset(options={"task": "instance-1"})
    with pytest.raises(DataError, match=r"instance-2\.pddl, line 2: expected UTF-8"):
        planbench(bad).reset(options={"task": "instance-2"})
    empty = folder_with(tmp_path / "b", {"readme.txt": "nothing"})
    with pytest.raises(DataError, match="no PDDL"):
        planbench(empty)
    cut = folder_with(tmp_path / "c", {"set.tar.xz": lzma.compress(b"x" * 5000)[:40]})
    with pytest.raises(DataError, match=r"set\.tar\.xz"):
        planbench(cut)
    with pytest.raises(DataError, match="not a folder"):
        planbench(tmp_path / "nowhere")
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="ARBORETUM_DATA"):
        planbench(None)


def test_error_inside_an_archive_names_archive_and_member(tmp_path):
    folder = folder_with(tmp_path / "a", {"s/instance-1.pddl": GOOD.replace("(on a b)", "(near a b)")})
    packed = tmp_path / "p"
    packed.mkdir()
    with tarfile.open(packed / "set.tar.xz", "w:xz") as archive:
        archive.add(folder, arcname=".")
    with pytest.raises(DataError, match=r"set\.tar\.xz:\./s/instance-1\.pddl, line 8: unknown predicate 'near'"):
        planbench(packed).reset()
