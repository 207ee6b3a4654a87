"""A compact tokenizer: the words of the worlds, single cells of boards, and every other text byte by byte.

A large vocabulary would be most of a small model, and pieces that join cells ("##_") would hide from it where
things are. So the pieces are written down here: whole phrases where worlds speak in phrases, one piece a cell
where they draw boards. What is none of them is spelt out in bytes: any text comes back, in its composed form.
"""

from __future__ import annotations

from typing import Any

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|agent|>"
SPECIAL = (END, USER, ASSISTANT)

_COLOURS = (
    "red",
    "blue",
    "orange",
    "yellow",
    "white",
    "magenta",
    "black",
    "cyan",
    "green",
    "violet",
    "silver",
    "gold",
)

PIECES: tuple[str, ...] = (
    # what dialogues say
    *("<think>", "</think>", "<answer>", "</answer>", " || ", "Turn ", "Reward: ", "Actions left: ", ".\n"),
    *("Your last reply held no action that the world accepts. ", "Nothing changed."),
    *("Reason first, then act: ", "your reasoning", ", and nothing else.", "first action", "second action"),
    *("My plan from here: ", ", then ", ", and so on", "One step is left", "Reply with the action"),
    *(str(number) for number in range(10, 31)),
    # where things are, and where to go
    *("√", "Up", "Down", "Left", "Right", "Board: ", " rows", " columns", "Start: ", "Goal: ", "Player: "),
    *("Holes: ", "; positions are (row, column), counted from 0", "Boxes: ", "Targets: ", "Walls: "),
    *("Boxes on target: ",),
    # Blocksworld
    *(f" {colour}" for colour in _COLOURS),
    *(" block", "the", "Now ", " is clear", " is on top of ", " is on the table", "the hand is empty", " and "),
    *("you hold ", "pick up ", "put down ", "stack ", "unstack ", " on top of ", " from on top of ", ", "),
    # Bandit
    *("The arms are ", ". Which one do you choose?"),
)  # fmt: skip

CHAT = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}" + USER + "{{ message.content }}"
    "{% elif message.role == 'assistant' %}" + ASSISTANT + "{{ message.content }}" + END + "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)
"""The chat template. It leaves system messages out: what they say is the same in every episode, and a model of
this size learns it from the board."""


def make_tokenizer(context: int = 2048) -> Any:
    """The seed's tokenizer, a `Qwen2Tokenizer`: bytes without merges, and the pieces as added tokens.

    `transformers` loads every model of type "qwen2" with this class, whatever its folder says, so that the pieces
    cannot be those of another algorithm.

    Args:
        context: longest sequence of the model, in tokens.
    """
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    alphabet = {character: place for place, character in enumerate(sorted(ByteLevel.alphabet()), len(SPECIAL))}
    tokenizer = Qwen2Tokenizer(
        vocab={special: place for place, special in enumerate(SPECIAL)} | alphabet,
        merges=[],
        unk_token=None,
        bos_token=None,
        eos_token=END,
        pad_token=END,
        chat_template=CHAT,
        model_max_length=context,
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL], special_tokens=True
    )
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in dict.fromkeys(PIECES)])
    return tokenizer
