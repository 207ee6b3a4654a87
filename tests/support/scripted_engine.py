"""An engine without a model, whose replies are the results of a function."""

from __future__ import annotations

from collections.abc import Callable

from arboretum.agents.engines.base import Completion, Engine, Request, Usage


class ScriptedEngine(Engine):
    """Engine whose replies are the results of a function.

    Args:
        answer: Function from a request, and the number of requests before it in its conversation, to the reply.
    """

    name = identity = "scripted:replies"

    def __init__(self, answer: Callable[[Request, int], str]) -> None:
        self.usage = Usage()
        self._answer = answer
        self._sent: dict[str, int] = {}
        self._done: list[tuple[str, Completion]] = []

    def submit(self, request: Request) -> None:
        number = self._sent.get(request.conversation, 0)
        self._sent[request.conversation] = number + 1
        self._done.append((request.conversation, Completion(self._answer(request, number), "stop")))

    def collect(self) -> list[tuple[str, Completion]]:
        done, self._done = self._done, []
        return done
