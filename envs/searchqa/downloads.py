"""Registry of public question sets and corpora, with resumable downloads and checksums.

Files are downloaded only if a user calls `data_get`; no environment downloads anything. They come over https, and
a redirect may not leave it. A file is kept only if its SHA-256 is the one in `DATA_SETS`, or else, for files of
the Hugging Face hub, the one that the hub states. The checksum is stored beside the files; `data_verify` compares
with the one in `DATA_SETS`, or else with the stored one.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..addresses import public_url
from ..checks import expand_home
from ..data_sources import DATA_SOURCES, DataSource
from ..errors import ConfigurationError, DataError, unknown_name
from ..files import move_file, write_atomic

CHECKSUMS_FILE = "checksums.json"
_FLASHRAG = "https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets/resolve/main"
_WIKI = "https://huggingface.co/datasets/PeterJinGo"
_HOTPOT = "https://curtis.ml.cmu.edu/datasets/hotpot"
_HOTPOT_TRAIN = "hotpot_train_v1.1.json"
_HOTPOT_DEV = "hotpot_dev_distractor_v1.json"
_CHUNK = 1 << 20

Progress = Callable[[str, int, int | None], None]
"""Callback (file name, bytes downloaded, total bytes or None if unknown)."""


class DataSet(NamedTuple):
    """A public data set.

    Attributes:
        name: Name of the data set and of its folder below the data folder.
        files: Download address of each file.
        license: License as stated by the publishers; check their terms before redistribution.
        size: Approximate size as text.
        rows: Number of questions by split, or number of passages of a corpus.
        source: Paper that published the data set.
        sha256: SHA-256 of files by name; files that their publishers may change have none.
    """

    name: str
    files: Mapping[str, str]
    license: str
    size: str
    rows: Mapping[str, int]
    source: str
    sha256: Mapping[str, str] = {}


def _flashrag(name: str, license: str, size: str, source: str, **rows: int) -> DataSet:
    files = {f"{split}.jsonl": f"{_FLASHRAG}/{name}/{split}.jsonl" for split in rows}
    return DataSet(name, files, license, size, rows, source)


DATA_SETS: Mapping[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        _flashrag(
            "nq", "CC BY-SA 3.0", "about 12 MB", "Kwiatkowski et al., 2019", train=79168, dev=8757, test=3610
        ),
        _flashrag(
            "triviaqa", "Apache 2.0", "about 60 MB", "Joshi et al., 2017", train=78785, dev=8837, test=11313
        ),
        _flashrag("popqa", "MIT", "about 10 MB", "Mallen et al., 2023", test=14267),
        _flashrag("hotpotqa", "CC BY-SA 4.0", "about 600 MB", "Yang et al., 2018", train=90447, dev=7405),
        _flashrag("2wikimultihopqa", "Apache 2.0", "about 150 MB", "Ho et al., 2020", train=15000, dev=12576),
        _flashrag("musique", "CC BY 4.0", "about 70 MB", "Trivedi et al., 2022", train=19938, dev=2417),
        _flashrag("bamboogle", "MIT", "below 1 MB", "Press et al., 2023", test=125),
        DataSet(
            "hotpotqa-original",
            {
                _HOTPOT_TRAIN: f"{_HOTPOT}/{_HOTPOT_TRAIN}",
                _HOTPOT_DEV: f"{_HOTPOT}/{_HOTPOT_DEV}",
            },
            "CC BY-SA 4.0",
            "about 600 MB",
            {"train": 90447, "dev": 7405},
            "Yang et al., 2018",
            # The checksums that ParlAI pins, too.
            {
                _HOTPOT_TRAIN: "26650cf50234ef5fb2e664ed70bbecdfd87815e6bffc257e068efea5cf7cd316",
                _HOTPOT_DEV: "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
            },
        ),
        DataSet(
            "wiki-18",
            {"corpus.jsonl.gz": f"{_WIKI}/wiki-18-corpus/resolve/main/wiki-18.jsonl.gz"},
            "CC BY-SA 3.0 (Wikipedia)",
            "about 5 GB, 14 GB unpacked",
            {"passages": 21015324},
            "Karpukhin et al., 2020; as prepared for Search-R1",
        ),
    )
}
"""Known data sets by name. Row counts are those of T-STAR's table 7; sizes are approximate and not verified."""


def data_list(root: str | Path | None = None) -> list[tuple[DataSet, str]]:
    """Return every data set that `data_get` downloads with its state below the data folder.

    The state is "here" if all files exist, "partly" if some do, "other files" if the data set's folder contains
    none of the files that `data_get` downloads but is not empty, and "absent" otherwise.

    Args:
        root: Data folder; None selects `ARBORETUM_DATA`. If that is not set either, every data set is absent.
    """
    folder = _data_root(root) if root is not None or os.environ.get("ARBORETUM_DATA") else None
    rows = []
    for data_set in DATA_SETS.values():
        here = sum((folder / data_set.name / name).is_file() for name in data_set.files) if folder else 0
        found = folder is not None and any((folder / data_set.name).glob("*"))
        state = (
            "here" if here == len(data_set.files) else "partly" if here else "other files" if found else "absent"
        )
        rows.append((data_set, state))
    return rows


def folder_states(root: str | Path | None = None) -> list[tuple[DataSource, str]]:
    """Return the other data that environments read, with its state below the data folder: "here" or "absent".

    Args:
        root: Data folder; None selects `ARBORETUM_DATA`. If that is not set either, everything is absent.
    """
    folder = _data_root(root) if root is not None or os.environ.get("ARBORETUM_DATA") else None
    return [
        (source, "here" if folder is not None and any((folder / source.folder).glob("*")) else "absent")
        for source in DATA_SOURCES
        if source.folder not in DATA_SETS
    ]


def data_get(
    name: str,
    root: str | Path | None = None,
    *,
    progress: Progress | None = None,
    catalog: Mapping[str, DataSet] = DATA_SETS,
    timeout: float = 60.0,
) -> Path:
    """Download a data set into `<root>/<name>`.

    Existing files are kept, and an interrupted download is resumed. The checksum of each new file is stored.

    Args:
        name: Name of the data set.
        root: Data folder; None selects `ARBORETUM_DATA`.
        progress: Callback that is called after every chunk; None for no callback.
        catalog: Data sets by name.
        timeout: Timeout of a connection and of each read, in seconds.

    Returns:
        Folder of the data set.

    Raises:
        ConfigurationError: The name is unknown, or there is no data folder.
        DataError: A file cannot be downloaded; the message explains how to place it by hand.
    """
    data_set = _find_data_set(name, catalog)
    folder = _data_root(root) / data_set.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            error.filename or folder,
            f"cannot be made ({error.strerror}); name another data folder with --root (in Python root=), or set"
            " ARBORETUM_DATA to it.",
        ) from None
    for file, url in data_set.files.items():
        target = folder / file
        if not target.is_file():
            try:
                _download(url, target, progress, timeout, data_set.sha256.get(file))
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = getattr(error, "reason", None) or error
                with suppress(OSError):  # The folder is not empty if any bytes have arrived.
                    folder.rmdir()
                raise DataError(
                    target,
                    f"cannot be fetched ({reason}). Fetch {url} ({data_set.size} in total, {data_set.license}) on"
                    f" a machine with network access and place it as {target}, or name the data folder that has it"
                    " with --root (in Python root=). A partial download is kept.",
                ) from None
        _save_checksum(folder, file)
    return folder


def data_verify(
    name: str, root: str | Path | None = None, *, catalog: Mapping[str, DataSet] = DATA_SETS
) -> dict[str, str]:
    """Return the state of each file: "ok", "missing", "changed", or "unknown" if no checksum is stored."""
    data_set = _find_data_set(name, catalog)
    folder = _data_root(root) / data_set.name
    checksums = {**_read_checksums(folder), **data_set.sha256}
    found = {}
    for file in data_set.files:
        if not (folder / file).is_file():
            found[file] = "missing"
        elif file not in checksums:
            found[file] = "unknown"
        else:
            found[file] = "ok" if _checksum(folder / file) == checksums[file] else "changed"
    return found


def _find_data_set(name: str, catalog: Mapping[str, DataSet]) -> DataSet:
    if name not in catalog:
        for source in DATA_SOURCES:
            if name == source.folder:
                raise ConfigurationError(
                    f"`arboretum data` neither downloads the files of {name} nor knows their checksums; get them"
                    f" with {source.download} and place them in {name} below the data folder, as"
                    " docs/reference/data.md describes."
                )
        known = dict.fromkeys([*catalog, *(source.folder for source in DATA_SOURCES)])
        raise unknown_name("data set", name, known)
    return catalog[name]


def _data_root(root: str | Path | None) -> Path:
    chosen = root or os.environ.get("ARBORETUM_DATA")
    if not chosen:
        raise ConfigurationError(
            "no data folder is named; name one with --root (in Python root=), or set ARBORETUM_DATA to it."
        )
    return expand_home(chosen)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects that do not leave https.

    Attributes:
        sha256: Checksum that the Hugging Face hub states of the file to which it redirects; None without one.
    """

    sha256: str | None = None

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        try:
            _check_transport(newurl)
        except OSError:
            fp.close()
            raise
        linked = headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", linked):
            self.sha256 = linked
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_transport(url: str) -> None:
    """Raise unless the address is https, or is this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")):
        raise OSError(f"the address {public_url(url)} is not https")


def _download(url: str, target: Path, progress: Progress | None, timeout: float, expected: str | None) -> None:
    _check_transport(url)
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        _receive(opener.open(request, timeout=timeout), part, have, target.name, progress)
    except urllib.error.HTTPError as error:
        with error:
            # The range is empty: the partial file is complete, unless the file on the server became shorter.
            if error.code != 416 or not have:
                raise
            if error.headers.get("Content-Range", "").rpartition("/")[2] != str(have):
                part.unlink()
                raise
    expected = expected or redirects.sha256
    found = _checksum(part)
    if expected is not None and found != expected:
        part.unlink()
        raise DataError(
            target,
            f"is not the known file: the download from {url} has the SHA-256 {found}, not {expected}, and was"
            " deleted. Try again; if that does not help, the publisher has changed the file.",
        )
    move_file(part, target)


def _receive(response: Any, part: Path, have: int, name: str, progress: Progress | None) -> None:
    """Append a response to a partial file of `have` bytes, or replace the file if the response is whole."""
    with response:
        resumed = response.status == 206
        have = have if resumed else 0
        total_bytes = None if response.length is None else have + int(response.length)
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total_bytes)
    if total_bytes is not None and have != total_bytes:
        raise OSError(f"the connection closed after {have} of {total_bytes} bytes; call again to resume")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_checksums(folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        return {}
    try:
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}); delete it to compute new checksums.") from None


def _save_checksum(folder: Path, file: str) -> None:
    checksums = _read_checksums(folder)
    if file not in checksums:
        checksums[file] = _checksum(folder / file)
        write_atomic(folder / CHECKSUMS_FILE, json.dumps(checksums, indent=1) + "\n")
