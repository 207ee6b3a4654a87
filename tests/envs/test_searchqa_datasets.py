"""Tests of question files in every supported format, and of malformed ones."""

import gzip
import json

import pytest

from arboretum.envs import ConfigurationError, DataError
from arboretum.envs.searchqa import SearchQA
from arboretum.envs.searchqa.datasets import context_corpus, question_files, read_questions
from arboretum.envs.searchqa.sources import number_of_hops

FLASHRAG = {"id": "test_0", "question": "who?", "golden_answers": ["a", "b"], "metadata": {"type": "bridge"}}
HOTPOT = {
    "_id": "5a8b57f25542995d1e6f1371",
    "question": "Were Scott and Ed of one nationality?",
    "answer": "yes",
    "supporting_facts": [["Scott", 0], ["Ed", 0], ["Scott", 2]],
    "context": [["Ed", ["Ed is one.", " He films."]], ["Scott", ["Scott is another."]], ["Other", []]],
    "type": "comparison",
    "level": "hard",
}
PREPARED = {
    "data_source": "nq",
    "prompt": [
        {"role": "user", "content": "Answer the given question. <answer> Beijing </answer>. Question: who?\n"}
    ],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["a", "b"]}},
    "extra_info": {"split": "train", "index": 3},
}


def test_flashrag_json_lines_are_read(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(FLASHRAG).encode()))
    (question,) = read_questions(path)
    assert (question.id, question.question, question.golden_answers) == ("test_0", "who?", ("a", "b"))
    assert question.metadata == {"type": "bridge"}


def test_original_hotpotqa_file_is_read_with_its_context_as_corpus(tmp_path):
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps([HOTPOT]))
    (question,) = read_questions(path)
    assert (question.golden_answers, question.evidence) == (("yes",), ("Scott", "Ed"))
    assert question.metadata["level"] == "hard"
    corpus = context_corpus([question, question])
    assert [document.contents for document in corpus] == [
        '"Ed"\nEd is one. He films.',
        '"Scott"\nScott is another.',
        '"Other"\n',
    ]
    # Without a corpus file, the context paragraphs are the corpus.
    env = SearchQA(data=path, protocol="react")
    env.reset(options={"task": 0})
    for action in env.expert_actions():
        *_, info = env.step(action)
    assert info["success"] and info["evidence_recall"] == 1.0


@pytest.mark.parametrize("column", ["sentences", "content"])
def test_flashrag_file_is_read_with_its_context_as_corpus(tmp_path, column):
    """`arboretum data get` downloads such rows; FlashRAG names the column of the paragraphs in one of two ways."""
    context = {"title": [title for title, _ in HOTPOT["context"]], column: [text for _, text in HOTPOT["context"]]}
    facts = {"title": [title for title, _ in HOTPOT["supporting_facts"]], "sent_id": [0, 0]}
    metadata = {"type": "comparison", "context": context, "supporting_facts": facts}
    row = {"id": "dev_0", "question": HOTPOT["question"], "golden_answers": ["yes"], "metadata": metadata}
    (tmp_path / "hotpotqa").mkdir()
    path = tmp_path / "hotpotqa" / "dev.jsonl"
    path.write_text(json.dumps(row) + "\n")
    original = tmp_path / "hotpot_dev_distractor_v1.json"
    original.write_text(json.dumps([HOTPOT]))
    (question,), (expected,) = read_questions(path), read_questions(original)
    assert (question.context, question.evidence) == (expected.context, expected.evidence) and question.context
    env = SearchQA(dataset="hotpotqa", data=tmp_path, split="dev", protocol="react")
    env.reset(options={"task": 0})
    for action in env.expert_actions():
        *_, info = env.step(action)
    assert info["success"]


@pytest.mark.parametrize("other", ["A paragraph.", ["ab", "cd"], {"title": ["Ed"]}, 3])
def test_context_of_another_form_stays_in_the_metadata(tmp_path, other):
    path = tmp_path / "dev.jsonl"
    path.write_text(
        json.dumps({"question": "who?", "golden_answers": ["x"], "metadata": {"context": other}}) + "\n"
    )
    (question,) = read_questions(path)
    assert question.context == () and question.metadata["context"] == other


def test_prepared_json_rows_are_read_with_unique_ids(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(PREPARED) + "\n" + json.dumps({**PREPARED, "data_source": "hotpotqa"}))
    first, second = read_questions(path)
    assert (first.id, second.id) == ("nq_train_3", "hotpotqa_train_3")  # Row numbers alone are not unique.
    assert (first.question, first.golden_answers) == ("who?", ("a", "b"))


@pytest.mark.heavy
def test_prepared_parquet_is_read_and_truncated_parquet_rejected(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([PREPARED]), path)
    (question,) = read_questions(path)
    assert (question.id, question.question, question.golden_answers) == ("nq_train_3", "who?", ("a", "b"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_questions(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no questions"),
        ("{", "line 1: is not JSON"),
        ('{"id": "0"}', "line 1: has no 'question'"),
        ('{"question": "q", "golden_answers": [1]}', "line 1: 'golden_answers' must be"),
        ('{"question": "q", "metadata": 3}', "line 1: 'metadata' must be"),
        ('{"question": "q", "context": [1]}', "line 1: 'context' must be"),
        ('{"id": 1, "question": "q"}\n{"id": 1, "question": "r"}', "line 2: repeats the question id '1'"),
    ],
)
def test_malformed_question_file_is_rejected_with_its_line(tmp_path, text, message):
    path = tmp_path / "test.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_questions(path)
    with pytest.raises(DataError, match="no such file"):
        read_questions(tmp_path / "absent.parquet")


def test_question_files_are_found_by_split(tmp_path):
    names = ["train.jsonl", "dev.jsonl.gz", "test-00000-of-00001.parquet", "corpus.jsonl", "notes.txt"]
    for name in (*names, "checksums.json"):  # which `arboretum data get` writes
        (tmp_path / name).touch()
    files = question_files(tmp_path)
    assert {split: path.name for split, path in files.items()} == {
        "train": "train.jsonl",
        "dev": "dev.jsonl.gz",
        "test": "test-00000-of-00001.parquet",
    }


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (
            ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json", "hotpot_train_v1.1.json"),
            ("hotpot_dev_distractor_v1", "hotpot_dev_fullwiki_v1", "train"),
        ),
        (("dev.jsonl", "dev60_with_context.jsonl", "dev7405.jsonl.gz"), ("dev", "dev60", "dev7405")),
        (("nq_test.jsonl", "triviaqa_test.jsonl"), ("nq_test", "triviaqa_test")),
    ],
)
def test_files_of_one_split_are_all_found(tmp_path, names, splits):
    for name in names:
        (tmp_path / name).touch()
    files = question_files(tmp_path)
    assert tuple(path.name for path in files.values()) == names
    assert tuple(files) == splits


def test_files_of_the_same_name_but_for_the_ending_are_refused(tmp_path):
    for name in ("train.jsonl", "train.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(
        ConfigurationError, match=r"train\.jsonl and train\.parquet are both the split 'train'; keep"
    ):
        question_files(tmp_path)


def test_unknown_data_set_is_named_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.setenv("ARBORETUM_DATA", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"unknown data set 'hotpotqq'; did you mean hotpotqa.*as data="):
        SearchQA(dataset="hotpotqq")
    with pytest.raises(ConfigurationError, match="download it with `arboretum data get hotpotqa`"):
        SearchQA(dataset="hotpotqa")


def test_data_set_is_opened_by_the_name_of_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / "musique"
    folder.mkdir()
    rows = [
        {"id": f"{n}hop{i}__x", "question": f"{n} {i}?", "golden_answers": ["a"]} for n in (2, 3) for i in (0, 1)
    ]
    (folder / "dev.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "corpus.jsonl").write_text('{"id": "0", "contents": "\\"T\\"\\ntext"}')
    monkeypatch.setenv("ARBORETUM_DATA", str(tmp_path))
    assert SearchQA(dataset="musique", split="valid").tasks[0] == "dev/2hop0__x"
    assert SearchQA(dataset="musique", hops=3).tasks == ["dev/3hop0__x", "dev/3hop1__x"]
    with pytest.raises(ConfigurationError, match="unknown split"):
        SearchQA(dataset="musique", split="test")
    assert number_of_hops(read_questions(folder / "dev.jsonl")[3]) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no question file"):
        SearchQA(dataset="empty")
