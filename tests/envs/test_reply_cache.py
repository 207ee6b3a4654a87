"""The cache of replies: threads and processes at once, failures of the file, and files of earlier versions."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from arboretum.envs.errors import DataError
from arboretum.envs.reply_cache import ReplyCache
from arboretum.envs.retrieval import Document, Hit
from arboretum.envs.retrieval.cache import HitCache

KEYS = [bytes([number]) * 16 for number in range(40)]


def fill(path: Path, values: list[int]) -> None:
    cache = ReplyCache(path)
    for value in values:
        cache.put({KEYS[value]: {"value": value}})
    cache.close()


def test_threads_and_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "replies.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=fill, args=(path, list(range(n, 20, 2)))) for n in (0, 1)]
    for process in processes:
        process.start()
    cache = ReplyCache(path)
    threads = [threading.Thread(target=lambda n=n: cache.put({KEYS[n]: {"value": n}})) for n in range(20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert cache.get([*KEYS, b"missing"]) == {key: {"value": n} for n, key in enumerate(KEYS)}
    assert len(cache) == 40
    cache.close()
    assert cache.get(KEYS[:1]) == {KEYS[0]: {"value": 0}}  # It opens the file again.
    cache.close()


def test_file_that_another_program_replaced_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.sqlite"
    cache = ReplyCache(path)
    cache.close()
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (title TEXT)")
    with caplog.at_level(logging.WARNING):
        assert cache.get([b"a"]) == {}
        cache.put({b"a": 1, b"b": object()})
        cache.put({b"a": 1})
    assert len(caplog.records) == 3


def test_failure_in_use_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.sqlite"
    cache = ReplyCache(path)
    cache.put({b"a": 1})
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE replies")
        other.commit()
    with caplog.at_level(logging.WARNING):
        cache.put({b"b": 2})
        assert cache.get([b"a"]) == {}
    assert "cannot store a reply" in caplog.text and "cannot read a reply" in caplog.text
    cache.close()


def test_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
        other.commit()
    before = path.read_bytes()
    for kind in (ReplyCache, HitCache):
        with pytest.raises(DataError, match="is not a reply cache of this version"):
            kind(path)
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE notes")
        other.execute("CREATE TABLE replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL)")
        other.execute("PRAGMA user_version = 2")
        other.commit()
    with pytest.raises(DataError, match="is not a reply cache of this version"):
        ReplyCache(path)


def test_hits_of_the_earlier_format_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hits.sqlite"
    url = "http://127.0.0.1:8000/retrieve"
    key = hashlib.blake2b(f"{url} bm25\0{2}\0oak".encode(), digest_size=16).digest()
    with closing(sqlite3.connect(path)) as old:
        old.executescript(
            "CREATE TABLE replies (key BLOB PRIMARY KEY, hits TEXT NOT NULL) WITHOUT ROWID;"
            "CREATE TABLE servers (url TEXT PRIMARY KEY, served TEXT NOT NULL) WITHOUT ROWID;"
        )
        old.execute("INSERT INTO replies VALUES (?, ?)", (key, json.dumps([["1", '"A"\nb', 2.5]])))
        old.execute("INSERT INTO servers VALUES (?, ?)", (url, "bm25"))
        old.commit()
    for _ in range(2):
        cache = HitCache(path)
        assert cache.get_served_index(url) == "bm25"
        assert cache.get(f"{url} bm25", ["oak", "elm"], 2) == {"oak": [Hit(Document("1", '"A"\nb'), 2.5)]}
        cache.close()
