"""Settings of a study's controls: what the same model reaches without reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...envs.checks import at_least, fraction, one_of, positive
from ...eval.yaml_files import convert_mapping


@dataclass(frozen=True)
class Supervised:
    """Further supervised fine-tuning of the warm start on expert episodes, with settings of `arboretum sft`.

    Attributes:
        source: What the expert plays: the environment itself ("env"), or the levels of the warm start ("levels").
        lr: Peak learning rate; it rises linearly over the warm-up and falls to 0 along a cosine.
        batch: Episodes per optimizer step.
        warmup: Steps over which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        noise: Probability that an action is drawn at random instead of the expert's.
        keep: Episodes to train on: "solved" ones only, or "all".
        actions_per_turn: Actions of the expert in one reply. None fills the dialogue's limit.
    """

    source: Literal["env", "levels"] = "env"
    lr: float = 1e-5
    batch: int = 32
    warmup: int = 10
    weight_decay: float = 0.0
    noise: float = 0.0
    keep: Literal["solved", "all"] = "solved"
    actions_per_turn: int | None = None

    def check(self) -> None:
        """Raise `ConfigurationError` for a value out of range."""
        positive("controls.supervised.lr", self.lr)
        at_least("controls.supervised.batch", self.batch, 1)
        for name in ("warmup", "weight_decay"):
            at_least(f"controls.supervised.{name}", getattr(self, name), 0)
        fraction("controls.supervised.noise", self.noise)
        one_of("controls.supervised.source", self.source, ("env", "levels"))
        one_of("controls.supervised.keep", self.keep, ("solved", "all"))
        at_least("controls.supervised.actions_per_turn", self.actions_per_turn, 1)


@dataclass(frozen=True)
class Controls:
    """Controls of a study, each a row of its tables. Random agent, expert and warm start are always rows.

    Attributes:
        temperatures: Sampling temperatures of the warm start that are compared on validation tasks; the
            one with the highest success rate is evaluated on the held-out tasks. An empty list
            leaves this out.
        tuning_tasks: Validation tasks on which the temperatures are compared.
        model: Another model to evaluate beside the warm start, such as that before its last stage. None leaves it
            out.
        supervised: Further supervised fine-tuning of the warm start in each environment, one run per seed, for the
            mean CPU time of the recipes' runs there. None leaves it out.
    """

    temperatures: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 1.0)
    tuning_tasks: int = 128
    model: str | None = None
    supervised: Supervised | None = field(default_factory=Supervised)

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            positive("controls.temperatures", temperature)
        at_least("controls.tuning_tasks", self.tuning_tasks, 1)
        if self.supervised is not None:
            self.supervised.check()


@dataclass(frozen=True)
class _ControlsItem:
    """Shape of `controls` in a study's file."""

    temperatures: list[float] | None = None
    tuning_tasks: int = Controls.tuning_tasks
    model: str | None = None
    supervised: bool | dict[str, Any] = True


def parse_controls(data: dict[str, Any], source: str) -> Controls:
    """Return the controls that a study's file describes.

    Args:
        data: Value of the key `controls`.
        source: Name of the file, for messages.

    Raises:
        DataError: A key is unknown, or a value has the wrong type.
        ConfigurationError: A value is out of range.
    """
    item = convert_mapping(data, _ControlsItem, {}, f"{source}, controls")
    if item.supervised is False:
        supervised = None
    else:
        own = item.supervised if isinstance(item.supervised, dict) else {}
        supervised = convert_mapping(own, Supervised, {}, f"{source}, controls.supervised")
    temperatures = Controls.temperatures if item.temperatures is None else tuple(item.temperatures)
    return Controls(temperatures, item.tuning_tasks, item.model, supervised)
