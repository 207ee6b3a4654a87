"""Requests to the OpenAI engine and replies of the local server, which the engine's tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from arboretum.agents.engines.base import Completion, Message, Request, Sampling
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.eval.bench.endpoint import ScriptedResponse, default_completion

Make = Callable[..., OpenAIEngine]


def ask(name: str = "a", text: str = "hello", seed: int = 0, **sampling: Any) -> Request:
    return Request(name, (Message("user", text),), None, Sampling(**sampling), seed)


def answer(engine: OpenAIEngine, request: Request | None = None) -> Completion:
    engine.submit(request or ask())
    ((_, completion),) = engine.collect()
    return completion


def says(text: str, **choice: Any) -> ScriptedResponse:
    return ScriptedResponse(body=default_completion({"messages": []}, text, **choice))


def calls(*made: tuple[str, Any], content: str | None = None, **message: Any) -> ScriptedResponse:
    """Return a response with function calls.

    Each is a name and arguments, as data or as the text that the model wrote. `message` has
    further fields, such as `reasoning_content`.
    """
    body = default_completion({"messages": []}, "", finish_reason="tool_calls")
    body["choices"][0]["message"] = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call-{name}-{n}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for n, (name, arguments) in enumerate(made)
        ],
        **message,
    }
    return ScriptedResponse(body=body)
