"""TRL's GRPO trainer on our environments: one step of its own loop with a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arboretum.agents.adapters.rows import ActTool
from arboretum.agents.adapters.trl import ToolEnvironment, environment_rows, rollout_rows
from arboretum.agents.adapters.trl_rollout import episode_return, rollout_func
from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode_chat import EpisodeChat
from arboretum.envs.bandit import Bandit
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env


@pytest.fixture
def trl() -> Any:
    """The package, quiet and without a progress bar."""
    return pytest.importorskip("trl", reason="needs trl: pip install arboretum-rl[trl]")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs torch")
    from arboretum.eval.bench.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden=64)


def test_tools_play_the_same_episode_as_the_conversation() -> None:
    (row,) = environment_rows("TextSokoban-v0", 1)
    env = ToolEnvironment("TextSokoban-v0")
    chat = EpisodeChat(make_env("TextSokoban-v0"), ActTool())
    messages = chat.open(row["task"], row["seed"])
    assert row["prompt"][0] == {"role": "system", "content": messages[0].content}
    assert env.reset(**row) == messages[1].content
    for action in ["Up", "Fly", "Left", "", "Down"]:
        assert env.act(action) == chat.hear(action).messages[0].content
    assert env.get_reward() == chat.score < 0
    assert env.reset(**row) == messages[1].content and env.get_reward() == 0


def test_tool_called_after_the_end_is_an_error_for_the_model() -> None:
    env = ToolEnvironment("TextSokoban-v0", max_steps=1)
    env.reset(seed=1)
    assert env.act("Up")
    with pytest.raises(RuntimeError, match="the episode has ended"):
        env.act("Trader")


def test_episode_of_a_failing_environment_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise ConnectionError("gone")

    env = ToolEnvironment("TextBandit-v0")
    env.reset(seed=1)
    monkeypatch.setattr(Bandit, "_apply", broken)
    with pytest.raises(RuntimeError, match="the environment failed: ConnectionError: gone"):
        env.act("Trader")
    assert env.get_reward() is None


def test_unknown_task_and_truncated_history_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        ToolEnvironment("TextBandit-v0").reset(task="nowhere", seed=0)
    with pytest.raises(ConfigurationError, match="set history=\"full\", not 'window'"):
        ToolEnvironment("TextBandit-v0", make_dialogue("plain", {"history": "window"}))


def spread(completion_ids: list[list[int]], **others: Any) -> list[float]:
    """Return rewards that differ; the returns of an untrained model are all the same, which teaches nothing."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def train(
    trl: Any,
    model: Path,
    folder: Path,
    rows: list[dict[str, Any]],
    length: int,
    max_tool_calling_iterations: int | None = None,
    **options: Any,
) -> Any:
    from datasets import Dataset

    config = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=length,
        max_tool_calling_iterations=max_tool_calling_iterations,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        seed=0,
    )
    trainer = trl.GRPOTrainer(str(model), args=config, train_dataset=Dataset.from_list(rows), **options)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    changed = [name for name, value in trainer.model.named_parameters() if not value.equal(before[name])]
    return trainer, changed


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_grpo_step_with_tools_shares_task_and_seed_within_groups(
    trl: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has random weights, so its tool calls are scripted; TRL parses and executes them as its own."""
    from transformers import AutoTokenizer

    starts: list[tuple[str, int, str]] = []
    played: list[Any] = []

    class Recorded(ToolEnvironment):
        def reset(self, task: str | None = None, seed: int = 0, **row: Any) -> str:
            first = super().reset(task, seed, **row)
            starts.append((str(task), seed, first))
            played.append(self._chat.episode)
            return first

    rows = environment_rows("TextSokoban-v0", 2, max_steps=6)
    script_tool_calls(monkeypatch, trl)
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The tools of a conversation are rendered and parsed by the template of a real family.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    trainer, _ = train(
        trl,
        model,
        tmp_path,
        rows,
        600,
        environment_factory=lambda: Recorded("TextSokoban-v0", max_steps=6),
        processing_class=tokenizer,
    )
    assert len(starts) == 8 and all(len(set(starts[k : k + 4])) == 1 for k in (0, 4))
    assert starts[0] != starts[4]
    assert all(episode.steps == 2 for episode in played)
    log = trainer.state.log_history[0]
    assert log["tools/call_frequency"] == 2.0 and log["tools/failure_frequency"] == 0.0
    mean = sum(episode.total_reward + episode.total_penalty for episode in played) / 8
    assert log["rewards/Recorded/mean"] == pytest.approx(mean)


def script_tool_calls(monkeypatch: pytest.MonkeyPatch, trl: Any) -> None:
    """Let every rollout call the tool twice, with actions that differ within a group, and then stop."""
    turns: Iterator[int] = iter(range(100))

    def scripted(self: Any, prompt_ids: list[list[int]], *arguments: Any, **options: Any) -> Any:
        turn = next(turns)
        texts = ["Done."] * len(prompt_ids)
        if turn < 2:
            moves = ["Up", "Down", "Left", "Right"]
            calls = [
                {"name": "act", "arguments": {"action": moves[(k + turn) % 4]}} for k in range(len(prompt_ids))
            ]
            texts = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
        ids = [[*self.processing_class.encode(text), self.processing_class.eos_token_id] for text in texts]
        return ids, None

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", scripted)


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_grpo_step_plays_the_calls_that_a_model_samples(trl: Any, tmp_path: Path) -> None:
    played: list[Any] = []

    class Recorded(ToolEnvironment):
        def reset(self, task: str | None = None, seed: int = 0, **row: Any) -> str:
            first = super().reset(task, seed, **row)
            played.append(self._chat.episode)
            return first

    trainer, changed = train(
        trl,
        teach_to_call(trl, tmp_path / "model"),
        tmp_path / "run",
        environment_rows("TextSokoban-v0", 2),
        600,
        environment_factory=lambda: Recorded("TextSokoban-v0"),
        reward_funcs=spread,
        max_tool_calling_iterations=2,
    )
    log = trainer.state.log_history[0]
    moves = [move.action for episode in played for turn in episode.turns for move in turn.moves]
    assert changed and len(played) == 8 and len(set(moves)) > 1 and set(moves) <= {"Up", "Down", "Left", "Right"}
    assert log["tools/call_frequency"] * 8 == len(moves) and log["tools/failure_frequency"] == 0.0


def teach_to_call(trl: Any, folder: Path) -> Path:
    """Write a tiny model that replies to any prompt with a call of `act`, with actions at random."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from arboretum.eval.bench.tiny import make_tiny_model

    make_tiny_model(folder, hidden=64)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    # The tools of a conversation are rendered and parsed by the template of a real family.
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    begin, end = '<tool_call>\n{"name": "act", "arguments": {"action": "', '"}}\n</tool_call>'
    tokenizer.add_tokens([begin, end, "Up", "Down", "Left", "Right"])
    calls = [
        f"<|im_start|>assistant\n{begin}{action}{end}<|im_end|>" for action in ("Up", "Down", "Left", "Right")
    ]
    ids = torch.tensor([tokenizer.encode(call) for call in calls] * 4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.resize_token_embeddings(len(tokenizer))
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(60):
            prompts = torch.randint(len(tokenizer), (len(ids), 128))
            labels = torch.cat([torch.full_like(prompts, -100), ids], 1)
            optimizer.zero_grad()
            model(input_ids=torch.cat([prompts, ids], 1), labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")
def test_grpo_step_with_our_rollouts_changes_the_weights(trl: Any, model: Path, tmp_path: Path) -> None:
    dialogue = make_dialogue("no_think", {"max_turns": 2})
    rows = rollout_rows("TextSokoban-v0", 2, dialogue)
    func, outputs = rollout_func("TextSokoban-v0", dialogue), []

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        outputs.append(func(prompts, trainer))
        return outputs[-1]

    rewards = [episode_return, spread]
    trainer, changed = train(trl, model, tmp_path, rows, 24, rollout_func=recorded, reward_funcs=rewards)
    (output,) = outputs
    assert changed and len(output["completion_ids"]) == 8
    # Members of a group share the opening, and differ in what was sampled.
    assert all(output["prompt_ids"][0] == ids for ids in output["prompt_ids"][:4])
    assert output["prompt_ids"][0] != output["prompt_ids"][4]
    assert len({tuple(ids) for ids in output["completion_ids"][:4]}) > 1
    for ids, mask, logprobs in zip(output["completion_ids"], output["env_mask"], output["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs) and mask[0] == 1 and 0 in mask
    scores = output["score"]
    assert trainer.state.log_history[0]["rewards/episode_return/mean"] == pytest.approx(sum(scores) / len(scores))


@pytest.fixture
def completions(model: Path) -> Callable[..., set[tuple[int, ...]]]:
    """Return a function that rolls out a group of four in a process of TRL, and returns its different replies."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dialogue = make_dialogue("no_think", {"max_turns": 1})
    (row,) = rollout_rows("TextSokoban-v0", 1, dialogue)
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0, "seed": 42}
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)

    def roll_out(process: int = 0, **changed: Any) -> set[tuple[int, ...]]:
        func = rollout_func("TextSokoban-v0", dialogue)  # as another process would make it
        args = SimpleNamespace(**{**settings, "generation_kwargs": None, "max_completion_length": 8, **changed})
        accelerator = SimpleNamespace(unwrap_model=lambda given: given, process_index=process)
        trainer = SimpleNamespace(args=args, model=loaded, accelerator=accelerator, processing_class=tokenizer)
        return {tuple(ids) for ids in func([row["prompt"]] * 4, trainer)["completion_ids"]}

    return roll_out


def test_rollouts_follow_the_sampling_settings_of_the_trainer(completions: Callable[..., Any]) -> None:
    assert len(completions()) > 1 and len(completions(top_k=1)) == len(completions(top_p=1e-6)) == 1
    with pytest.raises(ConfigurationError, match="these rollouts have no min_p; leave it at None in GRPOConfig"):
        completions(min_p=0.1)


def test_processes_and_seeds_sample_different_members_of_a_group(completions: Callable[..., Any]) -> None:
    first = completions(process=0)
    assert len(first) == 4 and completions(process=0) == first
    assert not first & completions(process=1)
    assert not first & completions(seed=43)
