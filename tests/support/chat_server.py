"""Server of chat completions on loopback, streamed or not, whose replies come from a function or a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from arboretum.agents.dialogue import Dialogue
from arboretum.agents.engines.base import Message, Request, Sampling
from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.agents.tokens.chat import ChatTokens

Messages = list[dict[str, Any]]


class Answer(NamedTuple):
    """Answer of the server.

    Attributes:
        text: The reply; None for the refusal of a content filter, as status 400.
        finish: Finish reason of OpenAI's API.
        call: Name and arguments of the function that the model calls; None for no call.
    """

    text: str | None
    finish: str = "stop"
    call: tuple[str, dict[str, Any]] | None = None


class ChatServer:
    """Server in threads of this process.

    Attributes:
        url: Base URL of the API.
        conversations: Roles and texts of the messages of every request so far.
    """

    def __init__(self, reply: Callable[[Messages], Answer]) -> None:
        self.conversations: list[list[tuple[str, str]]] = []
        lock, conversations = threading.Lock(), self.conversations

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages = request["messages"]
                with lock:
                    conversations.append([(message["role"], message["content"]) for message in messages])
                    answer = reply(messages)
                if answer.text is None:
                    reason = {"message": "refused by the content filter", "code": "content_filter"}
                    self.send(400, "application/json", json.dumps({"error": reason}))
                elif request.get("stream"):
                    events = [chunk(request, delta={"role": "assistant", "content": answer.text}, finish=None)]
                    events += [chunk(request, delta={}, finish=answer.finish), "[DONE]"]
                    self.send(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in events))
                else:
                    message = {"role": "assistant", "content": answer.text, **tool_calls(answer, len(messages))}
                    self.send(200, "application/json", chunk(request, message=message, finish=answer.finish))

            def send(self, status: int, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Write nothing to stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    @contextmanager
    def running(self) -> Iterator[ChatServer]:
        """Context in which the server answers."""
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()


def tool_calls(answer: Answer, number: int) -> dict[str, Any]:
    """Return the part of a message that calls a function, with a number that no other message has."""
    if answer.call is None:
        return {}
    name, arguments = answer.call
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}]}


def chunk(request: dict[str, Any], *, finish: str | None, **content: Any) -> str:
    """Return a completion, or one event of a streamed completion."""
    kind = "chat.completion.chunk" if "delta" in content else "chat.completion"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, **content, "finish_reason": finish}
    common = {"id": "chatcmpl-1", "object": kind, "created": 0, "model": request["model"], "choices": [choice]}
    return json.dumps({**common, "usage": usage} if finish is not None else common)


def model_replies(model: str, dialogue: Dialogue, max_tokens: int) -> Callable[[Messages], Answer]:
    """Return a function whose replies a model samples greedily with the embedded engine.

    Args:
        model: Name or folder of the model.
        dialogue: Dialogue with the prefill and the stop texts of every reply.
        max_tokens: Maximum length of a reply.
    """
    engine, prefill = TransformersEngine(model, device="cpu"), dialogue.prefill
    sampling = Sampling(max_tokens=max_tokens, stop=dialogue.stop)
    tokens = ChatTokens(engine.tokenizer)
    engine.end_ids |= tokens.end_ids

    def reply(messages: Messages) -> Answer:
        given = tuple(Message(message["role"], message["content"]) for message in messages)
        prompt = tokens.opening(given, prefill)
        engine.submit(Request("chat", given, prompt, sampling, seed=0, prefill=prefill))
        ((_, completion),) = engine.collect()
        engine.release("chat")
        return Answer(prefill + completion.text, completion.finish)

    return reply
