"""Damage at rest: flipped bits, lost and foreign ends of an index, a catalog of the cache, and a large folder."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from arboretum.cli import main
from arboretum.envs import checksums
from arboretum.envs.checksums import SUMS_FILE, verify_checksums, write_checksums
from arboretum.envs.errors import DataError
from arboretum.envs.retrieval.build import build_index
from arboretum.envs.retrieval.factory import open_retriever
from arboretum.envs.webshop.product_catalog import ProductCatalog
from arboretum.envs.webshop.sources import builtin_catalog
from support.mutations import damage, files_below

MUTATIONS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "inner").mkdir(parents=True)
    (made / "a.bin").write_bytes(bytes(range(256)) * 40)
    (made / "inner" / "b.txt").write_text("hello\n")
    write_checksums(made)
    return made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    rows = (f'{{"id": "d{n}", "contents": "T{n}\\noak w{n % 17} w{n % 29}"}}\n' for n in range(300))
    (folder / "corpus.jsonl").write_text("".join(rows))
    build_index(folder / "corpus.jsonl", "bm25", folder / "index")
    return folder / "index"


def read_everything(catalog: ProductCatalog) -> list[object]:
    products = [catalog.product(number) for number in range(len(catalog))]
    return [products, catalog.low.tolist(), catalog.combinations.tolist(), catalog.index.search("red cotton", 20)]


def test_the_tool_sha256sum_reads_the_checksums(folder: Path) -> None:
    assert (folder / SUMS_FILE).read_text().count("\n") == 2
    subprocess.run(["sha256sum", "--check", "--strict", SUMS_FILE], cwd=folder, check=True, capture_output=True)
    assert verify_checksums(folder, "fix it.") == 2


def test_any_damage_is_refused_in_one_sentence_with_the_fix(folder: Path) -> None:
    rng = random.Random(0)
    for _ in range(MUTATIONS):
        path = rng.choice(files_below(folder))
        with damage(path, rng) as kind, pytest.raises(DataError) as caught:
            verify_checksums(folder, "fetch it again.")
        message = str(caught.value)
        assert message.endswith("fetch it again.") and "\n" not in message, kind
    assert verify_checksums(folder, "fix it.") == 2


def test_checksums_that_lead_out_of_the_folder_are_refused(folder: Path) -> None:
    for name in ("../secret", "/etc/hostname"):
        (folder / SUMS_FILE).write_text(f"{'0' * 64}  {name}\n")
        with pytest.raises(DataError, match=r"SHA256SUMS, line 1: is damaged"):
            verify_checksums(folder, "fix it.")


def test_large_folder_is_read_once_until_a_file_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "ALWAYS_READ", 1000)
    read = []

    def verify(fresh: bool = False) -> int:
        read.clear()
        verify_checksums(folder, "fix it.", fresh=fresh, progress=lambda done, total: read.append(done))
        return max(read, default=0)

    size = 256 * 40 + len("hello\n")
    assert verify() == size and verify() == 0
    assert verify(fresh=True) == size
    (folder / "inner" / "b.txt").write_text("hello\n")  # the same bytes in a new file
    assert verify() == len("hello\n") and verify() == 0
    content = (folder / "a.bin").read_bytes()
    status = (folder / "a.bin").stat()
    (folder / "a.bin").write_bytes(b"\1" + content[1:])
    os.utime(folder / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))  # as a careless copy preserves times
    for _ in range(2):
        with pytest.raises(DataError, match=r"a\.bin: is damaged"):
            verify()


def test_unusable_record_of_verified_folders_means_reading_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checksums, "ALWAYS_READ", 1000)
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path / "cache"))
    verify_checksums(folder, "fix it.")
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    for content in ("", "[]", "{}", '{"a.bin": [1, 2, 3, 4]}'):
        record.write_text(content)
        read: list[int] = []
        verify_checksums(folder, "fix it.", progress=lambda done, total, read=read: read.append(done))  # type: ignore[misc]
        assert max(read) == 256 * 40 + len("hello\n")


def test_no_mutation_of_an_index_changes_a_result_silently(index: Path) -> None:
    rng = random.Random(1)
    for _ in range(MUTATIONS):
        path = rng.choice(files_below(index))
        with damage(path, rng) as kind, pytest.raises(DataError, match=r"build (the index|one|it) "):
            open_retriever(index)
            pytest.fail(kind)
    assert open_retriever(index).search(["w3 oak"], 3)


def test_command_verifies_an_index(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["index", "verify", str(index)])
    assert exit_.value.code == 0 and "all files of 300 documents" in capsys.readouterr().out
    with damage(index / "bm25" / "idf.npy", random.Random(2)), pytest.raises(SystemExit) as exit_:
        main(["index", "verify", str(index)])
    captured = capsys.readouterr()
    assert exit_.value.code == 2 and "idf.npy: is damaged" in " ".join(captured.err.split())


def test_no_mutation_of_a_cached_catalog_changes_a_product_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path))
    expected = read_everything(builtin_catalog(30))
    (folder,) = (tmp_path / "webshop").iterdir()
    rng = random.Random(3)
    for n in range(25):
        path = rng.choice(files_below(folder))
        with damage(path, rng) as kind:
            caplog.clear()
            assert read_everything(builtin_catalog(30)) == expected, kind
            assert "built again" in caplog.text, kind
        if n == 0:
            (folder / "catalogue.json").unlink()
    assert read_everything(builtin_catalog(30)) == expected
