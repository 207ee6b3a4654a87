"""Function calls as text: the form in which models of the Qwen and Hermes families write them.

A reply is an optional thought `<think>…</think>`, free text, and any number of calls
`<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Local models sample this text. A server's structured reply
is written in it, so that a recorded reply is one text whatever the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

BEGIN_CALL, END_CALL = "<tool_call>", "</tool_call>"
BEGIN_THOUGHT, END_THOUGHT = "<think>", "</think>"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class ToolCall(NamedTuple):
    """Call of a function.

    Attributes:
        name: Name of the function; None if the text of the call has none.
        arguments: Arguments by name; where they are not a JSON object, their text.
        id: Identifier that a server gave the call; None if there is none.
    """

    name: str | None
    arguments: Mapping[str, Any] | str
    id: str | None = None


class ToolReply(NamedTuple):
    """Parts of a reply.

    Attributes:
        thought: Text of the thought; None if there is none.
        content: Text outside thought and calls, stripped.
        calls: The calls, in order.
        thought_span: Start and end of the thought, or of the text before the first call, in the reply.
    """

    thought: str | None
    content: str
    calls: tuple[ToolCall, ...]
    thought_span: tuple[int, int]


def write_call(call: ToolCall) -> str:
    """Return a call as text."""
    data: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
    if call.id is not None:
        data["id"] = call.id
    # The end of a call within one of its strings would end it early.
    text = json.dumps(data, ensure_ascii=False).replace(END_CALL, "\\u003c" + END_CALL[1:])
    return f"{BEGIN_CALL}\n{text}\n{END_CALL}"


def write_reply(thought: str | None, content: str, calls: Iterable[ToolCall]) -> str:
    """Return a reply as text, of which `read_reply` returns the same parts."""
    written = [write_call(call) for call in calls]
    if thought is not None:
        thought = f"{BEGIN_THOUGHT}\n{_defuse(thought, END_THOUGHT).strip()}\n{END_THOUGHT}\n\n"
    if written:  # Text that only quotes a call must not be read as one, nor hide those that follow.
        content = _defuse(content, BEGIN_CALL)
        if END_THOUGHT not in content:
            content = _defuse(content, BEGIN_THOUGHT)
    return (thought or "") + "\n".join([*([content] if content else []), *written])


def read_reply(text: str) -> ToolReply:
    """Return the parts of a reply. Accepts any text; a call that does not end is one that is not JSON.

    A thought begins at the start of the reply, or before it in the prompt, and may be unfinished.
    """
    start, body = _split_thought(text)
    first = text.find(BEGIN_CALL, body)
    before = len(text) if first < 0 else first
    if body:
        end = text.rfind(END_THOUGHT, 0, body)
        span = start, (body if end < start else end)
        thought = text[slice(*span)].strip()
    else:
        thought, span = None, (0, before)
    calls = []
    rest = [text[body:before]]
    while first >= 0:
        end = text.find(END_CALL, first)
        calls.append(_read_call(text[first + len(BEGIN_CALL) : end if end >= 0 else None]))
        following = len(text) if end < 0 else end + len(END_CALL)
        first = text.find(BEGIN_CALL, following)
        rest.append(text[following : first if first >= 0 else None])
    content = "\n".join(filter(None, map(str.strip, rest)))
    return ToolReply(thought, content, tuple(calls), span)


def _split_thought(text: str) -> tuple[int, int]:
    """Return the start of the thought and the start of what follows it; two zeros without a thought."""
    begin = len(text) - len(text.lstrip())
    end = text.find(END_THOUGHT)
    if text.startswith(BEGIN_THOUGHT, begin):
        return begin + len(BEGIN_THOUGHT), len(text) if end < 0 else end + len(END_THOUGHT)
    call = text.find(BEGIN_CALL)
    return (0, end + len(END_THOUGHT)) if end >= 0 and (call < 0 or end < call) else (0, 0)


def _read_call(text: str) -> ToolCall:
    data = _json(text)
    if not isinstance(data, dict):
        return ToolCall(None, text.strip())
    name, arguments, call_id = data.get("name"), data.get("arguments", {}), data.get("id")
    return ToolCall(
        name if isinstance(name, str) else None,
        read_arguments(arguments),
        call_id if isinstance(call_id, str) else None,
    )


def read_arguments(value: Any) -> Mapping[str, Any] | str:
    """Return arguments as a mapping, whether they are one or its JSON text; another value as text."""
    if isinstance(value, str):
        data = _json(value)
        return data if isinstance(data, dict) else value
    return value if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)


def _json(text: str) -> Any:
    """Return the data of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _defuse(text: str, mark: str) -> str:
    """Return a text in which a mark is not read as one."""
    return text.replace(mark, f"{mark[0]} {mark[1:]}")


# ---------------------------------------------------------------------- messages of OpenAI's API


def as_chat_messages(messages: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return messages in the form of OpenAI's API: calls as `tool_calls`, answers with the identifiers of calls.

    Args:
        messages: Pairs of role and text, in which the answers to the calls of a reply follow it in order.
    """
    sent: list[dict[str, Any]] = []
    waiting: Iterator[str] = iter(())
    number = 0
    for role, text in messages:
        if role == "tool":
            sent.append({"role": role, "tool_call_id": next(waiting), "content": text})
            continue
        reply = read_reply(text) if role == "assistant" else None
        if reply is None or not (reply.calls or reply.thought):
            sent.append({"role": role, "content": text})
            continue
        message: dict[str, Any] = {"role": role, "content": reply.content or None}
        if reply.thought:
            message["reasoning_content"] = reply.thought
        ids = []
        for call in reply.calls:
            ids.append(call.id or f"call_{number}")
            number += 1
        if ids:
            calls = zip(ids, reply.calls, strict=True)
            message["tool_calls"] = [_sent_call(call_id, call) for call_id, call in calls]
        else:
            message["content"] = reply.content
        waiting = iter(ids)
        sent.append(message)
    return sent


def _sent_call(call_id: str, call: ToolCall) -> dict[str, Any]:
    # Servers reject conversations with other names, or with arguments that are not a JSON object.
    arguments = {"invalid_json": call.arguments} if isinstance(call.arguments, str) else call.arguments
    name = _NOT_IN_NAMES.sub("_", call.name or "unknown")[:64]
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": call_id, "type": "function", "function": function}


def read_chat_message(message: Mapping[str, Any]) -> str:
    """Return the reply in a message of a chat completion as text.

    Its thought is `reasoning_content`, or `reasoning` of newer vLLM servers and of OpenRouter.

    Raises:
        TypeError, AttributeError: The message is malformed.
    """
    content = message.get("content")
    if content is None:
        content = message.get("refusal") or ""
    thought = message.get("reasoning_content") or message.get("reasoning") or None
    for text in (content, thought or ""):
        if not isinstance(text, str):
            raise TypeError(f"the message has a text of type {type(text).__name__}")
    calls = []
    for call in message.get("tool_calls") or ():
        function, call_id = call["function"], call.get("id")
        name = function.get("name")
        calls.append(
            ToolCall(
                name if isinstance(name, str) else None,
                read_arguments(function.get("arguments") or {}),
                call_id if isinstance(call_id, str) else None,
            )
        )
    if thought is None and not calls:
        return content
    return write_reply(thought, content, calls)
