"""Compact tokenizers of the shipped models: phrases of the environments, board cells, and bytes for other text.

The embeddings of a large vocabulary would be most of a small model's parameters, and a learned vocabulary would
merge neighboring board cells ("##_") and so hide positions. The vocabularies are therefore listed here: one token
for each frequent phrase, and one token per board cell or block. Other text is encoded byte by byte, so that
decoding returns any text up to canonical equivalence of Unicode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|agent|>"
SPECIAL = (END, USER, ASSISTANT)

_COLORS = (
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
    # dialogues
    *("<think>", "</think>", "<answer>", "</answer>", " || ", "Turn ", "Reward: ", "Actions left: ", ".\n"),
    *("Your last reply held no action that the world accepts. ", "Nothing changed."),
    *("Reason first, then act: ", "your reasoning", ", and nothing else.", "first action", "second action"),
    *("My plan from here: ", ", then ", ", and so on", "One step is left", "Reply with the action"),
    *(str(number) for number in range(10, 31)),
    # boards and directions
    *("√", "Up", "Down", "Left", "Right", "Board: ", " rows", " columns", "Start: ", "Goal: ", "Player: "),
    *("Holes: ", "; positions are (row, column), counted from 0", "Boxes: ", "Targets: ", "Walls: "),
    *("Boxes on target: ",),
    # Blocksworld
    *(f" {color}" for color in _COLORS),
    *(" block", "the", "Now ", " is clear", " is on top of ", " is on the table", "the hand is empty", " and "),
    *("you hold ", "pick up ", "put down ", "stack ", "unstack ", " on top of ", " from on top of ", ", "),
    # Bandit
    *("The arms are ", ". Which one do you choose?"),
)  # fmt: skip

_SITUATION_ENDS = (", ", " and ", ".\nGoal: ", ".\n", ".")
"""What follows a fact: the next one, or the end of the list."""

BLOCKSWORLD_PIECES: tuple[str, ...] = (
    *("Turn ", "Now ", "Goal: ", "The goal is reached."),
    *(str(number) for number in range(10, 41)),
    "Your last reply held no action that the world accepts. Reply with the action and nothing else.",
    # Facts. A block is the same token in a fact and in an action, so that it can be copied from one to the other.
    *(f"the {color} block" for color in _COLORS),
    *(
        fact + end
        for fact in (" is clear", " is on the table", "the hand is empty")
        for end in ("", *_SITUATION_ENDS)
    ),
    *(" is on top of ", "the hand is holding ", *_SITUATION_ENDS[:-1]),
    # actions
    *("pick up ", "put down ", "stack ", "unstack ", " on top of ", " from on top of "),
    # refusals
    *("You cannot ", ": ", " is not clear", " is not on the table", " is not on top of "),
    *("the hand is not empty", "the hand is not holding "),
)  # fmt: skip

_MESSAGES = (
    "{% if message.role == 'user' %}" + USER + "{{ message.content }}"
    "{% elif message.role == 'assistant' %}" + ASSISTANT + "{{ message.content }}" + END
)
_REPLY = "{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"

CHAT = "{% for message in messages %}" + _MESSAGES + "{% endif %}{% endfor %}" + _REPLY
"""Chat template. It omits system messages: they are the same in every episode of an environment, which the model
recognizes by its board."""

CHAT_WITH_LIMIT = (
    "{% for message in messages %}"
    + _MESSAGES
    + "{% elif message.role == 'system' and 'A reply may hold up to' not in message.content %}"
    + "Reply with the action"
    + "{% endif %}{% endfor %}"
    + _REPLY
)
"""Chat template of a model that was taught replies with one action and with several. Of the system message, it
keeps which of both is asked for."""


def make_tokenizer(context: int = 2048, pieces: Sequence[str] = PIECES, chat: str = CHAT) -> Qwen2Tokenizer:
    """Return a tokenizer of bytes without merges, with pieces as added tokens.

    It is a `Qwen2Tokenizer`, because `transformers` loads the tokenizer of every model of type "qwen2" with this
    class, whatever the model's folder specifies.

    Args:
        context: Context window of the model in tokens.
        pieces: Texts that are one token each; of several that match at a place, the longest is taken.
        chat: Chat template.
    """
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    alphabet = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()), len(SPECIAL))}
    tokenizer = Qwen2Tokenizer(
        vocab={special: index for index, special in enumerate(SPECIAL)} | alphabet,
        merges=[],
        unk_token=None,
        bos_token=None,
        eos_token=END,
        pad_token=END,
        chat_template=chat,
        model_max_length=context,
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL], special_tokens=True
    )
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in dict.fromkeys(pieces)])
    return tokenizer
