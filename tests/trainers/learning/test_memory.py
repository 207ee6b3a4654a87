"""Memory that runs out, and engines that fail, become one sentence that names the setting to lower."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

from arboretum.agents.base import Stop
from arboretum.trainers.algorithms.part_failures import PartFailed
from arboretum.trainers.learning.memory import OutOfMemory, memory_failures
from arboretum.trainers.sampling.failures import SamplingFailed, engine_failures


def exhaust_memory() -> None:
    torch.empty(1 << 50)


def test_memory_that_runs_out_in_an_update_names_the_microbatch() -> None:
    with (
        pytest.raises(OutOfMemory, match=r"ran out during an update .*lower microbatch_tokens, which is 2048, or"),
        memory_failures(2048),
    ):
        exhaust_memory()
    with pytest.raises(OutOfMemory, match=r"lower microbatch_tokens"), memory_failures(2048):
        try:
            exhaust_memory()
        except RuntimeError as error:
            raise PartFailed("term kl failed") from error


def test_memory_that_runs_out_in_sampling_names_the_episodes_in_flight() -> None:
    advice = "lower --in-flight, which is 64, or sampler"
    with pytest.raises(SamplingFailed, match=rf"can't allocate memory.*; {advice}"), engine_failures(64):
        exhaust_memory()
    with pytest.raises(SamplingFailed, match=rf"^sampling failed: no reply; {advice}"), engine_failures(64):
        try:
            exhaust_memory()
        except RuntimeError as error:
            raise Stop("no reply") from error


def test_failure_of_the_engine_has_its_reason_and_other_errors_pass() -> None:
    with pytest.raises(SamplingFailed, match=r"^sampling failed: the key is rejected\.$"), engine_failures(64):
        raise Stop("the key is rejected.")
    for context in (engine_failures(64), memory_failures(64)):
        with pytest.raises(RuntimeError, match=r"^a mistake$") as failure, context:
            raise RuntimeError("a mistake")
        assert type(failure.value) is RuntimeError
