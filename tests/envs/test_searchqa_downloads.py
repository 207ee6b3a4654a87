"""Tests of downloads from a loopback server that can interrupt and resume them."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from arboretum.cli import main
from arboretum.envs import ConfigurationError, DataError
from arboretum.envs.searchqa.downloads import DATA_SETS, DataSet, data_get, data_list, data_verify
from support.raw_server import raw_server, sends

CONTENT = bytes(range(256)) * 4000


class Files:
    """Server of CONTENT under every path; it interrupts a response after `limit` bytes if `limit` is set."""

    def __init__(self) -> None:
        outer = self
        self.limit: int | None = None
        self.ranges: list[str | None] = []
        self.resumable = True
        self.redirect: dict[str, str] | None = None

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/absent":
                    self.send_error(404)
                    return
                if outer.redirect is not None and self.path != "/moved":
                    self.send_response(302)
                    for name, value in outer.redirect.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                requested = self.headers.get("Range")
                outer.ranges.append(requested)
                start = int(requested[6:-1]) if requested and outer.resumable else 0
                if start >= len(CONTENT):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
                    self.end_headers()
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(CONTENT) - start))
                self.end_headers()
                stop = len(CONTENT) if outer.limit is None else start + outer.limit
                self.wfile.write(CONTENT[start:stop])

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def files():
    server = Files()
    yield server
    server.close()


def catalog(url, *names):
    names = names or ("dev.jsonl",)
    return {"small": DataSet("small", {n: f"{url}/{n}" for n in names}, "MIT", "1 MB", {"dev": 1}, "nobody")}


def test_downloaded_files_are_verified_against_their_checksums(files, tmp_path):
    known = catalog(files.url, "train.jsonl", "dev.jsonl")
    seen = []
    folder = data_get("small", tmp_path, catalog=known, progress=lambda *a: seen.append(a))
    assert (folder / "dev.jsonl").read_bytes() == CONTENT
    assert seen[-1] == ("dev.jsonl", len(CONTENT), len(CONTENT))
    assert data_verify("small", tmp_path, catalog=known) == {"train.jsonl": "ok", "dev.jsonl": "ok"}
    assert hashlib.sha256(CONTENT).hexdigest() in (folder / "checksums.json").read_text()
    data_get("small", tmp_path, catalog=known)
    assert len(files.ranges) == 2  # Existing files are not downloaded again.
    (folder / "dev.jsonl").write_bytes(CONTENT[:-1])
    (folder / "train.jsonl").unlink()
    assert data_verify("small", tmp_path, catalog=known) == {"train.jsonl": "missing", "dev.jsonl": "changed"}


@pytest.mark.parametrize("resumable", [True, False])
def test_interrupted_download_is_resumed(files, tmp_path, resumable):
    known = catalog(files.url)
    files.limit = 300_000
    files.resumable = resumable
    with pytest.raises(DataError, match=r"300000 of 1024000 bytes.*place it as"):
        data_get("small", tmp_path, catalog=known)
    assert not (tmp_path / "small" / "dev.jsonl").exists()
    files.limit = None
    data_get("small", tmp_path, catalog=known)
    assert (tmp_path / "small" / "dev.jsonl").read_bytes() == CONTENT
    assert files.ranges == [None, "bytes=300000-"]


def test_complete_partial_file_is_renamed_without_a_download(files, tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "dev.jsonl.part").write_bytes(CONTENT)
    data_get("small", tmp_path, catalog=catalog(files.url))
    assert (tmp_path / "small" / "dev.jsonl").read_bytes() == CONTENT


def test_file_without_a_valid_length_is_read_to_its_end(tmp_path):
    for reply in (sends(CONTENT, length="many"), sends(CONTENT, length=-5)):
        with raw_server(reply) as (url, _):
            folder = data_get("small", tmp_path / url[-5:], catalog=catalog(url))
            assert (folder / "dev.jsonl").read_bytes() == CONTENT


def test_unreachable_server_is_reported_with_manual_instructions(files, tmp_path):
    files.close()
    with pytest.raises(DataError, match=rf"Fetch {files.url}/dev.jsonl .*place it as .*small/dev.jsonl"):
        data_get("small", tmp_path, catalog=catalog(files.url))


def test_file_with_another_checksum_than_the_pinned_one_is_deleted(files, tmp_path):
    digest = hashlib.sha256(CONTENT).hexdigest()
    known = catalog(files.url)
    wrong = {"small": known["small"]._replace(sha256={"dev.jsonl": "0" * 64})}
    with pytest.raises(DataError, match=rf"not the known file.*{digest}, not 000.*was deleted"):
        data_get("small", tmp_path, catalog=wrong)
    assert not any((tmp_path / "small").glob("dev*"))
    right = {"small": known["small"]._replace(sha256={"dev.jsonl": digest})}
    path = data_get("small", tmp_path, catalog=right) / "dev.jsonl"
    assert data_verify("small", tmp_path, catalog=right) == {"dev.jsonl": "ok"}
    assert data_verify("small", tmp_path, catalog=wrong) == {"dev.jsonl": "changed"}
    (path.parent / "checksums.json").unlink()
    path.write_bytes(CONTENT[1:])
    assert data_verify("small", tmp_path, catalog=right) == {"dev.jsonl": "changed"}


def test_checksum_of_the_hub_is_compared(files, tmp_path):
    digest = hashlib.sha256(CONTENT).hexdigest()
    files.redirect = {"Location": f"{files.url}/moved", "X-Linked-Etag": f'"{"0" * 64}"'}
    with pytest.raises(DataError, match="not the known file"):
        data_get("small", tmp_path, catalog=catalog(files.url))
    files.redirect["X-Linked-Etag"] = f'"{digest}"'
    assert (data_get("small", tmp_path, catalog=catalog(files.url)) / "dev.jsonl").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "target", ["http://files.example/dev.jsonl", "file:///etc/passwd", "ftp://files.example/x"]
)
def test_addresses_and_redirects_other_than_https_are_refused(files, tmp_path, target):
    with pytest.raises(DataError, match="is not https"):
        data_get("small", tmp_path, catalog=catalog(target.rpartition("/")[0]))
    files.redirect = {"Location": target}
    with pytest.raises(DataError, match=r"is not https|not allowed"):
        data_get("small", tmp_path, catalog=catalog(files.url))
    assert not (tmp_path / "small" / "dev.jsonl").exists()


def test_all_known_addresses_are_https_and_checksums_belong_to_files():
    for data_set in DATA_SETS.values():
        assert all(url.startswith("https://") for url in data_set.files.values())
        assert set(data_set.sha256) <= set(data_set.files)


def test_unknown_names_and_missing_folders_are_rejected_and_states_are_listed(files, tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"Not Found.*name the data folder that has it with --root"):
        data_get("small", tmp_path, catalog=catalog(files.url, "absent"))
    with pytest.raises(ConfigurationError, match="did you mean musique"):
        data_get("musiqe", tmp_path)
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="ARBORETUM_DATA"):
        data_get("nq")
    assert {state for _, state in data_list()} == {"absent"}
    (tmp_path / "nq").mkdir()
    (tmp_path / "nq" / "dev.jsonl").write_text("{}")
    assert {d.name: state for d, state in data_list(tmp_path)}["nq"] == "partly"
    assert set(DATA_SETS) >= {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}


def test_list_shows_the_folders_of_environments_with_the_way_to_get_each(tmp_path, monkeypatch, capsys):
    (tmp_path / "boxoban" / "hard").mkdir(parents=True)
    with pytest.raises(SystemExit):
        main(["data", "list", "--root", str(tmp_path)])
    text = capsys.readouterr().out
    assert f"Data folder: {tmp_path}" in text
    states = {words[0]: words[1] for words in (line.split() for line in text.splitlines()) if len(words) > 3}
    assert [states[name] for name in ("alfworld", "webshop", "boxoban", "blocksworld")] == [
        "absent",
        "absent",
        "here",
        "absent",
    ]
    assert "`alfworld-download` of the package `alfworld`" in text and "nq" in states
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    with pytest.raises(SystemExit):
        main(["data", "list"])
    assert "Data folder: none; name one with --root, or set ARBORETUM_DATA" in capsys.readouterr().out


def test_refusals_of_get_name_the_root_and_other_ways_to_get_data(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Not a directory\); name another data folder with --root"):
        data_get("nq", tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"neither downloads the files of alfworld .* get them with `alf"):
        data_get("alfworld", tmp_path)
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="name one with --root"):
        data_get("nq")
