"""The transformers engine on tiny random models, against plain forward passes and `model.generate`."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.engines.base import Completion, Message, Request, Sampling
from arboretum.agents.engines.local.load import load_context
from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.agents.tokens import ChatTokens, Conversation
from arboretum.envs.errors import ConfigurationError

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum-rl[lm]'")

pytestmark = pytest.mark.heavy


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[TransformersEngine]:
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=8)
    yield engine
    engine.close()


def request(name: str, ids: Sequence[int], parent: str | None = None, seed: int = 0, **sampling: Any) -> Request:
    options = {"temperature": 1.0, "max_tokens": 12, **sampling}
    return Request(name, (), list(ids), Sampling(**options), seed, parent=parent)


def answers(engine: TransformersEngine, *requests: Request) -> dict[str, Completion]:
    """Return the replies of all requests, collected over as many calls as necessary."""
    for one in requests:
        engine.submit(one)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        done.update(engine.collect())
    return done


def ids_of(completion: Completion) -> list[int]:
    assert completion.token_ids is not None
    return completion.token_ids


def assert_exact(model: Any, prompt: Sequence[int], completion: Completion, tolerance: float = 1e-4) -> None:
    """Check a reply's log-probabilities against one plain forward pass over the whole sequence."""
    assert completion.error is None
    sampled = ids_of(completion)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *sampled]])).logits[0].float()
    logprobs = torch.log_softmax(logits, -1)
    expected = [logprobs[len(prompt) - 1 + n, token].item() for n, token in enumerate(sampled)]
    assert completion.logprobs == pytest.approx(expected, abs=tolerance)


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 480) for _ in range(count)]


@pytest.mark.parametrize("max_batch", [1, 3, 16])
def test_ragged_conversations_have_exact_logprobs_over_turns(tiny_model: Path, max_batch: int) -> None:
    """Ten conversations of three turns, all of different lengths, in smaller batches than conversations."""
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=max_batch)
    rng = random.Random(max_batch)
    conversations = {str(n): tokens(rng, rng.randrange(1, 120)) for n in range(10)}
    lengths = dict.fromkeys(conversations, 1)  # length of each conversation after its last reply
    for turn in range(3):
        requests = [
            request(n, ids, seed=turn, max_tokens=rng.randrange(1, 25)) for n, ids in conversations.items()
        ]
        for name, completion in answers(engine, *requests).items():
            assert_exact(engine.model, conversations[name], completion)
            assert completion.usage.prompt_tokens == len(conversations[name])
            assert completion.usage.cached_tokens == lengths[name] - 1  # the last sampled token is not yet encoded
            conversations[name] += ids_of(completion)
            lengths[name] = len(conversations[name])
            conversations[name] += tokens(rng, rng.randrange(1, 40))


def test_long_prompts_are_encoded_in_chunks(engine: TransformersEngine) -> None:
    rng = random.Random(0)
    prompts = {str(n): tokens(rng, length) for n, length in enumerate((513, 1100, 20, 512, 1700))}
    for name, completion in answers(engine, *(request(n, ids) for n, ids in prompts.items())).items():
        assert_exact(engine.model, prompts[name], completion)
    new = sum(map(len, prompts.values())) + 5 * 12
    assert engine.computed_tokens <= 1.1 * new


def test_branches_reuse_the_cache_of_their_parent(engine: TransformersEngine) -> None:
    """Two branches from different turns of one conversation, which continues unchanged."""
    rng = random.Random(1)
    trunk = tokens(rng, 50)
    trunk += ids_of(answers(engine, request("trunk", trunk))["trunk"])
    before = engine.computed_tokens
    prompts = {
        "trunk": trunk + tokens(rng, 5),
        "early": trunk[:40] + tokens(rng, 6),
        "late": trunk + tokens(rng, 7),
    }
    done = answers(
        engine,
        request("trunk", prompts["trunk"]),
        request("early", prompts["early"], parent="trunk"),
        request("late", prompts["late"], parent="trunk"),
    )
    for name, completion in done.items():
        assert_exact(engine.model, prompts[name], completion)
    assert done["early"].usage.cached_tokens == 40
    assert done["late"].usage.cached_tokens == len(trunk) - 1
    assert engine.computed_tokens - before < 6 + 7 + 8 + 3 * 12 + 40


def test_branch_reuses_the_cache_of_an_offloaded_parent(tiny_model: Path) -> None:
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=1)
    rng = random.Random(2)
    trunk = tokens(rng, 40)
    trunk += ids_of(answers(engine, request("trunk", trunk))["trunk"])
    answers(engine, request("other", tokens(rng, 10)))
    branch = trunk + tokens(rng, 3)
    done = answers(engine, request("branch", branch, parent="trunk"))["branch"]
    assert_exact(engine.model, branch, done)
    assert done.usage.cached_tokens == len(trunk) - 1


def test_common_prefix_of_conversations_is_computed_once(engine: TransformersEngine) -> None:
    """Eight conversations with the same instructions, on two tasks."""
    rng = random.Random(3)
    instructions, first, second = tokens(rng, 200), tokens(rng, 30), tokens(rng, 30)
    prompts = {f"{n}": instructions + (first if n < 4 else second) for n in range(8)}
    done = answers(engine, *(request(n, ids, seed=int(n)) for n, ids in prompts.items()))
    for name, completion in done.items():
        assert_exact(engine.model, prompts[name], completion)
    assert engine.computed_tokens <= 1.1 * (200 + 2 * 30 + 8 * 12)
    assert len({tuple(ids_of(completion)) for completion in done.values()}) == 8


def test_turn_computes_only_its_new_tokens(engine: TransformersEngine) -> None:
    """Ten turns of eight conversations compute at most 1.1 times the new tokens, padding included."""
    rng = random.Random(4)
    conversations = {str(n): tokens(rng, rng.randrange(90, 110)) for n in range(8)}
    for turn in range(10):
        done = answers(engine, *(request(n, ids, seed=turn) for n, ids in conversations.items()))
        for name, completion in done.items():
            conversations[name] += ids_of(completion) + tokens(rng, rng.randrange(25, 35))
    assert engine.computed_tokens <= 1.1 * sum(map(len, conversations.values()))


def test_changed_history_reuses_only_the_common_prefix(engine: TransformersEngine) -> None:
    """A history window drops old turns, so only the part before them is reused."""
    rng = random.Random(5)
    first = tokens(rng, 60)
    answers(engine, request("a", first))
    shorter = first[:20] + first[40:]
    done = answers(engine, request("a", shorter))["a"]
    assert_exact(engine.model, shorter, done)
    assert done.usage.cached_tokens == 20
    again = answers(engine, request("a", shorter, seed=1))["a"]  # no new tokens
    assert_exact(engine.model, shorter, again)
    assert again.usage.cached_tokens == len(shorter) - 1


def test_greedy_sampling_matches_generate(engine: TransformersEngine) -> None:
    rng = random.Random(6)
    prompts = {str(n): tokens(rng, rng.randrange(5, 50)) for n in range(8)}
    done = answers(engine, *(request(n, ids, temperature=0.0, max_tokens=30) for n, ids in prompts.items()))
    for name, completion in done.items():
        ids = torch.tensor([prompts[name]])
        theirs = engine.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30
        )
        assert ids_of(completion) == theirs[0, len(prompts[name]) :].tolist()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20}])
def test_reply_does_not_depend_on_the_batch(tiny_model: Path, sampling: dict[str, Any]) -> None:
    rng = random.Random(7)
    prompts = {str(n): tokens(rng, rng.randrange(5, 60)) for n in range(12)}
    requests = [request(n, ids, seed=int(n), max_tokens=20, **sampling) for n, ids in prompts.items()]
    together = answers(TransformersEngine(tiny_model, device="cpu", max_batch=5), *requests)
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=5)
    for one in reversed(requests):
        alone = answers(engine, one)[one.conversation]
        assert ids_of(alone) == ids_of(together[one.conversation])
    assert len({tuple(ids_of(completion)) for completion in together.values()}) == len(requests)


def test_sampling_settings_apply_per_row(engine: TransformersEngine) -> None:
    rng = random.Random(8)
    prompt = tokens(rng, 20)
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "hot": {"temperature": 5.0},
        "one": {"temperature": 1.0, "top_k": 1},
        "tip": {"temperature": 2.0, "top_p": 0.0},
    }
    done = answers(engine, *(request(name, prompt, seed=3, **kind) for name, kind in kinds.items()))
    assert ids_of(done["greedy"]) == ids_of(done["one"]) == ids_of(done["tip"]) != ids_of(done["hot"])
    for completion in done.values():  # always at temperature 1, before top-p and top-k
        assert_exact(engine.model, prompt, completion)


def test_stop_text_ends_the_reply(engine: TransformersEngine) -> None:
    """The reply is that of a request without stop texts up to the first token that completes a stop text."""
    prompt = tokens(random.Random(9), 20)
    free = answers(engine, request("free", prompt, max_tokens=60))["free"]
    decode = engine.tokenizer.decode
    stops = [free.text[k : k + 2] for k in (5, 15, 30)] + [free.text[20:27]]
    for n, stop in enumerate(stop for stop in stops if "\ufffd" not in stop):
        done = answers(engine, request(str(n), prompt, max_tokens=60, stop=("@never@", stop)))[str(n)]
        sampled = ids_of(done)
        assert done.finish == "stop"
        assert sampled == ids_of(free)[: len(sampled)]
        assert stop in decode(sampled) and stop not in decode(sampled[:-1])
        assert done.text == decode(sampled)[: decode(sampled).index(stop) + len(stop)]
        assert done.text.endswith(stop)


def test_end_tokens_and_limits_end_the_reply(tiny_model: Path) -> None:
    engine = TransformersEngine(tiny_model, device="cpu", context=40)
    prompt = tokens(random.Random(10), 30)
    free = answers(engine, request("free", prompt, max_tokens=5))["free"]
    assert free.finish == "length" and len(ids_of(free)) == 5
    assert free.text == engine.tokenizer.decode(ids_of(free))
    engine.end_ids.add(ids_of(free)[2])
    ended = answers(engine, request("ended", prompt, max_tokens=5))["ended"]
    assert ended.finish == "stop" and ids_of(ended) == ids_of(free)[:3]
    assert ended.text == engine.tokenizer.decode(ids_of(free)[:2])  # without the token that ended it
    engine.end_ids.clear()
    full = answers(engine, request("full", prompt, max_tokens=50))["full"]
    assert full.finish == "length" and len(ids_of(full)) == 10  # the context holds 40
    over = answers(engine, request("over", prompt * 2, max_tokens=5))["over"]
    assert over.finish == "length" and ids_of(over) == [] and over.text == ""
    assert engine.usage.completion_tokens == 5 + 3 + 10
    assert engine.usage.prompt_tokens == 3 * 30 + 60


def test_finished_reply_is_replaced_in_the_batch_at_once(tiny_model: Path) -> None:
    """Short replies are returned while a long one is in progress, and waiting requests take their places."""
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=2)
    engine.end_ids.clear()
    rng = random.Random(11)
    engine.submit(request("long", tokens(rng, 10), max_tokens=40))
    for n in range(4):
        engine.submit(request(f"short{n}", tokens(rng, 10), max_tokens=5))
    order = []
    while len(order) < 5:
        order += [name for name, _ in engine.collect()]
    assert order == ["short0", "short1", "short2", "short3", "long"]


def test_nan_logits_fail_only_their_reply(tiny_model: Path) -> None:
    """A token with a NaN embedding fails its conversation, but none beside it and no later one in its row."""
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=3)
    prompts = {str(n): tokens(random.Random(n), 20) for n in range(3)}
    poison = next(token for token in range(3, 480) if all(token not in ids for ids in prompts.values()))
    with torch.no_grad():
        engine.model.get_output_embeddings().weight = torch.nn.Parameter(engine.model.lm_head.weight.clone())
        engine.model.get_input_embeddings().weight[poison] = float("nan")
    prompts["1"][7] = poison
    done = answers(engine, *(request(n, ids) for n, ids in prompts.items()))
    assert done["1"].finish == "error" and "NaN" in str(done["1"].error) and engine.refused == 1
    for name in ("0", "2"):
        assert_exact(engine.model, prompts[name], done[name])
    # The next conversation in its row is shorter than its neighbor: keys beyond its end are masked, but NaN values
    # there would still spread.
    prompts["0"] += ids_of(done["0"])
    later = {"next": [token for token in tokens(random.Random(9), 5) if token != poison], "0": prompts["0"]}
    for name, completion in answers(engine, *(request(n, ids) for n, ids in later.items())).items():
        assert_exact(engine.model, later[name], completion)


def test_least_recently_used_conversations_are_evicted(tiny_model: Path) -> None:
    """Evicted conversations have exact log-probabilities when they continue."""
    engine = TransformersEngine(tiny_model, device="cpu", max_batch=2, cache_tokens=215)
    engine.end_ids.clear()
    rng = random.Random(12)
    prompts = {str(n): tokens(rng, 60) for n in range(6)}
    for name in prompts:
        reply = ids_of(answers(engine, request(name, prompts[name], max_tokens=5))[name])
        prompts[name] += reply + tokens(rng, 5)
    cached = {}
    for name in reversed(prompts):  # three of them fit
        done = answers(engine, request(name, prompts[name], max_tokens=1))[name]
        assert_exact(engine.model, prompts[name], done)
        cached[name] = done.usage.cached_tokens
    assert cached == {"5": 64, "4": 64, "3": 64, "2": 0, "1": 0, "0": 0}


def test_released_conversation_is_forgotten(engine: TransformersEngine) -> None:
    rng = random.Random(13)
    prompt = tokens(rng, 30)
    answers(engine, request("a", prompt))
    engine.release("a")
    assert answers(engine, request("a", prompt))["a"].usage.cached_tokens == 0
    engine.submit(request("a", prompt, max_tokens=1000))
    engine.submit(request("b", prompt))
    engine.release("a")
    engine.release("never seen")
    assert [name for name, _ in engine.collect()] == ["b"]
    with pytest.raises(RuntimeError, match="no request is pending"):
        engine.collect()


def test_invalid_request_is_rejected(engine: TransformersEngine) -> None:
    engine.submit(request("a", [5]))
    with pytest.raises(ValueError, match="'a' already has a pending request"):
        engine.submit(request("a", [5]))
    with pytest.raises(ValueError, match="'b' has no prompt_ids"):
        engine.submit(Request("b", (Message("user", "hi"),), None, Sampling(), 0))


def test_model_object_is_trained_between_replies(tiny_model: Path) -> None:
    """Sampling restores the training mode and leaves gradients intact; `invalidate` applies the new weights."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
    engine = TransformersEngine(model, transformers.AutoTokenizer.from_pretrained(tiny_model))
    engine.end_ids.clear()
    prompt = tokens(random.Random(14), 40)
    model.train()
    first = answers(engine, request("a", prompt))["a"]
    assert model.training
    batch = torch.tensor([prompt + ids_of(first)])
    model(input_ids=batch, labels=batch).loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.5 * parameter.grad
    engine.invalidate()
    longer = prompt + ids_of(first) + prompt[:5]
    second = answers(engine, request("a", longer))["a"]
    assert second.usage.cached_tokens == 0
    model.eval()
    assert_exact(model, longer, second)
    with pytest.raises(AssertionError):
        assert_exact(model, prompt, first)


def test_weights_may_change_during_a_reply(tiny_model: Path) -> None:
    engine = TransformersEngine(tiny_model, device="cpu")
    engine.end_ids.clear()
    prompt = tokens(random.Random(15), 40)
    engine.submit(request("short", prompt, max_tokens=3))
    engine.submit(request("long", prompt[::-1], max_tokens=9))
    assert [name for name, _ in engine.collect()] == ["short"]
    with torch.no_grad():
        engine.model.lm_head.weight *= 1.5
    engine.invalidate()
    ((_, done),) = engine.collect()
    with torch.no_grad():
        ids = torch.tensor([prompt[::-1] + ids_of(done)])
        after = torch.log_softmax(engine.model(input_ids=ids).logits[0], -1)
    expected = [after[39 + n, token].item() for n, token in enumerate(ids_of(done))]
    assert done.logprobs is not None
    assert done.logprobs[3:] == pytest.approx(expected[3:], abs=1e-4)
    assert done.logprobs[:3] != pytest.approx(expected[:3], abs=1e-4)


def test_chat_template_conversation_computes_only_new_tokens(engine: TransformersEngine) -> None:
    """The conversation of openings, replies and bridges is exact, and only new tokens are computed."""
    chat = ChatTokens(engine.tokenizer)
    assert chat.end_ids <= engine.end_ids
    messages = [Message("system", "You are solving a puzzle."), Message("user", "Turn 1: State: #### _ P X O")]
    conversation = Conversation(chat.opening(messages, prefill="<think>"))
    length = 1
    for turn in range(3):
        done = answers(engine, request("chat", conversation.ids, seed=turn, max_tokens=15))["chat"]
        assert done.logprobs is not None
        assert_exact(engine.model, conversation.ids, done)
        assert done.usage.cached_tokens == length - 1
        conversation.add_reply(ids_of(done), done.logprobs)
        length = len(conversation)
        conversation.add_prompt(chat.bridge(ids_of(done), [Message("user", "Reward: 0.1")], prefill="<think>"))
    assert sum(conversation.loss_mask) == engine.usage.completion_tokens


SMALL = {
    "vocab_size": 490,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 2}, True),
    "qwen3": ("Qwen3Config", {"num_key_value_heads": 2, "head_dim": 16}, True),
    "phi3": ("Phi3Config", {"num_key_value_heads": 2, "original_max_position_embeddings": 256}, True),
    "gpt neo": (
        "GPTNeoConfig",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
        False,
    ),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}, True),
    "mistral, no window": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": None}, True),
    "mistral, wide window": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": 512}, True),
    "mistral, narrow window": ("MistralConfig", {"num_key_value_heads": 2, "sliding_window": 8}, False),
    "gemma2": ("Gemma2Config", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}, False),
    "mamba": ("MambaConfig", {"state_size": 4}, False),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logprobs_are_exact_for_every_architecture(name: str, tiny_tokenizer: Any) -> None:
    """Architectures with plain caches keep them between turns; the others encode every turn from its beginning."""
    kind, extra, keeps = ARCHITECTURES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SMALL, **extra)).eval()
    engine = TransformersEngine(model, tiny_tokenizer, max_batch=2)
    assert engine.keeps_cache == keeps
    rng = random.Random(16)
    conversations = {str(n): tokens(rng, rng.randrange(1, 40)) for n in range(4)}
    for turn in range(2):
        done = answers(engine, *(request(n, ids, seed=turn) for n, ids in conversations.items()))
        for n, completion in done.items():
            assert_exact(model, conversations[n], completion, 5e-4)
            assert (completion.usage.cached_tokens > 0) == (keeps and turn > 0)
            conversations[n] += ids_of(completion) + tokens(rng, 6)


def test_positions_that_long_sequences_scale_otherwise_are_those_of_each_row(
    tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """LongRoPE: all positions of a sequence have other angles as soon as it is longer than the original window."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 1.5]}
    extra = {"num_key_value_heads": 2, "original_max_position_embeddings": 32, "rope_scaling": scaling}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(transformers.Phi3Config(**SMALL, **extra)).eval()
    engine = TransformersEngine(model, tiny_tokenizer, max_batch=3)
    rng = random.Random(22)
    conversations = {"short": tokens(rng, 8), "crosses": tokens(rng, 26), "long": tokens(rng, 60)}
    for turn in range(2):
        requests = [request(name, ids, seed=turn) for name, ids in conversations.items()]
        for name, done in answers(engine, *requests).items():
            ids = conversations[name]
            for token, logprob in zip(ids_of(done), done.logprobs or (), strict=True):
                with torch.no_grad():
                    logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
                assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=5e-4), name
                ids = [*ids, token]
            conversations[name] = ids + tokens(rng, 6)
    assert len(conversations["crosses"]) > 32 + 12
    model.config.save_pretrained(tmp_path)
    assert (load_context(tmp_path), load_context(tmp_path, is_rescaled=False)) == (engine.context, 32)


def test_short_row_near_the_end_of_learned_positions_is_encoded_beside_a_longer_one(tiny_tokenizer: Any) -> None:
    """The padding of the shorter row would be at positions that the model does not have."""
    kind, extra, _ = ARCHITECTURES["gpt2"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SMALL, **extra)).eval()
    engine = TransformersEngine(model, tiny_tokenizer, max_batch=2)
    rng = random.Random(21)
    near_end = tokens(rng, 216)
    near_end += ids_of(answers(engine, request("a", near_end, max_tokens=8))["a"]) + tokens(rng, 10)
    prompts = {"a": near_end, "b": tokens(rng, 40)}
    done = answers(engine, *(request(name, ids, max_tokens=8) for name, ids in prompts.items()))
    assert done["a"].usage.cached_tokens > 200 and not done["b"].usage.cached_tokens
    for name, completion in done.items():
        assert_exact(model, prompts[name], completion, 5e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_are_exact_for_every_dtype_and_attention(tiny_model: Path, attention: str, dtype: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model, dtype=getattr(torch, dtype), attn_implementation=attention
    )
    engine = TransformersEngine(model, tiny_model)
    assert engine.keeps_cache
    prompt = tokens(random.Random(17), 30)
    done = answers(engine, request("a", prompt))["a"]
    assert_exact(model, prompt, done, 1e-4 if dtype == "float32" else 0.3)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # raised within peft
def test_merged_adapter_matches_peft(tiny_model: Path, tmp_path: Path) -> None:
    """A saved adapter, merged on loading, has the log-probabilities of peft's model, and changes the model."""
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'arboretum-rl[lm]'")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adapted = peft.get_peft_model(base, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    engine = TransformersEngine(tiny_model, device="cpu", adapter=tmp_path / "adapter")
    prompt = tokens(random.Random(18), 30)
    done = answers(engine, request("a", prompt))["a"]
    assert_exact(adapted, prompt, done)
    with adapted.disable_adapter(), pytest.raises(AssertionError):
        assert_exact(adapted, prompt, done)
    shared = TransformersEngine(adapted, tiny_model)  # a peft model, as a trainer passes it
    assert shared.keeps_cache
    assert ids_of(answers(shared, request("a", prompt))["a"]) == ids_of(done)
    with pytest.raises(ConfigurationError, match="the folder holds no adapter"):
        TransformersEngine(tiny_model, device="cpu", adapter=tmp_path)


def test_invalid_configuration_is_rejected(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere: there is no such folder"):
        TransformersEngine(tmp_path / "nowhere", device="cpu")
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(ConfigurationError, match=r"cannot load the model .*broken"):
        TransformersEngine(broken, device="cpu")
    with pytest.raises(ConfigurationError, match=r"cannot load the tokenizer .*nowhere"):
        TransformersEngine(tiny_model, tmp_path / "nowhere", device="cpu")
    with pytest.raises(ConfigurationError, match="unknown device 'gpu'"):
        TransformersEngine(tiny_model, device="gpu")
    with pytest.raises(ConfigurationError, match="unknown dtype 'float31'"):
        TransformersEngine(tiny_model, device="cpu", dtype="float31")
    with pytest.raises(ConfigurationError, match="max_batch must be an integer of at least 1, not 0"):
        TransformersEngine(tiny_model, device="cpu", max_batch=0)
    with pytest.raises(ConfigurationError, match="context must be an integer of at least 1, not -5"):
        TransformersEngine(tiny_model, device="cpu", context=-5)
    with pytest.raises(ConfigurationError, match="a model object needs a tokenizer"):
        TransformersEngine(transformers.AutoModelForCausalLM.from_pretrained(tiny_model))


def test_global_torch_state_is_unchanged(engine: TransformersEngine) -> None:
    state, threads, grad = torch.random.get_rng_state(), torch.get_num_threads(), torch.is_grad_enabled()
    answers(engine, request("a", tokens(random.Random(19), 10)))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, grad)
