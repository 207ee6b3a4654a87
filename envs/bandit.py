"""Two-armed bandit with named arms: a one-step test of inferring risk from a word."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

from .checks import flag, fraction
from .core import Outcome, RewardMode, TextEnv
from .errors import unknown_name
from .optimum import Optimum
from .snapshots import Snapshot
from .tools import Tool, choose_action

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
"""Pairs (low-risk profession, high-risk profession) of RAGEN's train and test sets."""

HIGH_PROBABILITY = 0.25
"""Probability that the high-risk arm pays 1.0; otherwise it pays 0.0."""


class Choice(NamedTuple):
    """State of a bandit episode.

    Attributes:
        arm: Chosen arm, or None before the choice.
        paid: Payment of the chosen arm; 0.0 before the choice.
    """

    arm: str | None = None
    paid: float = 0.0


class Bandit(TextEnv[Choice]):
    """## Description
    A bandit with two arms, each named after a profession. The low-risk arm always pays `low_reward`; the high-risk
    arm pays 1.0 with probability 0.25 and 0.0 otherwise, which is more on average. Only the names distinguish the
    arms: the high-risk arm has the name of the riskier profession, or of the safer one with `reverse=True`
    (`TextBanditRev-v0`).

    ## Observations
    The observation names the arms, and after the choice the payment. The first observation of `reset(seed=0)` is

    ```
    The arms are Pharmacist and Musician. Which one do you choose?
    ```

    ## Actions
    An action is the name of an arm, in upper or lower case.

    ## Rewards
    The reward is the payment of the chosen arm. The episode is a success if the high-risk arm was chosen, whatever
    it paid.

    ## Episode end
    The episode terminates after one valid choice, and truncates after `max_steps` steps.

    ## Splits
    | split | tasks | content |
    |---|---|---|
    | "train" | 24 | 12 pairs of names |
    | "test" | 16 | 8 other pairs |

    Each pair gives two tasks, one for each order of the names.

    ## Arguments
    * `split`: "train" (12 pairs of names) or "test" (8 other pairs). Each pair gives two tasks, one for each order
      of the names. None uses all 20 pairs.
    * `low_reward=0.15`: payment of the low-risk arm; 0.15 in RAGEN's paper, 0.1 in its code.
    * `reverse=False`: reverse the association of names and risk.
    * `max_steps=10`: step limit, reached only by refused actions.

    ## Source
    RAGEN (Wang et al., 2025, arXiv:2504.20073), section on Bi-Arm Bandits. In RAGEN the members of a group can see
    different prompts. Here a task fixes the names and their order, and only the payment is random.

    ## Version history
    * `v0`: initial version, of release 0.1.0.
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
        fraction("low_reward", low_reward)
        flag("reverse", reverse)
        super().__init__(
            config={"low_reward": float(low_reward), "reverse": reverse},
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
        )
        self.low_reward = float(low_reward)
        self.reverse = reverse
        pairs = PAIRS[split] if split else PAIRS["train"] + PAIRS["test"]
        self.tasks = [f"{a}/{b}" for safe, risky in pairs for a, b in ((safe, risky), (risky, safe))]

    optimum_is_exact = True
    optimum_measure = "payment"

    _RISKY_NAMES: ClassVar[frozenset[str]] = frozenset(risky for pairs in PAIRS.values() for _, risky in pairs)

    @property
    def instructions(self) -> str:
        return (
            "You are playing a two-armed bandit. Each arm is named after a profession and pays points from a"
            " distribution of its own, which its name hints at. Think about what the names suggest, then choose"
            " the arm with the higher expected payment. Answer with the name of one arm; you choose once."
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        arms = self._arms if self._task is not None else ()
        return (choose_action("Choose an arm.", arms),)

    def _open(self, task: str) -> Choice:
        first, second = task.split("/")
        self._arms = (first, second)
        risky = first if first in self._RISKY_NAMES else second
        safe = second if risky == first else first
        self._risky_arm = safe if self.reverse else risky
        return Choice()

    def _observe(self) -> str:
        arm, paid = self._state
        if arm is not None:
            return f"{arm}: {paid:g} points"
        return f"The arms are {self._arms[0]} and {self._arms[1]}. Which one do you choose?"

    def _apply(self, action: str) -> Outcome:
        name = action.strip().lower() if len(action) < 100 else ""
        for arm in self._arms:
            if arm.lower() == name:
                break
        else:
            refusal = f"There is no such arm. Choose {self._arms[0]} or {self._arms[1]}."
            return Outcome(refusal, 0.0, False, False, False, False)
        is_risky = arm == self._risky_arm
        paid = float(self._random() < HIGH_PROBABILITY) if is_risky else self.low_reward
        self._state = Choice(arm, paid)
        return Outcome(self._observe(), paid, True, is_risky, True, True)

    def _is_possible(self, snapshot: Snapshot) -> bool:
        state = snapshot.state
        if type(state) is not Choice or type(state.paid) is not float:
            return False
        if state.arm is None:
            return state.paid == 0.0 and not snapshot.terminated and not snapshot.success
        is_risky = state.arm == self._risky_arm
        return (
            state.arm in self._arms
            and state.paid in ((0.0, 1.0) if is_risky else (self.low_reward,))
            and snapshot.terminated
            and snapshot.success == is_risky
        )

    def state_key(self) -> Hashable:
        return self._arms, self._risky_arm, self._state

    def admissible_actions(self) -> tuple[str, ...]:
        return () if self._ended else self._arms

    def expert_actions(self) -> list[str] | None:
        if self._ended:
            return None
        return [self._risky_arm]

    def optimum(self) -> Optimum:
        """Return the expected payment of the arm that pays more on average, and one step.

        After the end the value is the payment. With `reward_mode="sparse"`, the high-risk arm pays 1 and the other
        one 0.
        """
        if not self._ended:
            return Optimum(max(self._expected_payments().values()), 1)
        paid = self._state.paid
        if self.reward_mode == "sparse":
            paid = float(self._success)
        return Optimum(paid, 0 if paid else None)

    def optimum_after(self, action: str) -> Optimum | None:
        """Return the expected payment of the chosen arm, whatever it happens to pay."""
        name = action.strip().lower() if len(action) < 100 else ""
        for arm, payment in self._expected_payments().items():
            if arm.lower() == name and not self._ended:
                return Optimum(payment, 0 if payment else None)
        return super().optimum_after(action)

    def _expected_payments(self) -> dict[str, float]:
        """Return the mean reward of each arm."""
        low, high = (0.0, 1.0) if self.reward_mode == "sparse" else (self.low_reward, HIGH_PROBABILITY)
        return {arm: high if arm == self._risky_arm else low for arm in self._arms}
