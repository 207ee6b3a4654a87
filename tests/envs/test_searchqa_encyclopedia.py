"""Tests of the generated encyclopedia and its questions against the text of the articles."""

import itertools
import re

import pytest

from arboretum.envs.retrieval.bm25 import BM25
from arboretum.envs.searchqa.encyclopedia import SIZES, SPLITS, Encyclopedia, encyclopedia
from arboretum.envs.searchqa.questions import generate_questions


@pytest.fixture(scope="module")
def source():
    return encyclopedia(0)


@pytest.fixture(scope="module")
def retriever(source):
    return BM25.of(source.documents())


def test_encyclopedia_has_2400_unique_titles_and_depends_on_its_seed(source):
    documents = source.documents()
    assert len(documents) == len({document.title for document in documents}) == 2400
    assert sum(sum(kinds.values()) for kinds in SIZES.values()) == 2400
    assert documents == Encyclopedia(0).documents()
    assert documents != Encyclopedia(1).documents()


def test_article_text_states_every_fact(source):
    for article in source.articles.values():
        for name, fact in article.facts.items():
            assert fact in article.text, (article.title, name)


def test_articles_refer_only_to_articles_of_their_split(source):
    for article in source.articles.values():
        mentioned = [source.articles[fact] for fact in article.facts.values() if fact in source.articles]
        assert {other.split for other in mentioned} <= {article.split}
    rivers = [
        {a.facts["river"] for a in source.articles.values() if a.split == s and "river" in a.facts} for s in SPLITS
    ]
    assert not (rivers[0] & rivers[1] or rivers[0] & rivers[2] or rivers[1] & rivers[2])


@pytest.mark.parametrize("split", SPLITS)
def test_questions_are_answerable_from_their_evidence(source, split):
    questions = generate_questions(0, split)
    assert len({question.question for question in questions}) == len(questions)
    kinds = {"single": 0, "bridge": 0, "comparison": 0}
    for question in questions:
        (answer,) = question.golden_answers
        chain = [source.articles[title] for title in question.evidence]
        kinds[question.metadata["type"]] += 1
        assert {article.split for article in chain} == {split}
        assert len(set(question.evidence)) == len(chain) == question.metadata["hops"]
        assert chain[0].title in question.question
        if question.metadata["type"] != "comparison":
            # Each article names the next, and the last one contains the answer.
            for here, following in itertools.pairwise(chain):
                assert following.title in here.text
                assert following.title not in question.question
            assert answer in chain[-1].text
            assert not re.search(rf"\b{re.escape(answer)}\b", question.question)
    assert min(kinds.values()) > len(questions) / 10


def test_comparison_answers_match_the_facts_of_the_articles(source):
    """The evidence of a two-hop comparison is the two compared articles."""
    decided = {"yes": 0, "no": 0}
    for question in generate_questions(0, "train"):
        if question.metadata["type"] != "comparison" or question.metadata["hops"] != 2:
            continue
        left, right = (source.articles[title] for title in question.evidence)
        (answer,) = question.golden_answers
        text = question.question
        if answer in decided:
            decided[answer] += 1
            name = next(n for n in ("profession", "river", "form", "emblem") if n in text)
            assert (left.facts[name] == right.facts[name]) == (answer == "yes")
            continue
        for pattern, names, sign in (
            (r"earlier", ("born", "founded", "year"), -1),
            (r"larger population", ("population",), 1),
            (r"more members", ("members",), 1),
        ):
            if re.search(pattern, text):
                name = next(n for n in names if n in left.facts)
                better = max((left, right), key=lambda a, n=name, s=sign: s * int(a.facts[n]))
                assert answer == better.title
                break
        else:
            raise AssertionError(text)
    assert min(decided.values()) > 50


def test_title_as_query_retrieves_its_article_first(source, retriever):
    titles = list(source.articles)
    first = [ranking[0].document.title for ranking in retriever.search(titles, 1)]
    assert first == titles


def test_questions_alone_rarely_retrieve_all_supporting_articles(retriever):
    """The question does not contain the titles of intermediate articles, so several searches are necessary."""
    for hops, limit in ((3, 0.35), (4, 0.2)):
        questions = [q for q in generate_questions(0, "dev") if q.metadata == {"type": "bridge", "hops": hops}]
        rankings = retriever.search([q.question for q in questions], 3)
        complete = [
            set(q.evidence) <= {hit.document.title for hit in ranking}
            for q, ranking in zip(questions, rankings, strict=True)
        ]
        assert sum(complete) / len(complete) < limit
