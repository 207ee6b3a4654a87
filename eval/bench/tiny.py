"""Tiny random language model for benchmarks and tests, generated without a download.

Its text is meaningless, but its architecture and tokenizer are those of a real model.
"""

from __future__ import annotations

from pathlib import Path

from ...assets import asset

_TEXT = """You are solving the Sokoban puzzle. You are the player and you need to push all boxes to targets.
When you are right next to a box, you can push it by moving in the same direction. You cannot push a box through a
wall, and you cannot pull a box. The answer should be a sequence of actions, like Right || Right || Up. State:
#### _ P X O the possible actions are Left, Down, Right, Up. You have 5 actions left. Always output: <think> [Your
thoughts] </think> <answer> [your answer] </answer> with no extra text. Strictly follow this format. Reward: 0.1
Thought: I need to find the keys, then go to the desk. Action: go to desk 1. On the desk 1, you see a pencil 2."""
"""Training text of the tokenizer."""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_model(folder: Path, seed: int = 0, hidden: int = 128, layers: int = 2, context: int = 4096) -> Path:
    """Write a random Qwen2-architecture model with a byte-level BPE tokenizer and ChatML to `folder`.

    Args:
        folder: Folder of the model; created if absent.
        seed: Seed of the weights.
        hidden: Hidden size, a multiple of 32; 128 with two layers gives about 0.36M parameters.
        layers: Number of layers.
        context: Context window in tokens.

    Returns:
        `folder`, which can be loaded with `AutoModelForCausalLM` and `AutoTokenizer`.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    from ...agents.engines.local.load import without_progress_bar

    template = asset("templates/chatml.jinja")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXT.splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=max(hidden // 64, 1),
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.1,  # Large enough that replies do not repeat one token.
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    folder.mkdir(parents=True, exist_ok=True)
    with without_progress_bar():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
