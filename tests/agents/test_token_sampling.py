"""Sampling of tokens and detection of stop texts, the parts of the transformers engine that need no model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arboretum.agents.engines.base import Sampling

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.local.sampling import BatchSampling, draw_uniforms, sample_tokens
from arboretum.agents.engines.local.stop import StopTextMatcher

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.8, 0), (1.5, 1.0, 7), (1.3, 0.6, 9)]
)
def test_sampled_tokens_follow_the_distribution(temperature: float, top_p: float, top_k: int) -> None:
    """20,000 samples match the distribution of transformers' own warpers in a chi-squared test."""
    from scipy.stats import chisquare

    logits = torch.randn(30, generator=torch.Generator().manual_seed(1)) * 2
    scores = logits[None] / temperature
    if top_k:
        scores = transformers.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
    expected = torch.softmax(scores, -1)[0]
    count = 20_000
    batch = BatchSampling([Sampling(temperature, top_p, top_k)] * count, logits.device)
    sampled = sample_tokens(logits.expand(count, -1), draw_uniforms(5, count), batch)
    seen = torch.bincount(torch.tensor(sampled.tokens), minlength=30)
    possible = expected > 0
    assert seen[~possible].sum() == 0
    assert (
        chisquare(
            seen[possible].numpy(), (expected[possible] / expected.sum() * count).double().numpy(), sum_check=False
        ).pvalue
        > 1e-3
    )
    processed = BatchSampling([Sampling(temperature, top_p, top_k)] * count, logits.device, processed=True)
    again = sample_tokens(logits.expand(count, -1), draw_uniforms(5, count), processed)
    assert again.tokens == sampled.tokens
    assert torch.allclose(torch.tensor(again.logprobs), expected.log()[again.tokens], atol=1e-5)


@pytest.mark.parametrize("other", [Sampling(1.0, 0.9), Sampling(0.7, 1.0, 3), Sampling(0.0), Sampling(0.5)])
@pytest.mark.parametrize("own", [Sampling(1.0), Sampling(0.7), Sampling(1.0, 0.5), Sampling(1.0, 1.0, 2)])
def test_token_of_a_request_does_not_depend_on_the_settings_of_others(own: Sampling, other: Sampling) -> None:
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(3))
    uniforms = draw_uniforms(1, 40)
    for processed in (False, True):
        alone = sample_tokens(logits, uniforms, BatchSampling([own] * 40, logits.device, processed=processed))
        rows = [own if number % 2 else other for number in range(40)]
        mixed = sample_tokens(logits, uniforms, BatchSampling(rows, logits.device, processed=processed))
        assert mixed.tokens[1::2] == alone.tokens[1::2]
        assert mixed.logprobs[1::2] == pytest.approx(alone.logprobs[1::2], abs=1e-6)


def test_greedy_reply_has_its_logprob_at_temperature_1_in_any_batch() -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2))[None]
    greedy, other = Sampling(top_p=0.3, top_k=3), Sampling(1.0, top_p=0.3)
    alone = sample_tokens(logits, [0.0], BatchSampling([greedy], logits.device, processed=True))
    batch = BatchSampling([greedy, other], logits.device, processed=True)
    together = sample_tokens(logits.expand(2, -1), [0.0, 0.5], batch)
    assert together.tokens[0] == alone.tokens[0] and together.logprobs[0] == pytest.approx(alone.logprobs[0])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_sampled_tokens_have_positive_probability(data: st.DataObject) -> None:
    """For any uniform number, a token of probability 0 is never sampled; unusable rows affect no other row."""
    levels = st.sampled_from([0.0, -1.0, 5.0, 80.0, float("-inf")])
    rows = data.draw(st.lists(st.lists(levels, min_size=6, max_size=6), min_size=1, max_size=4))
    spoiled = [*rows, [0.0, float("nan"), 0, 0, 0, 0], [0.0, float("inf"), 0, 0, 0, 0], [float("-inf")] * 6]
    uniform = data.draw(st.lists(st.floats(0, 1 - 2**-20, width=32), min_size=len(spoiled), max_size=len(spoiled)))
    sampling = Sampling(data.draw(st.sampled_from([0.0, 1.0, 0.5])), data.draw(st.sampled_from([1.0, 0.5])))
    sampled = sample_tokens(
        torch.tensor(spoiled), uniform, BatchSampling([sampling] * len(spoiled), torch.device("cpu"))
    )
    for row, token, logprob, usable in zip(spoiled, *sampled, strict=True):
        fine = max(row) not in (float("inf"), float("-inf")) and not any(value != value for value in row)
        assert usable == fine and 0 <= token < 6
        if fine:
            assert row[token] > float("-inf")
            assert logprob == pytest.approx(torch.log_softmax(torch.tensor(row), 0)[token].item(), abs=1e-5)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_stop_text_is_matched_at_the_token_that_completes_it(tiny_tokenizer: Any, data: st.DataObject) -> None:
    """The result equals a search of the whole text at every token, split characters and longer tokens included."""
    letters = st.sampled_from(["<", "/", ">", "answer", "</answer>", " ", "é", "日本", "a", "\n", "State", "You"])
    text = data.draw(st.lists(letters, max_size=25).map("".join))
    stops = tuple(
        data.draw(st.lists(st.lists(letters, min_size=1, max_size=3).map("".join), min_size=1, max_size=3))
    )
    ids = tiny_tokenizer.encode(text, add_special_tokens=False)
    matcher = StopTextMatcher(tiny_tokenizer, stops)
    for n in range(1, len(ids) + 1):
        so_far = tiny_tokenizer.decode(ids[:n])
        ends = [so_far.index(stop) + len(stop) for stop in stops if stop in so_far]
        assert matcher.match(ids[:n]) == (so_far[: min(ends)] if ends else None)
        if ends:
            break
