"""The SearchQA environment: multi-turn question answering with a search engine."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..optimum import Optimum
from ..retrieval.interface import Document, Retriever
from ..snapshots import Snapshot
from ..tools import Parameter, Tool
from . import react, scoring, tags
from .datasets import Question
from .scoring import normalize
from .searcher import next_action
from .sources import open_source
from .tags import FormatState

Protocol = Literal["tags", "react"]
Reward = Literal["em", "f1", "sub_em", "lenient", "shaped", "shaped_f1"]

_SHAPED = ("shaped", "shaped_f1")
_REACT_CANDIDATES = 10
"""Number of retrieved documents among which the page of a title is searched; a page may have several passages."""


class Inquiry(NamedTuple):
    """State of an episode.

    Attributes:
        observation: Last observation.
        known: (id, title) of every document shown so far, in the order of first appearance.
        page: Sentences of the open page (react).
        keyword: Keyword of the last lookup on that page (react).
        looked_up: Number of results of that keyword shown so far (react).
        format: State of the format grammar after the dialogue so far (tags).
        evidence: True if a gold answer occurred in a retrieved text.
        answer: Final answer, or None if it has not been given.
    """

    observation: str
    known: tuple[tuple[str, str], ...] = ()
    page: tuple[str, ...] = ()
    keyword: str = ""
    looked_up: int = 0
    format: FormatState = FormatState.START
    evidence: bool = False
    answer: str | None = None


_FIELD_TYPES = [[str, tuple, tuple, str, int, FormatState, bool, answer] for answer in (NoneType, str)]
"""Types of an `Inquiry`'s fields, before and after the answer."""


class SearchQA(TextEnv[Inquiry]):
    """## Description
    Multi-turn question answering with search. The agent receives a question, searches a corpus within its step
    limit, and ends the episode with an answer. The questions and the corpus come from a data set such as HotpotQA,
    or from a generated encyclopedia of a made-up world (2,400 articles), whose facts no model can know from
    pretraining. With `retriever`, questions can be answered from any other corpus, such as Wikipedia.

    ## Actions
    With `protocol="tags"` (Search-R1, Tree-GRPO) the action is the full text of a turn, and its first complete
    `<search>query</search>` or `<answer>final answer</answer>` is executed. Search results are returned as

        \\n\\n<information>Doc 1(Title: "…") …\\nDoc 2(Title: "…") …</information>\\n\\n

    With `protocol="react"` (ReAct) the actions are `search[title]`, `lookup[keyword]` and `finish[answer]`.

    Only the agent's own text is parsed, so the content of a document can neither end the episode nor answer.

    ## Observations
    The first observation is the question. After a search it contains the retrieved text, cut to
    `observation_budget` characters; an invalid action is answered with a list of the valid ones.

    ## Rewards
    The reward is given for the answer and selected by `reward`; all other steps give 0.
    * "em": 1 for an exact match after normalization.
    * "f1": Token F1, as for web-agent questions.
    * "sub_em": 1 if a gold answer occurs within the answer.
    * "lenient": 1 if the token F1 is at least 0.3 (RAGEN).
    * "shaped": Tree-GRPO's exact match combined with a format score.
    * "shaped_f1": F1 combined with the same format score.

    `success` is exact match, whatever the reward.

    ## Episode end
    The episode terminates with an answer. The last of `max_steps` steps accepts only an answer; any other action
    truncates the episode. This is the forced final answer of Search-R1, whose `max_turns` is `max_steps - 1`.

    ## Info
    In addition to the common entries:
    * `question`: Text of the question.
    * `documents`: Ids of the documents shown, after a search.
    * `answer`, `em`, `f1`, `sub_em`: Final answer and its scores, at the end of the episode.
    * `evidence_recall`: Fraction of the supporting articles that were shown, at the end of the episode and if the
      data set names them.

    ## Splits
    | split | encyclopedia | HotpotQA |
    |---|---|---|
    | "train" | 16,000 | 90,447 |
    | "dev" | 2,000 | 7,405 |
    | "test" | 2,000 | |

    The splits of the generated encyclopedia share no article; a quarter of the questions of each takes one
    hop, and likewise two, three and four.

    ## Arguments
    * `split`: "train", "dev" (synonym "valid"), "test", or any other split of the data set. None selects all.
    * `dataset`: "encyclopedia", or the name of a data set whose folder is in `data` or `ARBORETUM_DATA`. None
      selects hotpotqa if it is available, else the encyclopedia.
    * `data`: Folder of a data set, or a question file: FlashRAG's JSON lines, HotpotQA's JSON or Search-R1's
      parquet.
    * `retriever`: Index folder, corpus file, http:// address of a retrieval server, or `Retriever`. None selects
      BM25 over the data set's own corpus. A server needs the extra `openai`; searches of it wait for replies, so
      that rollouts step their environments concurrently.
    * `protocol`: "tags" or "react".
    * `topk=3`: Number of documents per search (tags).
    * `hops`: Number of hops, or several numbers, to which questions are restricted. None selects all questions.
    * `reward="em"`: Reward function (see above).
    * `observation_budget=4000`: Maximum number of characters of document text per observation.
    * `max_steps=8`: Step limit: seven turns and the final answer. None lifts it.
    * `retrieval_bonus=0.0`: Bonus of the shaped reward for a wrong answer in a well-formed dialogue if a gold
      answer was retrieved.
    * `encyclopedia_seed=0`: Seed of the generated encyclopedia.

    ## State
    `state_key` consists of the question, the set of documents shown, the position on the open page (react), and
    the answer, if given. With a shaped reward it includes the state of the format, which a refused turn breaks for
    the rest of the episode. Queries and the order of documents are not part of it.

    ## Expert
    `expert_actions()` is an oracle with access to the gold answer: it searches for every supporting article that
    has not been shown, then answers. It is None if the data set publishes no answer. `searching_actions()`, the
    plan of the agent `searching_expert`, follows from the question and the passages shown, and from nothing else;
    it reads the generated encyclopedia only.

    ## Errors
    If a retrieval server fails, `step` raises `RetrievalError` and leaves the state unchanged: call `step` again
    later, or `restore` a snapshot.

    ## Source
    Search-R1 (Jin et al., 2025, arXiv:2503.09516), Tree-GRPO (Ji et al., 2025, arXiv:2509.21240), ReAct (Yao et
    al., 2023, arXiv:2210.03629). Refusal texts are our own.

    ## Version history
    * `v0`: initial version, of release 0.1.0.
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
            raise ConfigurationError(f'reward="{reward}" scores the format of tags; it needs protocol="tags".')
        for name, value in (("topk", topk), ("observation_budget", observation_budget)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{name} must be a positive integer, not {value!r}.")
        if type(encyclopedia_seed) is not int:
            raise ConfigurationError(f"encyclopedia_seed must be an integer, not {encyclopedia_seed!r}.")
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
            # Allows for the question, the text around documents, and escaped tags (`&lt;` has four characters).
            max_observation=4 * observation_budget + 4096,
            max_action=8192,
        )
        self.retriever = source.retriever
        self.waits = source.retriever.waits
        self.protocol: Protocol = protocol
        self.reward: Reward = reward
        self.topk = topk
        self.observation_budget = observation_budget
        self.retrieval_bonus = retrieval_bonus
        self.tasks = list(source.questions)
        self._questions = source.questions
        self._is_generated = source.is_generated
        self._question = Question("", "", ())
        self._shown: tuple[str, ...] | None = None

    # ------------------------------------------------------------------ TextEnv interface

    @property
    def generated_data(self) -> str | None:
        return "generated encyclopedia" if self._is_generated else None

    @property
    def replay_is_costly(self) -> bool:
        """True unless the corpus is the generated encyclopedia, which is searched in memory."""
        return not self._is_generated

    @property
    def instructions(self) -> str:
        return tags.INSTRUCTIONS if self.protocol == "tags" else react.INSTRUCTIONS

    @property
    def tools(self) -> tuple[Tool, ...]:
        answer = Parameter("text", "The answer, without explanation.")
        if self.protocol == "react":
            title = Parameter("entity", "Title of the page.")
            keyword = Parameter("keyword", "Word to find on the page.")
            return (
                Tool("search", "Open the page of a title.", "search[{entity}]", (title,)),
                Tool("lookup", "Show the next sentence with a keyword.", "lookup[{keyword}]", (keyword,)),
                Tool("answer", "Give the final answer, which ends the episode.", "finish[{text}]", (answer,)),
            )
        # Shaped rewards check the form of a reply, in which a thought precedes the tag.
        before = "<think></think>\n" if self.reward in _SHAPED else ""
        query = Parameter("query", "Words to search for in the corpus.")
        return (
            Tool("search", "Search the corpus.", before + "<search>{query}</search>", (query,)),
            Tool("answer", "Give the final answer.", before + "<answer>{text}</answer>", (answer,)),
        )

    @property
    def question(self) -> Question:
        """Question of the current task."""
        return self._question

    def _has_task(self, task: str) -> bool:
        return task in self._questions

    def _open(self, task: str) -> Inquiry:
        self._question = self._questions[task]
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

    def _level_content(self) -> object:
        question = self._question
        return question.question, question.golden_answers, question.evidence

    def _is_possible(self, snapshot: Snapshot) -> bool:
        state = snapshot.state
        if type(state) is not Inquiry or list(map(type, state)) not in _FIELD_TYPES:
            return False
        answered = state.answer is not None
        return (
            set(map(type, state.page)) <= {str}
            and all(type(pair) is tuple and list(map(type, pair)) == [str, str] for pair in state.known)
            and 0 <= state.looked_up <= len(state.page)
            and snapshot.terminated == answered
            and snapshot.success == (answered and self._is_right(state.answer))
        )

    def check_server(self) -> None:
        self.retriever.check()

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True for every accepted search: it changes what is known."""
        return bool(info["valid"]) and self.calls_tool(action)

    def calls_tool(self, action: str) -> bool:
        """Return True for searches."""
        parsed = (tags if self.protocol == "tags" else react).parse_action(action)
        return parsed is not None and parsed.kind == "search"

    def state_key(self) -> Hashable:
        state = self._state
        position = (state.page, state.keyword, state.looked_up)
        shaped = (state.format, state.evidence) if self.reward in _SHAPED else ()
        return self._task, frozenset(state.known), position, shaped, state.answer

    def admissible_actions(self) -> tuple[str, ...] | None:
        return () if self._ended else None

    def random_action(self, rng: random.Random) -> str:
        """Return, with equal probability, a search for a word of the question or an answer with a title shown."""
        if self._ended:
            return ""
        titles = [title for _, title in self._state.known]
        last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        if last or (titles and rng.random() < 0.5):
            return self._format_action("answer", rng.choice(titles or ["no"]))
        words = self._question.question.rstrip("?").split() or [self._question.question]
        return self._format_action("search", rng.choice(words))

    def expert_actions(self) -> list[str] | None:
        """Return searches for the supporting articles not yet shown, in reading order, and the gold answer.

        The expert is an oracle with access to the gold answer. If there are too few steps for all searches, the
        last ones are omitted. Returns None if the data set publishes no answer.
        """
        if self._ended or not self._question.golden_answers:
            return None
        seen = {title for _, title in self._state.known}
        wanted = [title for title in self._question.evidence if title not in seen]
        if self.max_steps is not None:
            wanted = wanted[: self.max_steps - self._steps - 1]
        return [self._format_action("search", title) for title in wanted] + [
            self._format_action("answer", self._question.golden_answers[0])
        ]

    def searching_actions(self, observations: Sequence[str], actions: Sequence[str]) -> list[str] | None:
        if self._ended:
            return None
        action = next_action(observations, actions)
        return None if action is None else [self._format_action(action.kind, action.text)]

    def optimum(self) -> Optimum | None:
        """Return the value 1 with the number of steps of the expert, or None if the data set publishes no answer.

        The value is exact: the answer is accepted at any time. The steps are not the fewest, which is one for an
        agent that guesses the answer, but those of reading every supporting article that has not been shown, as
        far as the step limit allows, and answering.
        """
        if self._ended:
            return self._final_optimum()
        return super().optimum() if self._question.golden_answers else None

    def _details(self) -> Mapping[str, Any]:
        details: dict[str, Any] = {"question": self._question.question}
        if self._shown is not None:
            details["documents"] = self._shown
        if self._ended:
            details |= self._scores()
        return details

    # ------------------------------------------------------------------ protocols

    def _apply_tags(self, action: str, last: bool) -> Outcome:
        state = self._state
        parsed = tags.parse_action(action)
        format_state = tags.advance(state.format, tags.truncate_turn(action))
        if parsed is not None and parsed.kind == "answer":
            return self._answer(parsed.text, format_state)
        if last or parsed is None or not parsed.text:
            if self.reward in _SHAPED:
                # A refused turn remains part of the dialogue, so the dialogue can no longer be well-formed.
                self._state = state._replace(format=FormatState.BROKEN)
            refusal = tags.SEARCHES_USED_UP if last else tags.REFUSAL
            return Outcome(refusal, 0.0, False, False, False, self._state != state)
        documents = self._retrieve(parsed.text, self.topk)
        observation = tags.format_results(documents, self.observation_budget)
        shown = tags.visible_documents(documents, self.observation_budget)
        self._record_documents(shown, observation, format=tags.advance(format_state, observation))
        return self._outcome(observation, state)

    def _apply_react(self, action: str, last: bool) -> Outcome:
        state = self._state
        parsed = react.parse_action(action)
        if parsed is not None and parsed.kind == "finish":
            return self._answer(parsed.text, state.format)
        if last or parsed is None or not parsed.text:
            return self._refuse(react.SEARCHES_USED_UP if last else react.REFUSAL)
        if parsed.kind == "search":
            documents = self._retrieve(parsed.text, _REACT_CANDIDATES)
            page = react.find_page(parsed.text, documents)
            if page:
                sentences = tuple(react.split_sentences(" ".join(document.text for document in page)))
                observation = react.format_opening(sentences)[: self.observation_budget]
                self._record_documents(page, observation, page=sentences, keyword="", looked_up=0)
            else:
                observation = react.format_not_found(parsed.text, documents)[: self.observation_budget]
                self._record_documents([], observation)
            return self._outcome(observation, state)
        if not state.page:
            return self._refuse("No page is open; search for one first.")
        index = state.looked_up if parsed.text.lower() == state.keyword else 0
        found, more = react.lookup(state.page, parsed.text, index)
        found = found[: self.observation_budget]
        self._record_documents([], found, keyword=parsed.text.lower(), looked_up=index + more)
        return self._outcome(found, state)

    def _retrieve(self, query: str, k: int) -> list[Document]:
        return [hit.document for hit in self.retriever.search([query], k)[0]]

    def _record_documents(self, documents: Sequence[Document], observation: str, **changes: Any) -> None:
        """Update the state after an observation that shows these documents."""
        state = self._state
        fresh = dict.fromkeys((document.id, document.title) for document in documents)
        evidence = state.evidence
        if not evidence and self._question.golden_answers:
            text = normalize(observation)
            evidence = any(normalize(gold) in text for gold in self._question.golden_answers)
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

    def _answer(self, answer: str, format_state: FormatState) -> Outcome:
        observation = f"Answer: {answer[: self.observation_budget]}"
        self._state = self._state._replace(observation=observation, answer=answer, format=format_state)
        return Outcome(observation, self._score(), True, self._is_correct(), True, True)

    # ------------------------------------------------------------------ scores

    def _is_correct(self) -> bool:
        return self._is_right(self._state.answer)

    def _is_right(self, answer: str | None) -> bool:
        return answer is not None and scoring.grade(answer, self._question.golden_answers).em

    def _score(self) -> float:
        """Return the reward of the answer given."""
        state, golds = self._state, self._question.golden_answers
        grade = scoring.grade(state.answer or "", golds)
        well_formed = state.format is FormatState.ANSWERED
        match self.reward:
            case "em":
                return float(self._is_correct())
            case "f1":
                return grade.f1
            case "sub_em":
                return float(grade.sub_em)
            case "lenient":
                return float(grade.em or grade.f1 >= scoring.LENIENT_F1)
            case "shaped":
                return scoring.shaped_em(
                    grade.em, True, well_formed, state.evidence, retrieval=self.retrieval_bonus
                )
            case "shaped_f1":
                return scoring.shaped_f1(grade.f1, True, well_formed)

    def _scores(self) -> dict[str, Any]:
        answer, golds = self._state.answer, self._question.golden_answers
        grade = scoring.Grade(False, 0.0, False) if answer is None else scoring.grade(answer, golds)
        scores: dict[str, Any] = {
            "answer": answer or "",
            "em": float(grade.em),
            "f1": grade.f1,
            "sub_em": float(grade.sub_em),
        }
        if self._question.evidence:
            seen = {title for _, title in self._state.known}
            wanted = self._question.evidence
            scores["evidence_recall"] = sum(title in seen for title in wanted) / len(wanted)
        return scores

    def _format_action(self, kind: Literal["search", "answer"], text: str) -> str:
        if self.protocol == "react":
            return f"search[{text}]" if kind == "search" else f"finish[{text}]"
        action = f"<{kind}>{text}</{kind}>"
        if self.reward not in _SHAPED:
            return action
        thought = f"I should read about {text}." if kind == "search" else "I have read what I need."
        return f"<think>{thought}</think>\n{action}"
