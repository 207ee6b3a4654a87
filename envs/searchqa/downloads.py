"""Where the public question sets and corpora live, and fetching them: resumed, checked, or explained.

Nothing is fetched on its own account: `data_get` is called by a person. A server's copy may change over the years,
so the checksum that counts is the one taken when a file was first fetched here; it stands beside the files and
`data_verify` compares with it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigurationError, DataError, unknown_name

CHECKSUMS_FILE = "checksums.json"
_FLASHRAG = "https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets/resolve/main"
_WIKI = "https://huggingface.co/datasets/PeterJinGo"
_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"
_CHUNK = 1 << 20

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes at hand and the bytes there are (None: unknown)."""


class DataSet(NamedTuple):
    """A public data set.

    Attributes:
        name: also the folder's name below the data folder.
        files: address by file name.
        licence: as its publishers state it; read theirs before you redistribute.
        size: roughly, for people.
        rows: questions by split (or passages).
        source: the paper.
    """

    name: str
    files: Mapping[str, str]
    licence: str
    size: str
    rows: Mapping[str, int]
    source: str


def _flashrag(name: str, licence: str, size: str, source: str, **rows: int) -> DataSet:
    files = {f"{split}.jsonl": f"{_FLASHRAG}/{name}/{split}.jsonl" for split in rows}
    return DataSet(name, files, licence, size, rows, source)


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
                "hotpot_train_v1.1.json": f"{_HOTPOT}/hotpot_train_v1.1.json",
                "hotpot_dev_distractor_v1.json": f"{_HOTPOT}/hotpot_dev_distractor_v1.json",
            },
            "CC BY-SA 4.0",
            "about 600 MB",
            {"train": 90447, "dev": 7405},
            "Yang et al., 2018",
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
"""Row counts are those of T-STAR's table 7; sizes are rough and not checked."""


def data_list(root: str | Path | None = None) -> list[tuple[DataSet, str]]:
    """Every known data set, and whether it is "here", "partly" or "absent" below the data folder.

    "other files" is a folder of its name that holds none of the files that `data_get` fetches.
    """
    folder = _root(root) if root is not None or os.environ.get("ARBORETUM_DATA") else None
    rows = []
    for data_set in DATA_SETS.values():
        here = sum((folder / data_set.name / name).is_file() for name in data_set.files) if folder else 0
        found = folder is not None and any((folder / data_set.name).glob("*"))
        state = (
            "here" if here == len(data_set.files) else "partly" if here else "other files" if found else "absent"
        )
        rows.append((data_set, state))
    return rows


def data_get(
    name: str,
    root: str | Path | None = None,
    *,
    progress: Progress | None = None,
    catalog: Mapping[str, DataSet] = DATA_SETS,
    timeout: float = 60.0,
) -> Path:
    """Fetch a data set into `<root>/<name>`; files that are here already are left alone.

    A download that broke off goes on where it stopped. The checksum of every file is noted.

    Args:
        root: the data folder; None takes ARBORETUM_DATA.

    Returns:
        The data set's folder.

    Raises:
        ConfigurationError: an unknown name, or no data folder.
        DataError: a file cannot be fetched; says what to place where instead.
    """
    data_set = _find(name, catalog)
    folder = _root(root) / data_set.name
    folder.mkdir(parents=True, exist_ok=True)
    for file, url in data_set.files.items():
        target = folder / file
        if not target.is_file():
            try:
                _fetch(url, target, progress, timeout)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = getattr(error, "reason", None) or error
                with suppress(OSError):  # which it is if anything has arrived
                    folder.rmdir()
                raise DataError(
                    target,
                    f"cannot be fetched ({reason}). Fetch {url} ({data_set.size} in all, {data_set.licence}) on a"
                    f" machine with a network and place it as {target}; what has arrived is kept.",
                ) from None
        _note(folder, file)
    return folder


def data_verify(
    name: str, root: str | Path | None = None, *, catalog: Mapping[str, DataSet] = DATA_SETS
) -> dict[str, str]:
    """The state of each file: "ok", "missing", "changed", or "unknown" where no checksum was noted."""
    data_set = _find(name, catalog)
    folder = _root(root) / data_set.name
    noted = _noted(folder)
    found = {}
    for file in data_set.files:
        if not (folder / file).is_file():
            found[file] = "missing"
        elif file not in noted:
            found[file] = "unknown"
        else:
            found[file] = "ok" if _checksum(folder / file) == noted[file] else "changed"
    return found


def _find(name: str, catalog: Mapping[str, DataSet]) -> DataSet:
    if name not in catalog:
        raise unknown_name("data set", name, catalog)
    return catalog[name]


def _root(root: str | Path | None) -> Path:
    chosen = root or os.environ.get("ARBORETUM_DATA")
    if not chosen:
        raise ConfigurationError("name the data folder, or set ARBORETUM_DATA to it.")
    return Path(chosen).expanduser()


def _fetch(url: str, target: Path, progress: Progress | None, timeout: float) -> None:
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 416 or not have:
                raise
            # Nothing lies beyond what has arrived: it is complete, unless the file has become shorter.
            total = error.headers.get("Content-Range", "").rpartition("/")[2]
            if total != str(have):
                part.unlink()
                raise
        os.replace(part, target)
        return
    with response:
        resumed = response.status == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total_bytes = have + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(target.name, have, total_bytes)
    if total_bytes is not None and have != total_bytes:
        raise OSError(f"the connection ended after {have} of {total_bytes} bytes; call again to go on")
    os.replace(part, target)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _noted(folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        return {}
    try:
        found: dict[str, str] = json.loads(path.read_text())
        return found
    except ValueError as error:
        raise DataError(path, f"is not JSON ({error}); delete it to note the checksums anew.") from None


def _note(folder: Path, file: str) -> None:
    noted = _noted(folder)
    if file not in noted:
        noted[file] = _checksum(folder / file)
        fresh = folder / f"{CHECKSUMS_FILE}.new"
        fresh.write_text(json.dumps(noted, indent=1) + "\n")
        os.replace(fresh, folder / CHECKSUMS_FILE)
