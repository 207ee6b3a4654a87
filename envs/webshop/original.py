"""The original's text environment with its own interface, on top of `shop.Shop`.

It serves code that was written for `web_agent_site.envs.WebAgentTextEnv`, and the replay of recordings: it has the
old `reset` and `step`, sessions that keep their goal, and one generator for all random draws.
"""

from __future__ import annotations

import random
import string
from typing import Any

from ..errors import unknown_name
from .goals import draw_index
from .pages import Page
from .reward import Purchase
from .session import Session
from .shop import Shop, Unanswerable

OBSERVATION_MODES = ("html", "text", "text_rich", "url")


def observe(page: Page, mode: str) -> str:
    """Return the observation of a page.

    Args:
        page: The page.
        mode: One of `OBSERVATION_MODES`.

    Raises:
        ConfigurationError: The mode is unknown.
    """
    if mode == "text":
        return page.text()
    if mode == "text_rich":
        return page.text_rich()
    if mode == "url":
        return page.url
    if mode == "html":
        from .html import page_html

        return page_html(page)
    raise unknown_name("observation_mode", mode, OBSERVATION_MODES)


def with_history(observation: str, before: list[tuple[str, str]], num_obs: int, num_actions: int) -> str:
    """Return an observation after its history, oldest first, joined by `[SEP]`.

    Args:
        observation: Current observation.
        before: `(observation, action)` pairs of the steps so far, of which the last ones are used.
        num_obs: Number of earlier observations.
        num_actions: Number of earlier actions.
    """
    texts = [observation]
    for back, (seen, done) in enumerate(reversed(before[-max(num_obs, num_actions, 1) :]), start=1):
        if back <= num_actions:
            texts.append(done)
        if back <= num_obs:
            texts.append(seen)
    return " [SEP] ".join(reversed(texts))


class WebAgentTextEnv:
    """Text environment with the original's interface.

    Args:
        shop: Shop; its `load_seed` corresponds to seeding the original's global generator before construction.
        observation_mode: One of `OBSERVATION_MODES`.
        num_prev_obs: Number of earlier observations to put before the current one.
        num_prev_actions: Number of earlier actions to put before the current observation.
        session_prefix: Prefix of the names of sessions; None for no prefix.
        rng: Draws session names, goals and `<r>` searches; the original uses Python's global generator.

    Attributes:
        session: Current session.
        purchase: Reward and parts if the last step was a purchase, else None.
    """

    def __init__(
        self,
        shop: Shop,
        *,
        observation_mode: str = "html",
        num_prev_obs: int = 0,
        num_prev_actions: int = 0,
        session_prefix: str | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.shop = shop
        self.observation_mode = observation_mode
        self.num_prev_obs = num_prev_obs
        self.num_prev_actions = num_prev_actions
        self.session_prefix = session_prefix
        self.rng = rng or random.Random()
        self.purchase: Purchase | None = None
        self._cumulative = shop.goals.cumulative
        self._goals: dict[str, int] = {}
        self._before: list[tuple[str, str]] = []
        self.reset()

    def reset(self, session: int | str | None = None) -> tuple[str, None]:
        """Open a session and return its observation.

        Args:
            session: Name of the session; None draws one. A new session named by an integer has the goal with that
                index, any other new session draws its goal by weight.
        """
        name = str(session) if session is not None else "".join(self.rng.choices(string.ascii_lowercase, k=10))
        name = (self.session_prefix or "") + name
        if name not in self._goals:
            self._goals[name] = session if isinstance(session, int) else draw_index(self._cumulative, self.rng)
        self.session = Session(name, self._goals[name])
        self._before = []
        self.purchase = None
        return self.observation, None

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any] | None]:
        """Apply an action.

        Returns:
            Observation, reward, whether the session has ended, and the reward's parts after a purchase or None.

        Raises:
            IndexError: A search for `<c>` names no category.
            TypeError: A search for `<a>`.
            ValueError: A search for `<r>` in a shop of fewer than 50 products.
        """
        before = self.observation
        try:
            self.session, _, self.purchase = self.shop.act(self.session, action, self.rng)
        except Unanswerable as error:
            raise error.original from None
        self._before.append((before, action))
        state = with_history(self.observation, self._before, self.num_prev_obs, self.num_prev_actions)
        if self.purchase is None:
            return state, 0.0, False, None
        return state, self.purchase.reward, True, self.purchase.parts

    @property
    def page(self) -> Page:
        """Current page."""
        return self.shop.page(self.session)

    @property
    def observation(self) -> str:
        """Current page in the chosen observation mode."""
        return observe(self.page, self.observation_mode)

    @property
    def instruction_text(self) -> str:
        """Instruction of the session's goal."""
        return self.shop.goal(self.session.goal).instruction_text

    def get_available_actions(self) -> dict[str, Any]:
        """Return whether the page has a search bar, and the names of everything clickable."""
        page = self.page
        return {"has_search_bar": page.has_search_bar, "clickables": list(page.clickables())}
