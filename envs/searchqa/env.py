"""Question answering by search: an agent asks a corpus, turn by turn, and answers."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..retrieval.interface import Document, Retriever
from . import react, scoring, tags
from .datasets import Question
from .scoring import normalise
from .sources import open_source
from .tags import FormatState

Protocol = Literal["tags", "react"]
Reward = Literal["em", "f1", "sub_em", "lenient", "shaped", "shaped_f1"]

_SHAPED = ("shaped", "shaped_f1")
_REACT_POOL = 10
"""Documents looked through for the page of a title; more than one passage may bear it."""
_REFUSED = 400
"""Characters of a refusal beyond the observation budget."""


class Inquiry(NamedTuple):
    """State of an episode.

    Attributes:
        observation: the text last shown.
        known: (id, title) of every document shown so far, in the order in which they were first shown.
        page: the sentences of the open page (react).
        keyword: what was last looked up on it (react).
        looked_up: how many results of that have been shown (react).
        format: where the dialogue stands in the grammar of well-formed ones (tags).
        evidence: whether a gold answer has occurred in a retrieved text.
        answer: the final answer, once given.
    """

    observation: str
    known: tuple[tuple[str, str], ...] = ()
    page: tuple[str, ...] = ()
    keyword: str = ""
    looked_up: int = 0
    format: FormatState = FormatState.START
    evidence: bool = False
    answer: str | None = None


class SearchQA(TextEnv[Inquiry]):
    """## Description
    A question is asked; a corpus can be searched; an answer ends the episode. The corpus is a generated
    encyclopedia of a made-up world (2,400 articles), or a real one such as Wikipedia behind any `retriever`.

    ## Actions
    With `protocol="tags"` (Search-R1, Tree-GRPO) a turn's text is the action; what counts is its first complete
    `<search>query</search>` or `<answer>final answer</answer>`. Results come back as

        \\n\\n<information>Doc 1(Title: "…") …\\nDoc 2(Title: "…") …</information>\\n\\n

    With `protocol="react"` (ReAct) the actions are `search[title]`, `lookup[keyword]` and `finish[answer]`.

    Only the agent's own text is parsed. Whatever a document contains, it cannot end the episode or answer.

    ## Rewards
    Given at the answer, by `reward`: "em" exact match; "f1" token F1 (as web-agent questions are scored); "sub_em"
    1 if a gold answer occurs within the answer; "lenient" 1 from F1 0.3 on (RAGEN); "shaped" Tree-GRPO's exact
    match with a format score; "shaped_f1" the same on F1. `success` is exact match whatever the reward.

    ## Episode end
    With an answer. The last of `max_steps` steps accepts only an answer and ends the episode (truncated) with any
    other action: the forced last answer of Search-R1, whose `max_turns` is `max_steps - 1`.

    ## Info
    `question`; after a search `documents`, the ids shown; at the end `answer`, `em`, `f1`, `sub_em`, and
    `evidence_recall`, the share of the supporting articles that were seen (where the data set names them).

    ## Arguments
    * `split`: "train", "dev" ("valid" means the same), "test", or what the data set has; None for all.
    * `dataset`: "encyclopedia", or a data set's name, whose folder is looked for in `data` or `ARBORETUM_DATA`.
      None: hotpotqa if it is there, else the encyclopedia.
    * `data`: a data set's folder, or one question file: FlashRAG's JSON lines, HotpotQA's JSON, Search-R1's
      parquet.
    * `retriever`: an index folder, a corpus file, the http:// address of a retrieval server, or a `Retriever`.
      None: BM25 over the data set's own corpus.
    * `protocol`: "tags" or "react".
    * `topk=3`: documents shown for a search (tags).
    * `hops`: only questions of so many hops (an integer or several).
    * `observation_budget=4000`: the most characters of document text shown at once.
    * `max_steps=8`: seven turns and the last answer.
    * `retrieval_bonus=0.0`: in the shaped reward, what a wrong answer earns if a gold one had been retrieved.
    * `encyclopedia_seed=0`: another seed, another made-up world.

    ## State
    `state_key` is the question together with what is known: the set of documents shown, the place on the open page
    (react), whether the episode has ended; with a shaped reward also the standing of the format, which a refused
    turn breaks for good. Queries and the order of reading do not count.

    ## Errors
    A retrieval server that fails raises `RetrievalError` out of `step`. The state is then unchanged: call `step`
    again later, or `restore` any snapshot.

    ## Source
    Search-R1 (Jin et al., 2025, arXiv:2503.09516), Tree-GRPO (Ji et al., 2025, arXiv:2509.21240), ReAct (Yao et
    al., 2023, arXiv:2210.03629). The text of a refusal is ours.
    """

    def __init__(
        self,
        split: str | None = None,
        dataset: str | None = None,
        data: str | Path | None = None,
        retriever: Retriever | str | Path | None = None,
        protocol: Protocol = "tags",
        topk: int = 3,
        hops: int | Sequence[int] | None = None,
        reward: Reward = "em",
        observation_budget: int = 4000,
        max_steps: int | None = 8,
        retrieval_bonus: float = 0.0,
        encyclopedia_seed: int = 0,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if protocol not in get_args(Protocol):
            raise unknown_name("protocol", protocol, get_args(Protocol))
        if reward not in get_args(Reward):
            raise unknown_name("reward", reward, get_args(Reward))
        if reward in _SHAPED and protocol != "tags":
            raise ConfigurationError(f'reward="{reward}" scores the format of the tags; it needs protocol="tags".')
        if topk < 1 or observation_budget < 1:
            raise ConfigurationError(
                f"topk and observation_budget must be positive, not {topk} and {observation_budget}."
            )
        source = open_source(dataset, data, split, hops, retriever, encyclopedia_seed)
        super().__init__(
            config={
                "dataset": source.name,
                "retriever": source.retriever.identity,
                "protocol": protocol,
                "topk": topk,
                "reward": reward,
                "observation_budget": observation_budget,
                "retrieval_bonus": retrieval_bonus,
            },
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            # What the frame of an observation and a question may add, or escaped tags (`&lt;`) lengthen.
            max_observation=4 * observation_budget + 4096,
            max_action=8192,
        )
        self.retriever = source.retriever
        self.protocol: Protocol = protocol
        self.reward: Reward = reward
        self.topk = topk
        self.observation_budget = observation_budget
        self.retrieval_bonus = retrieval_bonus
        self.tasks = list(source.questions)
        self._questions = source.questions
        self._question = Question("", "", ())
        self._shown: tuple[str, ...] | None = None

    # ------------------------------------------------------------------ the contract of text worlds

    @property
    def instructions(self) -> str:
        return tags.INSTRUCTIONS if self.protocol == "tags" else react.INSTRUCTIONS

    @property
    def question(self) -> Question:
        """The open question."""
        return self._question

    def _named_task(self, options: Mapping[str, Any]) -> str | None:
        task = options.get("task")
        if isinstance(task, str) and len(options) == 1:
            if task in self._questions:
                return task
            raise unknown_name("task", task, self.tasks[:1000])
        return super()._named_task(options)

    def _open(self, task: str) -> Inquiry:
        question = self._questions.get(task)
        if question is None:
            raise ConfigurationError(
                f"the task {task!r} is not in the split or of the hops that this world plays."
            )
        self._question = question
        self._shown = None
        text = self._question.question
        if not text.endswith("?"):
            text += "?"
        return Inquiry(f"Question: {text}")

    def _observe(self) -> str:
        return self._state.observation

    def _apply(self, action: str) -> Outcome:
        self._shown = None
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        return self._apply_tags(action, last) if self.protocol == "tags" else self._apply_react(action, last)

    def state_key(self) -> Hashable:
        state = self._state
        position = (state.page, state.keyword, state.looked_up)
        shaped = (state.format, state.evidence) if self.reward in _SHAPED else ()
        return self._task, frozenset(state.known), position, shaped, state.answer

    def admissible_actions(self) -> tuple[str, ...] | None:
        return () if self._ended else None

    def random_action(self, rng: random.Random) -> str:
        """Chance: with even odds search for a random word of the question, or answer with a random title seen."""
        if self._ended:
            return ""
        titles = [title for _, title in self._state.known]
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        if last or (titles and rng.random() < 0.5):
            return self._write("answer", rng.choice(titles or ["no"]))
        return self._write("search", rng.choice(self._question.question.rstrip("?").split()))

    def expert_actions(self) -> list[str] | None:
        """Search for every supporting article not yet seen, in the order of reading, then give the gold answer.

        An oracle: it knows the gold answer. Where steps run short it answers with what is left of them. None where
        the data set publishes no answer.
        """
        if self._ended or not self._question.golden_answers:
            return None
        seen = {title for _, title in self._state.known}
        wanted = [title for title in self._question.evidence if title not in seen]
        if self.max_steps is not None:
            wanted = wanted[: self.max_steps - self._steps - 1]
        return [self._write("search", title) for title in wanted] + [
            self._write("answer", self._question.golden_answers[0])
        ]

    def _details(self) -> Mapping[str, Any]:
        details: dict[str, Any] = {"question": self._question.question}
        if self._shown is not None:
            details["documents"] = self._shown
        if self._ended:
            details |= self._scores()
        return details

    # ------------------------------------------------------------------ the two dialogues

    def _apply_tags(self, action: str, last: bool) -> Outcome:
        state = self._state
        move = tags.parse(action)
        spoken = tags.advance(state.format, tags.cut(action))
        if move is not None and move.kind == "answer":
            return self._answer(move.text, spoken)
        if last or move is None or not move.text:
            if self.reward in _SHAPED:
                # What was said stays part of the dialogue, which can no longer become a well-formed one.
                self._state = state._replace(format=FormatState.BROKEN)
            refusal = tags.SEARCHES_USED_UP if last else tags.REFUSAL
            return Outcome(refusal, 0.0, False, False, False, self._state != state)
        documents = self._retrieve(move.text, self.topk)
        observation = tags.information(documents, self.observation_budget)
        shown = tags.shown(documents, self.observation_budget)
        self._know(shown, observation, format=tags.advance(spoken, observation))
        return self._outcome(observation, state)

    def _apply_react(self, action: str, last: bool) -> Outcome:
        state = self._state
        move = react.parse(action)
        if move is not None and move.kind == "finish":
            return self._answer(move.text, state.format)
        if last or move is None or not move.text:
            return self._refuse(react.SEARCHES_USED_UP if last else react.REFUSAL)
        if move.kind == "search":
            documents = self._retrieve(move.text, _REACT_POOL)
            page = react.find_page(move.text, documents)
            if page:
                sentences = tuple(react.sentences(" ".join(document.text for document in page)))
                observation = react.opening(sentences)[: self.observation_budget]
                self._know(page, observation, page=sentences, keyword="", looked_up=0)
            else:
                observation = react.not_found(move.text, documents)[: self.observation_budget]
                self._know([], observation)
            return self._outcome(observation, state)
        if not state.page:
            return self._refuse("No page is open; search for one first.")
        index = state.looked_up if move.text.lower() == state.keyword else 0
        found, more = react.lookup(state.page, move.text, index)
        found = found[: self.observation_budget]
        self._know([], found, keyword=move.text.lower(), looked_up=index + more)
        return self._outcome(found, state)

    def _retrieve(self, query: str, k: int) -> list[Document]:
        return [hit.document for hit in self.retriever.search([query], k)[0]]

    def _know(self, documents: Sequence[Document], observation: str, **changes: Any) -> None:
        """Replace the state by one in which these documents are known too."""
        state = self._state
        fresh = dict.fromkeys((document.id, document.title) for document in documents)
        evidence = state.evidence
        if not evidence and self._question.golden_answers:
            text = normalise(observation)
            evidence = any(normalise(gold) in text for gold in self._question.golden_answers)
        known = tuple(dict.fromkeys((*state.known, *fresh)))
        self._state = state._replace(observation=observation, known=known, evidence=evidence, **changes)
        self._shown = tuple(document.id for document in documents)

    def _outcome(self, observation: str, before: Inquiry) -> Outcome:
        after, self._state = self._state, before
        key = self.state_key()
        self._state = after
        return Outcome(observation, 0.0, False, False, True, self.state_key() != key)

    def _refuse(self, text: str) -> Outcome:
        return Outcome(text, 0.0, False, False, False, False)

    def _answer(self, answer: str, spoken: FormatState) -> Outcome:
        observation = f"Answer: {answer[: self.observation_budget]}"
        self._state = self._state._replace(observation=observation, answer=answer, format=spoken)
        return Outcome(observation, self._score(), True, self._right(), True, True)

    # ------------------------------------------------------------------ scores

    def _right(self) -> bool:
        answer = self._state.answer
        return answer is not None and scoring.exact_match(answer, self._question.golden_answers)

    def _score(self) -> float:
        """The reward of the answer given."""
        state, golds = self._state, self._question.golden_answers
        answer = state.answer or ""
        well_formed = state.format is FormatState.ANSWERED
        match self.reward:
            case "em":
                return float(self._right())
            case "f1":
                return scoring.f1(answer, golds)
            case "sub_em":
                return float(scoring.sub_exact_match(answer, golds))
            case "lenient":
                return float(self._right() or scoring.f1(answer, golds) >= scoring.LENIENT_F1)
            case "shaped":
                return scoring.shaped_em(
                    self._right(), True, well_formed, state.evidence, retrieval=self.retrieval_bonus
                )
            case "shaped_f1":
                return scoring.shaped_f1(scoring.f1(answer, golds), True, well_formed)

    def _scores(self) -> dict[str, Any]:
        answer, golds = self._state.answer, self._question.golden_answers
        given = answer is not None
        scores: dict[str, Any] = {
            "answer": answer if answer is not None else "",
            "em": float(self._right()),
            "f1": scoring.f1(answer or "", golds) if given else 0.0,
            "sub_em": float(given and scoring.sub_exact_match(answer or "", golds)),
        }
        if self._question.evidence:
            seen = {title for _, title in self._state.known}
            wanted = self._question.evidence
            scores["evidence_recall"] = sum(title in seen for title in wanted) / len(wanted)
        return scores

    def _write(self, kind: Literal["search", "answer"], text: str) -> str:
        if self.protocol == "react":
            return f"search[{text}]" if kind == "search" else f"finish[{text}]"
        action = f"<{kind}>{text}</{kind}>"
        if self.reward not in _SHAPED:
            return action
        thought = f"I should read about {text}." if kind == "search" else "I have read what I need."
        return f"<think>{thought}</think>\n{action}"
