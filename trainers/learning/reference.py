"""Reference policy: the initial policy, or a moving average of the policies after every update."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .policy import Policy, peft_wrapper
from .sharding import assign, full_tensor, reshard

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def update_average(reference: Tensor, policy: Tensor, decay: float = 0.95) -> Tensor:
    """Return π_ref ← α π_ref + (1 - α) π, the moving average after an update (arXiv:2604.07165, alg. 1, line 11).

    Args:
        reference: Weight of the reference policy, any shape.
        policy: Weight of the policy, same shape.
        decay: α.
    """
    return policy.lerp(reference, decay)


class Reference:
    """Policy that losses compare with: frozen as it was before training, or a moving average of the policy.

    With adapters, a frozen reference is the model with its adapters disabled, which costs no memory, and a moving
    average is that of the adapters' matrices, which replace the policy's while the reference scores. Without
    adapters, either is a copy of the model. A frozen copy stays on the model's device. Averages are kept in
    float32 on the CPU, and on the model's device only while they score.

    Args:
        model: Model whose current weights become the reference. It is not sharded yet.
        decay: Decay α of the moving average; None keeps the reference frozen.
    """

    def __init__(self, model: PreTrainedModel, decay: float | None = None) -> None:
        self.decay = decay
        self._device = model.device
        self._peft = peft_wrapper(model)
        self._copy: Policy | None = None
        self._adapters: dict[str, Tensor] = {}
        if self._peft is None:
            self._copy = Policy(copy.deepcopy(model)).eval().requires_grad_(False)
            if decay is not None:
                self._copy.float().to("cpu")
        elif decay is not None:
            self._adapters = {
                name: full_tensor(weight).float().cpu().clone() for name, weight in _trained(model).items()
            }

    @contextmanager
    def scorer(self, policy: nn.Module) -> Iterator[nn.Module]:
        """Context that yields the module to call instead of `policy` to score tokens under the reference.

        A collective operation where the policy is sharded.

        Args:
            policy: Policy in training, as Accelerate wrapped it.
        """
        if self._copy is not None:
            self._copy.to(self._device)
            try:
                yield self._copy
            finally:
                if self.decay is not None:
                    self._copy.to("cpu")
            return
        assert self._peft is not None
        with nullcontext() if self.decay is not None else self._peft.disable_adapter():
            trained = _trained(self._peft.get_base_model()) if self.decay is not None else {}
            current = {name: weight.detach().clone() for name, weight in trained.items()}
            reshard(policy)
            for name, weight in trained.items():
                assign(weight, self._adapters[name])
            try:
                yield policy
            finally:
                reshard(policy)
                with torch.no_grad():
                    for name, weight in trained.items():
                        weight.copy_(current[name])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def follow(self, model: PreTrainedModel) -> None:
        """Move the average towards the policy; nothing happens to a frozen reference.

        A collective operation of all processes where the policy is sharded.

        Args:
            model: Model of the policy.
        """
        if self.decay is None:
            return
        reshard(model)
        averages = self._averages
        for name, weight in _trained(model).items():
            new = full_tensor(weight).float().cpu()
            averages[name].copy_(update_average(averages[name], new, self.decay))

    @property
    def _averages(self) -> dict[str, Tensor]:
        """Averaged weights by name, on the CPU."""
        return self._adapters if self._copy is None else dict(self._copy.model.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averaged weights by name; empty for a frozen reference."""
        return {} if self.decay is None else {name: value.detach() for name, value in self._averages.items()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a `state_dict` of a reference with the same settings."""
        for name, weight in (self._averages if self.decay is not None else {}).items():
            weight.copy_(state[name])


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
