"""Sampling on vLLM servers that take the policy's weights between updates, through a folder that they share."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ...agents.base import Stop
from ...agents.engines.vllm_policy_servers import VLLMPolicyServers
from ..config.settings import HardwareConfig
from ..data.segments import FloatArray
from ..learning.distributed import gather_lists
from ..learning.optimizer import PolicyOptimizer
from ..learning.sharding import merged_weights
from .policy_engine import PolicyEngine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Mean absolute difference of the log-probabilities of trainer and server that rounding explains, by precision."""

WEIGHTS_FOLDER = "sampler-weights"
"""Folder within that of the run, through which servers take weights."""

PART_BYTES = 4 * 2**30
"""Size from which weights go to another file."""

_TEXT = (
    "You stand in a room with three doors. The red door is locked, the green one leads north to the kitchen, and "
    "behind the blue one somebody is playing the piano. You have 12 steps left. First look for the key, then "
    "decide which door to open, and answer with a single action: "
)
"""Text whose tokens the policy and the servers score after every transfer of weights."""


def server_engine(
    hardware: HardwareConfig, optimizer: PolicyOptimizer, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> PolicyEngine:
    """Return an engine that samples on the vLLM servers of `hardware.base_url`.

    Args:
        hardware: Addresses and precision.
        optimizer: Policy in training.
        tokenizer: Tokenizer of the model.
        folder: Folder of the run, which the servers see under the same path.

    Raises:
        ConfigurationError: A server cannot be used.
    """
    engine = VLLMPolicyServers(
        hardware.server_urls,
        dtype=hardware.precision,
        tokenizer=tokenizer,
        concurrency=hardware.in_flight,
        # A server that has failed, and was started again, has lost the weights of the run.
        attempts=3,
        # A request waits in the server's queue while other processes' replies are sampled.
        timeout=600.0,
        deadline=1200.0,
    )
    weights = ServerWeights(engine, optimizer, tokenizer, folder / WEIGHTS_FOLDER, hardware.precision)
    return PolicyEngine(engine, weights.load, lambda: optimizer.version, check=engine.check_version)


class ServerWeights:
    """Transfer of the policy's weights to the servers of an engine.

    The main process writes the weights, adapters merged, in the precision of the run; the servers load the files,
    which are then deleted. Policy and servers score the same text afterwards, so that a server which does not
    compute with the new weights ends the run.

    Args:
        engine: Engine of the servers.
        optimizer: Policy in training.
        tokenizer: Tokenizer of the model.
        folder: Folder for the weights.
        precision: Precision of the run.
    """

    def __init__(
        self,
        engine: VLLMPolicyServers,
        optimizer: PolicyOptimizer,
        tokenizer: PreTrainedTokenizerBase,
        folder: Path,
        precision: str,
    ) -> None:
        self._engine, self._optimizer, self._folder = engine, optimizer, folder
        self._dtype: torch.dtype = getattr(torch, precision)
        self._tolerance = TOLERANCE[precision]
        ids = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
        self._text = list(ids)[: (engine.context or len(ids) + 1) - 1]

    def load(self) -> None:
        """Have the servers load the current weights; a collective operation of all processes.

        Raises:
            Stop: The weights cannot be written, or a server does not have them. All processes raise alike.
        """
        accelerator = self._optimizer.accelerator
        expected = self._score_text()
        weights = merged_weights(self._optimizer.policy.model)
        version, failure = uuid.uuid4().hex, ""
        if accelerator.is_main_process:
            try:
                self._transfer(weights, version)
                self._compare(expected)
            except Stop as error:
                failure = str(error)
            except OSError as error:
                failure = f"the weights cannot be written to {self._folder} ({error.strerror or error})."
        for _ in weights:  # Gathering sharded weights takes all processes.
            pass
        version, failure = gather_lists(accelerator, [(version, failure)])[0]
        if failure:
            raise Stop(failure)
        self._engine.version = version

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _score_text(self) -> FloatArray:
        """Return the policy's log-probability of every token of the text but the first."""
        ids = torch.tensor(self._text, device=self._optimizer.accelerator.device)
        with self._optimizer.autocast():
            logp, _, _ = self._optimizer.model(
                tokens=ids[None],
                sources=torch.arange(len(ids) - 1, device=ids.device),
                targets=ids[1:],
                temperature=1.0,
                use_critic=False,
            )
        scores: FloatArray = logp.double().cpu().numpy()
        return scores

    def _transfer(self, weights: Iterable[tuple[str, Tensor]], version: str) -> None:
        folder = self._folder / version
        try:
            write_weights(weights, folder, self._dtype)
            self._engine.load_weights(folder, version)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _compare(self, expected: FloatArray) -> None:
        """Raise `Stop` if a server's log-probabilities are not those of the policy."""
        for url, found in zip(self._engine.urls, self._engine.prompt_logprobs(self._text), strict=True):
            difference = float(np.abs(np.array(found) - expected).mean())
            if not difference <= self._tolerance:
                raise Stop(
                    f"the server at {url} does not compute with the weights that it has loaded: its "
                    f"log-probabilities differ from the policy's by {difference:.2g} a token on average, more "
                    f"than {self._tolerance:g}."
                )


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype) -> None:
    """Write weights into safetensors files of a few gigabytes.

    Args:
        weights: Names and values, consumed one by one.
        folder: New folder.
        dtype: Dtype of the files.

    Raises:
        OSError: They cannot be written.
    """
    folder.mkdir(parents=True)
    part: dict[str, Tensor] = {}
    parts = 0

    def flush() -> None:
        nonlocal parts
        if part:
            save_file(part, folder / f"weights-{parts:05}.safetensors")
            part.clear()
            parts += 1

    for name, tensor in weights:
        part[name] = tensor.to("cpu", dtype).contiguous()
        if sum(value.nbytes for value in part.values()) >= PART_BYTES:
            flush()
    flush()
