"""Damaged data files: each is reported in one sentence with its location, and no task is lost silently."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from arboretum.envs import data
from arboretum.envs.alfworld.library import _add_game
from arboretum.envs.data import archive_members
from arboretum.envs.errors import DataError
from arboretum.envs.registry import make_env
from arboretum.envs.retrieval import documents
from arboretum.envs.retrieval.documents import read_corpus
from arboretum.envs.searchqa import downloads as catalog
from arboretum.envs.searchqa.datasets import read_questions
from arboretum.envs.webshop import json_stream
from arboretum.envs.webshop.json_stream import read_array


def write_archive(path: Path, members: int = 30) -> Path:
    with tarfile.open(path, "w:xz") as made:
        for n in range(members):
            content = f"content of member {n} ".encode() * 400
            member = tarfile.TarInfo(f"member{n}")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return path


def test_intact_archive_is_read_to_its_end(tmp_path: Path) -> None:
    assert len(list(archive_members(write_archive(tmp_path / "a.tar.xz")))) == 30


def test_damaged_member_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    content = bytearray(lzma.decompress(write_archive(tmp_path / "a.tar.xz").read_bytes()))
    at = content.find(b"member17\0")
    content[at : at + 512] = b"\x07" * 512
    (tmp_path / "b.tar.xz").write_bytes(lzma.compress(bytes(content)))
    with pytest.raises(DataError, match=r"b\.tar\.xz: .*fetch it again"):
        list(archive_members(tmp_path / "b.tar.xz"))


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.tar.xz"
    with lzma.open(path, "w", preset=0) as packed:
        header = tarfile.TarInfo("zeros.json")
        header.size = 300 * 2**20
        packed.write(header.tobuf())
        for _ in range(300):
            packed.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match=r"bomb\.tar\.xz: unpacks to too much at 'zeros\.json' \(300 MB"):
        list(archive_members(path))
    monkeypatch.setattr(data, "MAX_UNPACKED", 50_000)
    with pytest.raises(DataError, match=r"unpacks to too much at 'member\d+'"):
        list(archive_members(write_archive(tmp_path / "many.tar.xz")))
    with lzma.open(tmp_path / "tail.tar.xz", "w", preset=0) as packed:
        packed.write(bytes(10**7))
    with pytest.raises(DataError, match=r"tail\.tar\.xz: (unpacks to more than|cannot be read)"):
        list(archive_members(tmp_path / "tail.tar.xz"))


def test_compressed_line_or_value_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE", 10_000)
    (tmp_path / "corpus.jsonl.gz").write_bytes(
        gzip.compress(b'{"id": "0", "contents": "a"}\n{"id": "' + bytes(10**7))
    )
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz, line 2: has more than"):
        list(read_corpus(tmp_path / "corpus.jsonl.gz"))
    monkeypatch.setattr(json_stream, "MAX_VALUE", 5 * 2**20)
    (tmp_path / "items.json.gz").write_bytes(gzip.compress(b'["' + b"a" * 4 * 10**7))
    with pytest.raises(DataError, match=r"items\.json\.gz: at character 1: expected a value of at most 5 million"):
        list(read_array(tmp_path / "items.json.gz"))


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 0.95])
def test_archive_with_overwritten_bytes_is_rejected(share: float, tmp_path: Path) -> None:
    content = bytearray(write_archive(tmp_path / "a.tar.xz", members=400).read_bytes())
    at = int(len(content) * share)
    content[at : at + 20] = bytes(20)
    (tmp_path / "b.tar.xz").write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(archive_members(tmp_path / "b.tar.xz"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("problem", ["", "hello", "(define (problem x))", 5, None, [], "(" * 5000])
def test_game_without_a_problem_is_skipped_with_a_reason(problem: object) -> None:
    class Writer:
        skipped: list[str]

        def skip(self, where: str, reason: str, source: object) -> None:
            self.skipped = [where, reason]

        def add(self, *_: object) -> None:
            raise AssertionError("was taken for a game")

    writer = Writer()
    game = {"pddl_domain": "", "grammar": "", "pddl_problem": problem, "solvable": True, "walkthrough": []}
    _add_game(writer, "task", "where", json.dumps(game).encode())  # type: ignore[arg-type]
    assert writer.skipped[0] == "where" and writer.skipped[1]


@pytest.mark.parametrize("cut", [1_000, 50_000, 1_500_000])
def test_truncated_array_is_reported_with_the_position_of_its_end(cut: int, tmp_path: Path) -> None:
    text = json.dumps([{"name": "x" * 90, "n": n} for n in range(20_000)])
    path = tmp_path / "items.json"
    path.write_text(text[:cut])
    with pytest.raises(DataError, match="at character") as caught:
        list(read_array(path))
    at = int(str(caught.value).partition("at character ")[2].partition(":")[0])
    assert cut - 130 <= at <= cut


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "supporting_facts": 5},
        {"question": "q", "supporting_facts": {"title": 5}},
        {"question": "q", "metadata": {"supporting_titles": 5}},
        {"question": "q", "metadata": {"supporting_titles": "Paris"}},
        {"question": "q", "context": {"title": 5, "sentences": 1}},
    ],
)
def test_question_with_a_field_of_the_wrong_type_is_reported_with_its_line(row: object, tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    path.write_text(json.dumps({"question": "fine", "golden_answers": ["a"]}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"dev\.jsonl, line 2: "):
        list(read_questions(path))


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"id": "\\ud800", "contents": "x"}', '{"id": "1", "contents": "\\udfff"}']
)
def test_corpus_line_with_invalid_text_is_reported_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=r"corpus\.jsonl, line 2: "):
        list(read_corpus(path))


def test_failed_download_leaves_no_files(tmp_path: Path) -> None:
    nowhere = catalog.DATA_SETS["bamboogle"]._replace(files={"test.jsonl": "http://127.0.0.1:9/nothing"})
    with pytest.raises(DataError, match="cannot be fetched"):
        catalog.data_get("bamboogle", tmp_path, catalog={"bamboogle": nowhere}, timeout=2.0)
    assert list(tmp_path.iterdir()) == []


def test_goal_number_out_of_range_is_not_found() -> None:
    from arboretum.envs.webshop.server import create_app

    client = create_app(make_env("TextWebShop-v0").shop).test_client()  # type: ignore[attr-defined]
    for goal in ("000000000000999", "9" * 40, "-1", "x"):
        assert client.get(f"/?goal={goal}").status_code == 404


def test_damaged_archive_of_games_does_not_hide_the_other_archives(data: Path, tmp_path: Path) -> None:
    content = (data / "alfworld" / "valid_unseen.tar.xz").read_bytes()
    (tmp_path / "b.tar.xz").write_bytes(content[:100_000])
    with pytest.raises(DataError, match=r"b\.tar\.xz"):
        make_env("TextALFWorld-v0", data=tmp_path)
    (tmp_path / "a.tar.xz").write_bytes(content)
    env = make_env("TextALFWorld-v0", data=tmp_path)
    assert len(env.tasks) == 134
    assert [Path(path).name for path, _ in env.skipped] == ["b.tar.xz"]  # type: ignore[attr-defined]
