"""Benchmark of the parsers of foreign text, and the registry of these parsers.

Foreign text is everything that a model, a page, a server or a corpus supplies. A parser of it takes time in
proportion to the length of the text, whatever the text is. `PARSERS` names every such parser once, for this
benchmark and for the tests; a new parser is added there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ...agents.dialogue.registry import DIALOGUES, make_dialogue
from ...agents.dialogue.search_o1 import BEGIN_QUERY, END_QUERY, queries
from ...agents.engines import faults, openai
from ...envs.alfworld import grammar, pddl
from ...envs.alfworld.pddl import Malformed
from ...envs.blocksworld.notation import vocabulary
from ...envs.blocksworld.pddl import read_problem
from ...envs.blocksworld.plans import score_plan
from ...envs.blocksworld.rules import Goal
from ...envs.errors import DataError
from ...envs.registry import make_env
from ...envs.retrieval.interface import Document
from ...envs.retrieval.lucene_bm25 import analyze, tokenize
from ...envs.retry_after import parse_duration
from ...envs.searchqa import datasets, react, scoring, tags
from ...envs.sokoban.level_files import parse_levels
from ...envs.webshop import fuzzy, goals, original, pages, product, session, shop, tagger
from .row import Row

LENGTH = 100_000
"""Characters of the texts."""
LIMIT = 0.1
"""Maximum CPU seconds of a parser on a text of `LENGTH` characters."""

PIECES = (
    # markup of the dialogues
    "<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<information>", "</information>",
    "<", ">", "</", "< think", "||", BEGIN_QUERY, END_QUERY, "\\boxed{", "}", "{",
    # actions
    "Action", "Action 1", "Action:", "\nAction:", "Thought:", "search[", "finish[", "click[", "[", "]", "(", ")",
    "[plan]\n", "[plan end]\n", "pick up ", "stack a ", "go to ", "take ", "a 1 ", "Up",
    # words, and characters of every class of the tokenizer
    "_", "a", "1", "_a", "a_", "a.", "1,", "a1", "'", '"', "`", ".", ",", ":", "-", "é", "İ", "ß", "\u0301",
    "\u00ad", "\u200d", "\ufe0f", "\ufe0e", "\u20e3", "#", "☺", "👍", "🏽", "🇫", "ש", "ก", "カ", "中",
    "\U000e0041",
    # white space and controls
    " ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u2028", "\x0b", "\x00", "\x1b[", "\ud800",
    # prompts, files and replies of servers
    "Question:", "<|im_end|>", "(:init", "(on a b)", "(and ", ";", "$", "0", "1d", "1m", "+", "=", "|", "#a#",
    "[{", "}]", '"rhs":', '"rhs": "Your task is to: ', '"""', "\\", "action a {", "a :: ", "&",
    "a(b:c)", "context", "unknown",
)  # fmt: skip
"""Pieces that the grammars of the parsers consist of."""

_PAIRS = (
    ("<think>", "</think>"), ("</think>", "<answer>"), ("<answer>", "</answer>"), ("<search>", "</search>"),
    ("<information>", "</information>"), ("<answer>", "</search>"), (BEGIN_QUERY, END_QUERY), ("\\boxed{", "}"),
    ("search[", "]"), ("a[", "]"), ("(", ")"), ("{", "}"), ('"', '"'), ('a :: "', '";'), ('a :: """', '""";'),
    ('"rhs": "Your task is to: ', '"'), ("Question:", "<|im_end|>"), ("Question:a", "x"), ("Action:", "\n"),
    ("_", "a"), ("a", "_"), ("\u200d", "☺"), ("☺", "\u200d"), ("#", "\u20e3"), ("🇫", "🇫"), ("'", "s"),
)  # fmt: skip
"""Pieces that open and close something, or that may begin and complete a token."""

_FILLERS = ("a", " ", "\n", "_", "\u200d", "\u0301", "</think><answer>", "<", "]", "}")


class HostileText(NamedTuple):
    """Adversarial text of any length: a start, repetitions of one or two patterns, and an end."""

    start: str
    pattern: str
    second: str = ""
    end: str = ""

    def of_length(self, length: int) -> str:
        """Return the text with a length in characters."""
        inside = length - len(self.start) - len(self.end)
        half = inside // 2 if self.second else inside
        return self.start + _repeat(self.pattern, half) + _repeat(self.second, inside - half) + self.end


def _repeat(pattern: str, length: int) -> str:
    return (pattern * (length // len(pattern) + 1))[:length] if length > 0 else ""


def hostile_texts() -> list[HostileText]:
    """Return the adversarial texts: repeated, nested, unclosed and interleaved pieces, and runs of fillers."""
    texts = []
    for piece in PIECES:
        texts += [HostileText("", piece + gap) for gap in ("", " ", "a", "\n")]
        texts.append(HostileText(piece, " "))
    for first, second in _PAIRS:
        texts += [HostileText("", first, end=second), HostileText(first, second)]
        texts += [HostileText("", first + second), HostileText("", first, second)]
        for filler in _FILLERS:
            texts += [HostileText(first, filler), HostileText(first, filler, end=second)]
        texts += [HostileText("", first + filler * 300, end=second) for filler in ("_", "\u200d", " ")]
    return texts


def _errors(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Return a parser that returns the errors which it raises on malformed text."""

    def run(text: str) -> object:
        try:
            return parse(text)
        except (DataError, Malformed, ValueError) as error:
            return error

    return run


def _step(env_id: str, before: str = "", after: str = "", **options: Any) -> Callable[[str], object]:
    """Return a function that executes an action in an environment's first state."""
    env = make_env(env_id, **options)
    env.reset(seed=0)
    start = env.snapshot()

    def run(text: str) -> object:
        env.restore(start)
        return env.step(f"{before}{text}{after}")

    return run


def _page(text: str) -> object:
    """Return the observations of a product page whose texts are foreign."""
    item = product.parse_product(
        {
            "asin": "B0",
            "name": text,
            "full_description": text,
            "small_description": [text],
            "category": "c",
            "query": "q",
            "product_category": "c",
            "customization_options": {"size": [{"value": text}]},
        },
        None,
        None,
    )
    wanted = goals.Goal("B0", "c", "q", "n", "c", "find it", (), 1.0, {}, 1.0)
    page = pages.Page(session.Session("0", 0, "item", product=0), wanted, item, (), False)
    return [original.observe(page, mode) for mode in original.OBSERVATION_MODES]


@lru_cache(maxsize=1)
def parsers() -> dict[str, Callable[[str], object]]:
    """Return every parser of foreign text by name."""
    dialogues = {f"dialogue {name}": make_dialogue(name).parse for name in DIALOGUES}
    words = vocabulary(("a", "b", "c"), "english")
    goal = Goal(((0, 1),), (), (), False)
    domain = pddl.Domain(frozenset({"object"}), {"on": 2}, {})
    problem = "(define (problem p) (:objects {}) (:init {}) (:goal (and {})))"
    return {
        **dialogues,
        "search_o1 queries": queries,
        "stop texts": partial(openai.cut_at_stop, stop=("</answer>", END_QUERY)),
        "closing tag": partial(openai.missing_closing_tag, stop=("</answer>", "</search>")),
        "server duration": parse_duration,
        "server error": lambda text: (
            faults.is_context_overflow({"error": {"message": text}}),
            faults.unsupported_option({"error": {"message": text}}, {"seed": 0}),
        ),
        "TextBandit action": _step("TextBandit-v0"),
        "TextSokoban action": _step("TextSokoban-v0"),
        "TextFrozenLake action": _step("TextFrozenLake-v0"),
        "TextBlocksworld action": _step("TextBlocksworld-v0"),
        "TextBlocksworld plan": _step("TextBlocksworld-v0", mode="plan"),
        "TextALFWorld action": _step("TextALFWorld-v0"),
        "TextWebShop action": _step("TextWebShop-v0"),
        "TextWebShop search": _step("TextWebShop-v0", "search[", "]"),
        "TextWebShop click": _step("TextWebShop-v0", "click[", "]"),
        "TextSearchQA turn": _step("TextSearchQA-v0"),
        "TextSearchQA search": _step("TextSearchQA-v0", "<search>", "</search>"),
        "TextSearchQA answer": _step("TextSearchQA-v0", "<answer>", "</answer>", reward="shaped"),
        "TextSearchQA react": _step("TextSearchQA-v0", protocol="react"),
        "webshop action": shop.parse_action,
        "webshop price": _errors(product.parse_prices),
        "webshop nouns": tagger.letter_runs,
        "webshop phrase": lambda text: fuzzy.token_sets_alike.__wrapped__(text, text[::-1]),
        "webshop page": _page,
        "searchqa tags": tags.parse_action,
        "searchqa format": partial(tags.advance, tags.FormatState.START),
        "searchqa escapes": tags.escape_tags,
        "searchqa documents": lambda text: tags.format_results([Document("0", text)] * 3, 3 * LENGTH),
        "searchqa react": react.parse_action,
        "searchqa sentences": react.split_sentences,
        "searchqa normalization": scoring.normalize,
        "searchqa F1": lambda text: scoring.f1(text, [text, "b"]),
        "searchqa transcript": lambda text: scoring.score_transcript(text, ["a"]),
        "searchqa prompt": lambda text: datasets.question_from_prompt([{"content": text}]),
        "tokenizer": tokenize,
        "analyzer": analyze,
        "blocksworld line": words.read,
        "blocksworld lenient line": words.read_leniently,
        "blocksworld plan": lambda text: score_plan(text, (-1, -1, -1), goal, words, len(text)),
        "blocksworld objects": _errors(
            lambda text: read_problem(problem.format(text, "(handempty)", "(on a b)"), "p")
        ),
        "blocksworld init": _errors(lambda text: read_problem(problem.format("a b", text, "(on a b)"), "p")),
        "sokoban levels": _errors(lambda text: parse_levels(text, "000.txt")),
        "alfworld expressions": _errors(pddl.read_expressions),
        "alfworld domain": _errors(pddl.read_domain),
        "alfworld problem": _errors(
            lambda text: pddl.read_problem(problem.format("a - object", text, "a"), domain)
        ),
        "alfworld sentence": _errors(grammar.mask_sentence),
        "alfworld grammar": _errors(grammar._read_entries.__wrapped__),
        "alfworld grammar text": _errors(lambda text: grammar._TextCompiler({"a": [{"rhs": "b"}]}).text(text, {})),
    }


def cpu_time(parse: Callable[[str], object], text: str, runs: int = 5) -> float:
    """Return the least CPU seconds of a parse over some runs; one that is far below the limit suffices."""
    least = float("inf")
    for _ in range(runs):
        start = time.process_time()
        parse(text)
        least = min(least, time.process_time() - start)
        if least < LIMIT / 4:
            break
    return least


def slowest_texts(parse: Callable[[str], object], count: int = 4, length: int = LENGTH) -> list[HostileText]:
    """Return the adversarial texts that take a parser longest at a tenth of a length."""
    times = [(cpu_time(parse, text.of_length(length // 10), runs=1), text) for text in hostile_texts()]
    return [text for _, text in heapq.nlargest(count, times)]


def measure(peers: bool = False) -> Iterator[Row]:
    """Yield the CPU time of every parser on the adversarial text that takes it longest.

    Args:
        peers: Unused; the requirement is absolute.
    """
    del peers
    for name, parse in parsers().items():
        seconds, worst = max((cpu_time(parse, text.of_length(LENGTH)), text) for text in slowest_texts(parse))
        details = f"start {worst.start!r}, then {worst.pattern[:20]!r}"
        yield Row(name, 1000 * seconds, "ms", 1000 * LIMIT, higher_is_better=False, details=details)
