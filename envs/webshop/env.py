"""The WebShop environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

from ..checks import flag, integer
from ..core import Outcome, RewardMode, TextEnv
from ..errors import ConfigurationError, unknown_name
from ..optimum import Optimum
from ..snapshots import Snapshot
from ..tasks import parse_index
from ..tools import Parameter, Tool
from .expert import best_plan
from .goals import Goal
from .original import OBSERVATION_MODES, observe, with_history
from .pages import BROWSING
from .session import Session
from .shop import UNUSED_RNG, Shop, Unanswerable, open_shop, parse_action
from .sources import is_builtin

SPLITS = {"test": (0, 500), "dev": (500, 1500), "valid": (500, 1500), "train": (1500, None)}
"""Half-open ranges of goal indices of the published splits; "valid" is an alias of "dev"."""

MAX_STEPS = 15
"""Step limit of the WebShop experiments of ReAct and GiGPO, and of RAGEN on the full set."""

MAX_ACTION = 4096
"""Maximum number of characters of an action; the longest instruction of the 1,000-product set has 275."""


class Visit(NamedTuple):
    """State of an episode.

    Attributes:
        session: The customer's session in the shop.
        before: The last (observation, action) pairs; empty unless observations include a history.
        parts: Items of the reward's parts after the purchase; empty before.
    """

    session: Session
    before: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, Any], ...] = ()


class GoalTasks(Sequence[str]):
    """Sequence of the goal indices of a split, as strings."""

    def __init__(self, split: str | None, goals: int) -> None:
        if split is not None and split not in SPLITS:
            raise unknown_name("split", split, SPLITS)
        start, stop = SPLITS[split] if split is not None else (0, None)
        self._range = range(start, goals if stop is None else min(stop, goals))
        if not self._range:
            raise ConfigurationError(
                f"split {split!r} begins at goal {start}, but this shop has {goals} goals; set split=None for all."
            )

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [str(i) for i in self._range[index]]
        return str(self._range[index])

    def __contains__(self, task: object) -> bool:
        return isinstance(task, str) and parse_index(task) in self._range


class WebShop(TextEnv[Visit]):
    """## Description
    The task is online shopping by instruction: find a product that fits, choose its options and buy it. Pages,
    actions, goals, search results and rewards are those of the WebShop benchmark. Without data, the shop sells a
    generated catalog.

    ## Actions
    * `search[words]`: search the catalog; valid on every page.
    * `click[name]`: click a button (`back to search`, `< prev`, `next >`, `description`, `features`, `reviews`,
      `buy now`), a product's number or an option's value on the current page. Case does not matter.

    Any other action, and one of more than 4,096 characters, returns the current page again.

    ## Rewards
    The purchase earns a reward between 0 and 1, which measures how well the product's type, its attributes, the
    chosen options and the price fit the goal. All other steps earn 0. An episode is a success if the reward is
    exactly 1. `info["score"]` is the reward and `info["reward_parts"]` has its components. Papers report 100 times
    the mean reward, and the success rate.

    ## Episode end
    The purchase ends the episode.

    ## Info
    Besides the common entries, every step reports `available`: `{"has_search_bar": bool, "clickables": [str]}`.
    The purchase adds `score`, `reward_parts` and `tagger` (the name of the noun tagger that scored it).

    ## Splits
    | split | goals | published | generated catalog |
    |---|---|---|---|
    | "test" | 0–499 | 500 | 500 |
    | "dev" | 500–1499 | 1,000 | 1,000 |
    | "train" | from 1500 on | 10,587 | 2,119 |

    A task is the index of a goal in the benchmark's fixed order. The published numbers are those of the 12,087
    human goals of the full catalog, for which papers report results; on smaller catalogs the same ranges apply
    as far as there are goals.

    ## Arguments
    * `split`: "test", "dev" (or "valid") or "train"; None for all goals.
    * `data`: folder of the published files (`items_shuffle*.json`, `items_ins_v2*.json`, `items_human_ins*.json`,
      plain or gzipped), or the product file itself. None: `webshop/` below `ARBORETUM_DATA`, else the generated
      catalog.
    * `generated=False`: sell the generated catalog even if there are files.
    * `num_products`: number of products to load, in file order; None for all.
    * `human_goals=False`: use crowd-sourced instructions instead of synthetic ones made from the products.
    * `show_attrs=False`: add an "Attributes" button to item pages.
    * `load_seed=0`: seed of the prices drawn from price ranges and of the price limits in instructions.
    * `observation_mode="text"`: "text", "text_rich" (marks buttons and clicked options), "html" or "url".
    * `num_prev_obs=0`, `num_prev_actions=0`: numbers of earlier observations and actions to put before the current
      observation.
    * `tagger="auto"`: noun tagger of the reward's title score: "spacy", "letters" (the built-in approximation),
      "auto" (spaCy if it is installed) or a function from a title to its nouns.
    * `search="bm25"`: search engine: "bm25" (built in), "bm25s" or "lucene"; all give the same ranking.
    * `filter_goals`: function `(index, goal) -> bool` that selects goals; None keeps all.
    * `limit_goals`: number of goals to draw by weight after filtering; None keeps all.
    * `max_steps=15`: step limit; None for no limit.

    ## Source
    Yao, Chen, Yang and Narasimhan, "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language
    Agents", NeurIPS 2022.

    ## Version history
    * `v0`: initial version, of release 0.1.0. Since then actions of more than 4,096 characters are refused.
    """

    optimum_measure = "score"

    def __init__(
        self,
        split: str | None = None,
        data: str | Path | None = None,
        generated: bool = False,
        num_products: int | None = None,
        human_goals: bool = False,
        show_attrs: bool = False,
        load_seed: int = 0,
        observation_mode: str = "text",
        num_prev_obs: int = 0,
        num_prev_actions: int = 0,
        tagger: str | Callable[[str], list[str]] = "auto",
        search: str = "bm25",
        filter_goals: Callable[[int, Goal], bool] | None = None,
        limit_goals: int | None = None,
        max_steps: int | None = MAX_STEPS,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if observation_mode not in OBSERVATION_MODES:
            raise unknown_name("observation_mode", observation_mode, OBSERVATION_MODES)
        flag("generated", generated)
        flag("human_goals", human_goals)
        flag("show_attrs", show_attrs)
        for name, value in (("num_prev_obs", num_prev_obs), ("num_prev_actions", num_prev_actions)):
            if type(value) is not int or value < 0:
                raise ConfigurationError(f"{name} must be 0 or a positive integer, not {value!r}.")
        integer("limit_goals", limit_goals)
        if filter_goals is not None and not callable(filter_goals):
            raise ConfigurationError(f"filter_goals must be a function, not {filter_goals!r}.")
        if type(load_seed) is not int:
            raise ConfigurationError(f"load_seed must be an integer, not {load_seed!r}.")
        shop = open_shop(
            data,
            num_products,
            generated=generated,
            human_goals=human_goals,
            show_attrs=show_attrs,
            load_seed=load_seed,
            tagger=tagger,
            search=search,
            filter_goals=filter_goals,
            limit_goals=limit_goals,
        )
        page_size = shop.catalog.longest_page + 8192
        super().__init__(
            config={
                "catalog": shop.catalog.digest,
                "human_goals": human_goals,
                "show_attrs": show_attrs,
                "load_seed": load_seed,
                "observation_mode": observation_mode,
                "history": (num_prev_obs, num_prev_actions),
                "tagger": shop.tagger.name,
                "filter_goals": getattr(filter_goals, "__qualname__", None),
                "limit_goals": limit_goals,
            },
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
            max_observation=(page_size * 8 if observation_mode == "html" else page_size) * (1 + num_prev_obs)
            + MAX_ACTION * num_prev_actions,
            max_action=MAX_ACTION,
        )
        self.shop: Shop = shop
        self.observation_mode = observation_mode
        self._history = (num_prev_obs, num_prev_actions)
        self.tasks = GoalTasks(split, len(shop.goals))
        self._page_cache: tuple[Session, str, tuple[str, ...]] | None = None

    @property
    def generated_data(self) -> str | None:
        return "generated shop" if is_builtin(self.shop.catalog) else None

    @property
    def instructions(self) -> str:
        return (
            "You are shopping on a website for a customer. Find a product that fits the customer's instruction,"
            " choose the options it asks for, and buy it. Actions: search[words] looks for products by words;"
            " click[name] clicks a button, a product's number or an option's value on the page, such as"
            " click[next >], click[B01HQTWL6S] or click[navy]. Choose options one click at a time; click[buy now]"
            " ends the visit, so buy only when product and options are right. The better the purchase fits in"
            " kind, attributes, options and price, the higher the reward."
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        keywords = Parameter("keywords", "Words to search for in the catalog.")
        name = "Name of a button, a product's number or an option's value on the current page."
        return (
            Tool("search", "Search the catalog.", "search[{keywords}]", (keywords,)),
            Tool("click", "Click on the current page.", "click[{element}]", (Parameter("element", name),)),
        )

    @property
    def goal(self) -> Goal:
        """Goal of the current task."""
        return self.shop.goal(int(self.task))

    def _open(self, task: str) -> Visit:
        return Visit(Session(task, int(task)))

    def _current(self) -> tuple[str, tuple[str, ...]]:
        """Return the observation of the current page and the names of its clickable elements."""
        session = self._state.session
        cached = self._page_cache
        if cached is None or cached[0] is not session:
            page = self.shop.page(session)
            cached = self._page_cache = (session, observe(page, self.observation_mode), tuple(page.clickables()))
        return cached[1], cached[2]

    def _observe(self) -> str:
        return with_history(self._current()[0], list(self._state.before), *self._history)

    def page_html(self, base: str = "") -> str:
        """Return the page of the shop's web site; see `TextEnv.page_html`."""
        from .html import page_html, score_html  # Jinja, which stepping does not need

        session, _, parts = self._state
        page = self.shop.page(session)
        if session.kind != "done" or session.product is None:
            return page_html(page, base=base)
        return score_html(page, dict(parts), self.shop.tagger.name, float(self.shop.prices[session.product]), base)

    def _apply(self, action: str) -> Outcome:
        if len(action) > MAX_ACTION:
            return Outcome(self._observe(), 0.0, False, False, False, False)
        session, before, _ = self._state
        key = self.state_key()
        try:
            after, valid, purchase = self.shop.act(session, action, self._action_rng(session, action))
        except Unanswerable as error:
            refusal = f"This search cannot be answered ({error}); search for words instead."
            return Outcome(refusal, 0.0, False, False, False, False)
        if longest := max(self._history):
            before = (*before, (self._current()[0], action))[-longest:]
        parts = tuple(purchase.parts.items()) if purchase else ()
        self._state = Visit(after, before, parts)
        reward = purchase.reward if purchase else 0.0
        changed = self.state_key() != key
        return Outcome(self._observe(), reward, purchase is not None, reward == 1.0, valid, changed)

    def _action_rng(self, session: Session, action: str) -> random.Random:
        """Return the random generator for an action.

        Only searches for `<r>` draw products, so only they consume randomness of the episode.
        """
        _, argument = parse_action(action)
        words = session.keywords or ("",)
        if words[0] == "<r>" or (argument or "").startswith("<r>"):
            return random.Random(int(self._random() * 2**53))
        return UNUSED_RNG

    def _level_content(self) -> object:
        return self.goal

    def _is_possible(self, snapshot: Snapshot) -> bool:
        visit = snapshot.state
        if type(visit) is not Visit or not self.shop.has(visit.session, self.task):
            return False
        session, before, parts = visit
        bought = session.kind == "done"
        return (
            type(before) is tuple
            and len(before) <= max(self._history)
            and all(type(pair) is tuple and list(map(type, pair)) == [str, str] for pair in before)
            and type(parts) is tuple
            and all(type(part) is tuple and len(part) == 2 and type(part[0]) is str for part in parts)
            and (bought or not parts)
            and snapshot.terminated == bought
            and snapshot.success == (session.reward == 1.0)
        )

    def _details(self) -> Mapping[str, Any]:
        bar = self._state.session.kind == "start"
        details: dict[str, Any] = {"available": {"has_search_bar": bar, "clickables": list(self._current()[1])}}
        if self._state.session.kind == "done":
            details["score"] = self._state.session.reward
            details["reward_parts"] = dict(self._state.parts)
            details["tagger"] = self.shop.tagger.name
        return details

    def counts_as_effect(self, action: str, before: Hashable, info: Mapping[str, Any]) -> bool:
        """Return True for searches and for clicks on products, options and "buy now"; browsing does not count."""
        name, argument = parse_action(action)
        return bool(info["valid"]) and (name == "search" or argument not in BROWSING)

    def calls_tool(self, action: str) -> bool:
        """Return True for searches."""
        name, words = parse_action(action)
        return name == "search" and words is not None

    def state_key(self) -> Hashable:
        session, before, _ = self._state
        rich = self.observation_mode in ("text_rich", "html")  # Both mark visited products.
        ordered = self.observation_mode in ("html", "url")
        return (
            session._replace(
                actions=(),
                visited=session.visited if rich else frozenset(),
                options=session.options if ordered else tuple(sorted(session.options)),
            ),
            before,
        )

    def admissible_actions(self) -> tuple[str, ...]:
        if self._ended:
            return ()
        if self._state.session.kind == "start":
            words = " ".join(self.goal.words.replace("[", " ").replace("]", " ").split())
            return (f"search[{words}]",)
        # The action syntax cannot express some values with brackets, and the name "search" is never clickable.
        names = [name for name in self._current()[1] if name != "search"]
        return tuple(f"click[{name}]" for name in names if parse_action(f"click[{name}]") == ("click", name))

    def expert_actions(self) -> list[str] | None:
        """Return a plan that searches for the goal's product, chooses its options and buys it.

        Some synthetic goals cannot be met in full (see `reward.options_met`), and the step limit may be too near.
        The plan is then the best known one that fits, which reaches the score of `optimum()`: it may choose fewer
        options, or buy another product. None if no known plan that fits has a positive score.
        """
        if self._ended:
            return None
        _, actions = best_plan(self.shop, self._state.session, self.steps_left())
        return actions or None

    def optimum(self) -> Optimum:
        """Return the score of the expert's purchase, and its number of steps.

        The score is a lower bound, and the steps are an upper bound: no plan is known that is proven best. If the
        step limit is too near for the expert's plan, or the goal cannot be met in full, it is the best of that
        plan, with the options that there is time to choose, and of the purchases within a few clicks: of the open
        product with one more option, of one that is listed, or of one on the page before.
        """
        if self._ended:
            score = self._state.session.reward
            return Optimum(score, 0 if score else None)
        score, actions = best_plan(self.shop, self._state.session, self.steps_left())
        return Optimum(score, len(actions) or None)
