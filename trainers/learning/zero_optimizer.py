"""The descent under DeepSpeed ZeRO, stages 1 and 2: whole weights everywhere, gradients and optimizer in pieces.

DeepSpeed lays the parameters of a group behind each other, cuts the row into one piece a process, and gives the
optimizer that piece as if it were a parameter. Clipping is done here, since policy and critic each have a norm of
their own, on the averaged gradients of the piece; the step itself is DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .optimizer import Descent


class ZeroDescent(Descent):
    """See `Descent`."""

    @property
    def _zero(self) -> Any:
        """DeepSpeed's optimizer around torch's."""
        return self.optimizer.optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        if not self.accelerator.state.deepspeed_plugin.deepspeed_config.get("torch_autocast"):
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self.accelerator.device.type, dtype=torch.bfloat16)
        return context

    @contextmanager
    def part(self, last: bool) -> Iterator[None]:
        self.model.set_gradient_accumulation_boundary(is_boundary=last)
        yield

    def backward(self, loss: Tensor) -> None:
        self.model.backward(loss * self.world)

    def _clip(self, limit: float) -> list[float]:
        norms = []
        for number in range(len(self.optimizer.param_groups)):
            gradients = self._zero.averaged_gradients[number]
            squares = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
            for gradient in gradients:
                squares += gradient.double().square().sum()
            norm = float(self.accelerator.reduce(squares, "sum").sqrt())
            for gradient in gradients:
                gradient.mul_(min(1.0, limit / (norm + 1e-6)))
            norms.append(norm)
        return norms

    def _take(self, finite: bool) -> None:
        self.model.step()
        if self._zero.overflow == finite:  # it skips steps by itself, on the same evidence
            raise RuntimeError("DeepSpeed and the trainer disagree on whether the gradients are finite.")

    # ------------------------------------------------------------------ checkpoints

    def _optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        state: dict[str, dict[str, Tensor]] = {}
        for group, piece in enumerate(self._zero.single_partition_of_fp32_groups):
            for key, value in self._zero.optimizer.state.get(piece, {}).items():
                for name, parameter in self._of_group(group):
                    known = state.setdefault(name, {})
                    if value.shape != piece.shape:
                        known[key] = value.detach().cpu()
                        continue
                    whole = torch.zeros(parameter.numel(), dtype=value.dtype, device=value.device)
                    for there, here in self._places(parameter, value, whole):
                        here.copy_(there)
                    known[key] = self.accelerator.reduce(whole, "sum").view_as(parameter).cpu()
        return state

    def _put_optimizer_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        for group, piece in enumerate(self._zero.single_partition_of_fp32_groups):
            own = self._zero.optimizer.state[piece]
            for name, parameter in self._of_group(group):
                for key, value in state.get(name, {}).items():
                    if value.shape != parameter.shape:
                        own[key] = value.clone()
                        continue
                    place = own.setdefault(key, torch.zeros_like(piece))
                    for there, here in self._places(parameter, place, value.flatten()):
                        there.copy_(here)

    @staticmethod
    def _places(parameter: Any, piece: Tensor, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The part of a parameter that this process's piece holds, if any: in the piece, and in the whole."""
        mapping = parameter._hp_mapping
        if mapping is None:
            return []
        there, here = mapping.hp_fragment_address, mapping.lp_fragment_address
        return [(piece.narrow(0, there.start, there.numel), flat.narrow(0, here.start, here.numel))]

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._zero.refresh_fp32_params()  # pieces are copies of weights, and the critic's have changed

    def _of_group(self, group: int) -> list[tuple[str, Tensor]]:
        """Names and parameters of a group, in the order in which they were laid out."""
        names = {id(parameter): name for name, parameter in self.policy.named_parameters()}
        return [(names[id(parameter)], parameter) for parameter in self._zero.bit16_groups[group]]
