"""The two-armed bandit whose arms have names: a one-step test of reading risk out of a word."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

from .core import Outcome, RewardMode, TextEnv
from .errors import ConfigurationError, unknown_name

PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("Teacher", "Trader"),
        ("Nurse", "StartupFounder"),
        ("Librarian", "Investor"),
        ("Accountant", "StockBroker"),
        ("Engineer", "RealEstateAgent"),
        ("Pharmacist", "Musician"),
        ("Clerk", "Freelancer"),
        ("Technician", "Youtuber"),
        ("Planner", "Artist"),
        ("Postman", "Pilot"),
        ("Banker", "VentureCapitalist"),
        ("Gardener", "Cryptominer"),
    ),
    "test": (
        ("Receptionist", "Explorer"),
        ("Archivist", "Filmmaker"),
        ("Bookkeeper", "Consultant"),
        ("SocialWorker", "Photographer"),
        ("Mechanic", "GameDesigner"),
        ("Secretary", "Entrepreneur"),
        ("Cashier", "DataScientist"),
        ("CivilServant", "StartupAccelerator"),
    ),
}
"""(steady name, daring name) pairs of RAGEN's train and test sets."""

HIGH_PROBABILITY = 0.25
"""The chance that the high-risk arm pays 1.0 (else 0.0)."""


class Choice(NamedTuple):
    """State: the arm chosen and what it paid, or None and 0.0 before the choice."""

    arm: str | None = None
    paid: float = 0.0


class Bandit(TextEnv[Choice]):
    """## Description
    Two arms carry names. The low-risk arm always pays `low_reward`; the high-risk arm pays 1.0 with probability
    0.25, else 0.0. Nothing but the names tells them apart: the daring profession is the high-risk arm, and with
    `reverse=True` (`TextBanditRev-v0`) the steady one is.

    ## Actions
    The name of an arm, in any case.

    ## Rewards
    What the arm pays. The episode is a success if the high-risk arm was chosen, whatever it paid.

    ## Episode end
    After one valid choice.

    ## Arguments
    * `split`: "train" (12 pairs of names) or "test" (8 other pairs); each pair in both orders is a task. None:
      all 20 pairs.
    * `low_reward=0.15`: what the low-risk arm pays: 0.15 in RAGEN's paper, 0.1 in its code.
    * `reverse=False`: turn the association of names and risk around.
    * `max_steps=10`: limit on refused choices.

    ## Source
    RAGEN (Wang et al., 2025, arXiv:2504.20073), section on Bi-Arm Bandits. There, members of a group could see
    different prompts; here a task fixes names and order, and only the payment is drawn.
    """

    def __init__(
        self,
        split: str | None = None,
        low_reward: float = 0.15,
        reverse: bool = False,
        max_steps: int | None = 10,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if split is not None and split not in PAIRS:
            raise unknown_name("split", split, PAIRS)
        if not 0.0 <= low_reward <= 1.0:
            raise ConfigurationError(f"low_reward must lie between 0 and 1, not {low_reward}.")
        super().__init__(
            config={"low_reward": low_reward, "reverse": reverse},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
        )
        self.low_reward = low_reward
        self.reverse = reverse
        pairs = PAIRS[split] if split else PAIRS["train"] + PAIRS["test"]
        self.tasks = [f"{a}/{b}" for steady, daring in pairs for a, b in ((steady, daring), (daring, steady))]
        self._arms = ("", "")
        self._risky = ""

    _DARING: ClassVar[frozenset[str]] = frozenset(daring for pairs in PAIRS.values() for _, daring in pairs)

    @property
    def instructions(self) -> str:
        return (
            "You are playing a two-armed bandit. Each arm is named after a profession and pays points from a"
            " distribution of its own, which its name hints at. Think about what the names suggest, then choose"
            " the arm with the higher expected payment. Answer with the name of one arm; you choose once."
        )

    def _open(self, task: str) -> Choice:
        first, second = task.split("/")
        self._arms = (first, second)
        daring = first if first in self._DARING else second
        steady = second if daring == first else first
        self._risky = steady if self.reverse else daring
        return Choice()

    def _observe(self) -> str:
        arm, paid = self._state
        if arm is not None:
            return f"{arm}: {paid:g} points"
        return f"The arms are {self._arms[0]} and {self._arms[1]}. Which one do you choose?"

    def _apply(self, action: str) -> Outcome:
        wanted = action.strip().lower() if len(action) < 100 else ""
        for arm in self._arms:
            if arm.lower() == wanted:
                break
        else:
            refusal = f"There is no such arm. Choose {self._arms[0]} or {self._arms[1]}."
            return Outcome(refusal, 0.0, False, False, False, False)
        risky = arm == self._risky
        paid = float(self._random() < HIGH_PROBABILITY) if risky else self.low_reward
        self._state = Choice(arm, paid)
        return Outcome(self._observe(), paid, True, risky, True, True)

    def state_key(self) -> Hashable:
        return self._arms, self._risky, self._state

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self._ended else self._arms

    def expert_actions(self) -> list[str] | None:
        if self._ended:
            return None
        return [self._risky]
