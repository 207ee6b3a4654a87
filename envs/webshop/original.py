"""The original's text environment, call for call, over our shop.

For replaying recordings, and for code that was written against `web_agent_site.envs.WebAgentTextEnv`: old-style
`reset` and `step`, sessions that keep their goal, one generator for everything that is drawn.
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
from .shop import Shop

OBSERVATION_MODES = ("html", "text", "text_rich", "url")


def observe(page: Page, mode: str) -> str:
    """A page in an observation mode."""
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
    """An observation with what went before it, oldest first, joined by `[SEP]`.

    Args:
        before: `(observation, action)` of the steps so far; only the last ones are used.
        num_obs, num_actions: how many earlier observations and actions to show.
    """
    texts = [observation]
    for back, (seen, done) in enumerate(reversed(before[-max(num_obs, num_actions, 1) :]), start=1):
        if back <= num_actions:
            texts.append(done)
        if back <= num_obs:
            texts.append(seen)
    return " [SEP] ".join(reversed(texts))


class WebAgentTextEnv:
    """The original's interface.

    Args:
        shop: the shop; a `load_seed` in it stands for seeding the global generator before construction.
        rng: draws session names, goals and `<r>` searches; the original uses Python's global generator.

    Attributes:
        session: the open session.
        purchase: reward and parts of the last step, if it was a purchase.
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
        """Open a session: a new one draws its goal by weight, or takes the goal whose index it is."""
        name = str(session) if session is not None else "".join(self.rng.choices(string.ascii_lowercase, k=10))
        name = (self.session_prefix or "") + name
        if name not in self._goals:
            self._goals[name] = session if isinstance(session, int) else draw_index(self._cumulative, self.rng)
        self.session = Session(name, self._goals[name])
        self._before = []
        self.purchase = None
        return self.observation, None

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any] | None]:
        """Take an action: state, reward, done, and the reward's parts after a purchase.

        Raises:
            IndexError, TypeError, ValueError: see `Shop.act`.
        """
        before = self.observation
        self.session, _, self.purchase = self.shop.act(self.session, action, self.rng)
        self._before.append((before, action))
        state = with_history(self.observation, self._before, self.num_prev_obs, self.num_prev_actions)
        if self.purchase is None:
            return state, 0.0, False, None
        return state, self.purchase.reward, True, self.purchase.parts

    @property
    def page(self) -> Page:
        return self.shop.page(self.session)

    @property
    def observation(self) -> str:
        """The open page in the chosen mode."""
        return observe(self.page, self.observation_mode)

    @property
    def instruction_text(self) -> str:
        return self.shop.goal(self.session.goal).instruction_text

    def get_available_actions(self) -> dict[str, Any]:
        page = self.page
        return {"has_search_bar": page.has_search_bar, "clickables": list(page.clickables())}
