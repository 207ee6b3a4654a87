"""Optimizer under DeepSpeed ZeRO, stages 1 and 2: full weights everywhere, sharded gradients and optimizer state.

DeepSpeed concatenates the parameters of a group, cuts the result into one shard per process, and passes that shard
to the optimizer as if it were a parameter. Clipping happens here, on the averaged gradients of the shard, since
policy and critic have separate norms; the step is DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .optimizer import PolicyOptimizer


class ZeroPolicyOptimizer(PolicyOptimizer):
    """`PolicyOptimizer` whose gradients and optimizer state DeepSpeed ZeRO shards."""

    @property
    def _zero(self) -> Any:
        """DeepSpeed's optimizer, which wraps torch's."""
        return self.torch_optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        if not self.accelerator.state.deepspeed_plugin.deepspeed_config.get("torch_autocast"):
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.accelerator.device.type, dtype=torch.bfloat16)
        return context

    @contextmanager
    def accumulate(self, is_last: bool) -> Iterator[None]:
        self.model.set_gradient_accumulation_boundary(is_boundary=is_last)
        yield

    def backward(self, loss: Tensor) -> None:
        self.model.backward(loss * self.world_size)

    def _clip(self, max_norm: float) -> list[float]:
        norms = []
        for number in range(len(self.param_groups)):
            gradients = self._zero.averaged_gradients[number]
            squares = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
            for gradient in gradients:
                squares += gradient.double().square().sum()
            norm = float(self.accelerator.reduce(squares, "sum").sqrt())
            for gradient in gradients:
                gradient.mul_(min(1.0, max_norm / (norm + 1e-6)))
            norms.append(norm)
        return norms

    def _step_and_zero(self, finite: bool) -> None:
        self.model.step()
        if self._zero.overflow == finite:  # DeepSpeed skips steps by itself, by the same rule.
            raise RuntimeError("DeepSpeed and the trainer disagree on whether the gradients are finite.")
        if self.critic_only:  # The learning rate was 0; the moments and the count of steps must not remain.
            self._zero.optimizer.state.pop(self._zero.single_partition_of_fp32_groups[0], None)

    # ------------------------------------------------------------------ checkpoints

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        state: dict[str, dict[str, Tensor]] = {}
        for group, shard in enumerate(self._zero.single_partition_of_fp32_groups):
            for key, value in self._zero.optimizer.state.get(shard, {}).items():
                for name, parameter in self._group_parameters(group):
                    known = state.setdefault(name, {})
                    if value.shape != shard.shape:
                        known[key] = value.detach().cpu()
                        continue
                    full = torch.zeros(parameter.numel(), dtype=value.dtype, device=value.device)
                    for there, here in self._overlap(parameter, value, full):
                        here.copy_(there)
                    known[key] = self.accelerator.reduce(full, "sum").view_as(parameter).cpu()
        return state

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for group, shard in enumerate(self._zero.single_partition_of_fp32_groups):
            self._zero.optimizer.state.pop(shard, None)  # The state to load may have none for some parameters.
            own = self._zero.optimizer.state[shard]
            for name, parameter in self._group_parameters(group):
                for key, value in state.get(name, {}).items():
                    if value.shape != parameter.shape:
                        own[key] = value.clone()
                        continue
                    place = own.setdefault(key, torch.zeros_like(shard))
                    for there, here in self._overlap(parameter, place, value.flatten()):
                        there.copy_(here)

    @staticmethod
    def _overlap(parameter: Any, shard: Tensor, full: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return views of the part of a parameter in this process's shard: in the shard, and in the full tensor.

        The list is empty if the shard holds no part of the parameter.
        """
        mapping = parameter._hp_mapping
        if mapping is None:
            return []
        there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
        return [(shard.narrow(0, there.start, there.numel), full.narrow(0, here.start, here.numel))]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._zero.refresh_fp32_params()  # Shards are copies of weights, and the critic's have changed.

    def _group_parameters(self, group: int) -> list[tuple[str, Tensor]]:
        """Return names and parameters of a group, in DeepSpeed's order."""
        names = {id(parameter): name for name, parameter in self.policy.named_parameters()}
        return [(names[id(parameter)], parameter) for parameter in self._zero.bit16_groups[group]]
