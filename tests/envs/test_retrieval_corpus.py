"""Tests of reading and validating corpora."""

import gzip
import json

import pytest

from arboretum.envs import DataError
from arboretum.envs.retrieval import Document
from arboretum.envs.retrieval.documents import corpus_hash, read_corpus

GOOD = '{"id": "0", "contents": "\\"A\\"\\nfirst"}'


def write(tmp_path, *lines: str | bytes):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def test_documents_are_read_and_empty_lines_skipped(tmp_path):
    path = write(tmp_path, GOOD, "", '{"id": 7, "contents": "no title", "more": 1}')
    assert list(read_corpus(path)) == [Document("0", '"A"\nfirst'), Document("7", "no title")]


def test_contents_split_into_title_and_text():
    document = Document("0", '"The "A" Team"\nline\nline')
    assert (document.title, document.text) == ('The "A" Team', "line\nline")
    assert Document("0", "plain").title == "plain"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 2: is not JSON"),
        ("[1]", "line 2: holds a JSON list"),
        ('{"contents": "x"}', "line 2: has no 'id'"),
        ('{"id": "1"}', "line 2: has no 'contents'"),
        ('{"id": "1", "contents": 5}', "line 2: 'contents' must be a string"),
        ('{"id": ["1"], "contents": "x"}', "line 2: 'id' must be a string"),
        ('{"id": "0", "contents": "again"}', "line 2: repeats the id of line 1"),
        (b'{"id": "1", "contents": "\xff"}', "line 2: is not UTF-8"),
    ],
)
def test_malformed_line_is_rejected_with_its_number(tmp_path, line, message):
    path = write(tmp_path, GOOD, line)
    with pytest.raises(DataError, match=message):
        list(read_corpus(path))


def test_missing_or_truncated_file_is_rejected(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        list(read_corpus(tmp_path / "none.jsonl"))
    path = tmp_path / "corpus.jsonl.gz"
    lines = "".join(json.dumps({"id": str(i), "contents": f"text {i * 7919}"}) + "\n" for i in range(2000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])
    with pytest.raises(DataError, match="fetch it again"):
        list(read_corpus(path))


def test_corpus_hash_is_independent_of_compression_and_formatting(tmp_path):
    plain = write(tmp_path, GOOD)
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"contents":"\\"A\\"\\nfirst","id":"0"}\n\n'))
    assert corpus_hash(read_corpus(plain)) == corpus_hash(read_corpus(packed))
    assert corpus_hash([Document("a", "bc")]) != corpus_hash([Document("ab", "c")])
