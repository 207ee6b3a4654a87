"""The SearchQA environment: multi-turn question answering with a search engine."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..optimum import Optimum
from ..retrieval.interface import Retriever
from ..snapshots import Snapshot
from ..tools import Tool
from .datasets import Question
from .inquiry import Inquiry, is_well_typed
from .protocols import Protocol, ReActProtocol, SearchProtocol, TagsProtocol
from .scoring import SHAPED_REWARDS, Grade, Reward, answer_reward, grade, sub_exact_match
from .searcher import next_action
from .sources import open_source
from .tags import FormatState


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
        if reward in SHAPED_REWARDS and protocol != "tags":
            raise ConfigurationError(f'reward="{reward}" scores the format of tags; it needs protocol="tags".')
        for name, value in (("topk", topk), ("observation_budget", observation_budget)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{name} must be a positive integer, not {value!r}.")
        if type(encyclopedia_seed) is not int:
            raise ConfigurationError(f"encyclopedia_seed must be an integer, not {encyclopedia_seed!r}.")
        if type(retrieval_bonus) not in (int, float) or not math.isfinite(retrieval_bonus):
            raise ConfigurationError(f"retrieval_bonus must be a number, not {retrieval_bonus!r}.")
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
        self._is_shaped = reward in SHAPED_REWARDS
        self.retrieval_bonus = retrieval_bonus
        self._search_protocol: SearchProtocol = (
            TagsProtocol(source.retriever, observation_budget, topk, self._is_shaped)
            if protocol == "tags"
            else ReActProtocol(source.retriever, observation_budget)
        )
        self.tasks = list(source.questions)
        self._questions = source.questions
        self._is_generated = source.is_generated
        self._has_own_corpus = retriever is not None
        self._shown: tuple[str, ...] | None = None

    # ------------------------------------------------------------------ TextEnv interface

    @property
    def generated_data(self) -> str | None:
        return "generated encyclopedia" if self._is_generated else None

    @property
    def replay_is_costly(self) -> bool:
        """True unless the corpus is the generated encyclopedia, which is searched in memory."""
        return self._has_own_corpus or not self._is_generated

    @property
    def instructions(self) -> str:
        return self._search_protocol.instructions

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._search_protocol.tools

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
        return Inquiry(f"Question: {text}{'' if text.endswith('?') else '?'}")

    def _observe(self) -> str:
        return self._state.observation

    def _apply(self, action: str) -> Outcome:
        self._shown = None
        before = self._state
        is_last = self.max_steps is not None and self._steps + 1 >= self.max_steps
        state, observation, is_valid, self._shown = self._search_protocol.turn(before, action, is_last)
        if state.answer is not None:
            self._state = state
            return Outcome(observation, self._reward_answer(), True, self._is_right(state.answer), True, True)
        if not is_valid:
            self._state = state
            return Outcome(observation, 0.0, False, False, False, state != before)
        golds = self._question.golden_answers
        if golds and not state.evidence and sub_exact_match(observation, golds):
            state = state._replace(evidence=True)
        key = self.state_key()
        self._state = state
        return Outcome(observation, 0.0, False, False, True, self.state_key() != key)

    def _level_content(self) -> object:
        question = self._question
        return question.question, question.golden_answers, question.evidence

    def _is_possible(self, snapshot: Snapshot) -> bool:
        state = snapshot.state
        return (
            is_well_typed(state)
            and snapshot.terminated == (state.answer is not None)
            and snapshot.success == self._is_right(state.answer)
        )

    def check_server(self) -> None:
        self.retriever.check()

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True for every accepted search: it changes what is known."""
        return bool(info["valid"]) and self.calls_tool(action)

    def calls_tool(self, action: str) -> bool:
        """Return True for searches."""
        return self._search_protocol.is_search(action)

    def state_key(self) -> Hashable:
        state = self._state
        position = (state.page, state.keyword, state.looked_up)
        shaped = (state.format, state.evidence) if self._is_shaped else ()
        return self._task, frozenset(state.known), position, shaped, state.answer

    def admissible_actions(self) -> tuple[str, ...] | None:
        return () if self._ended else None

    def random_action(self, rng: random.Random) -> str:
        """Return, with equal probability, a search for a word of the question or an answer with a title shown."""
        if self._ended:
            return ""
        titles = [title for _, title in self._state.known]
        if self.steps_left() <= 1 or (titles and rng.random() < 0.5):
            return self._search_protocol.format_action("answer", rng.choice(titles or ["no"]))
        words = self._question.question.rstrip("?").split() or [self._question.question]
        return self._search_protocol.format_action("search", rng.choice(words))

    def expert_actions(self) -> list[str] | None:
        """Return searches for the supporting articles not yet shown, in reading order, and the gold answer.

        The expert is an oracle with access to the gold answer. If there are too few steps for all searches, the
        last ones are omitted. Returns None if the data set publishes no answer.
        """
        if self._ended or not self._question.golden_answers:
            return None
        seen = self._state.shown_titles()
        wanted = [title for title in self._question.evidence if title not in seen]
        if self.max_steps is not None:
            wanted = wanted[: self.max_steps - self._steps - 1]
        return [self._search_protocol.format_action("search", title) for title in wanted] + [
            self._search_protocol.format_action("answer", self._question.golden_answers[0])
        ]

    def searching_actions(self, observations: Sequence[str], actions: Sequence[str]) -> list[str] | None:
        if self._ended:
            return None
        action = next_action(observations, actions)
        return None if action is None else [self._search_protocol.format_action(action.kind, action.text)]

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

    # ------------------------------------------------------------------ scores

    def _is_right(self, answer: str | None) -> bool:
        return answer is not None and grade(answer, self._question.golden_answers).em

    def _reward_answer(self) -> float:
        """Return the reward of the answer given."""
        state = self._state
        scores = grade(state.answer or "", self._question.golden_answers)
        well_formed = state.format is FormatState.ANSWERED
        return answer_reward(self.reward, scores, well_formed, state.evidence, retrieval=self.retrieval_bonus)

    def _scores(self) -> dict[str, Any]:
        answer, golds = self._state.answer, self._question.golden_answers
        grades = Grade(False, 0.0, False) if answer is None else grade(answer, golds)
        scores: dict[str, Any] = {
            "answer": answer or "",
            "em": float(grades.em),
            "f1": grades.f1,
            "sub_em": float(grades.sub_em),
        }
        if self._question.evidence:
            seen, wanted = self._state.shown_titles(), self._question.evidence
            scores["evidence_recall"] = sum(title in seen for title in wanted) / len(wanted)
        return scores
