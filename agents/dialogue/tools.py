"""Native function calling: every action is a call of one of the environment's functions."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ...envs.core import TextEnv
from ...envs.tools import ANY_ACTION, Tool, find_call
from ..engines.base import Message
from ..episode import Turn
from ..tool_calls import BEGIN_CALL, END_CALL, ToolCall, ToolReply, read_reply, write_call, write_reply
from .base import Dialogue, Parsed, strip_span
from .think import SEPARATOR, split_actions


@dataclass(frozen=True, kw_only=True)
class Tools(Dialogue):
    """Calls of functions, whose schemas come from the environment; observations answer the calls.

    A server receives the schemas in `tools` and replies with `tool_calls`; the chat template of a local model
    writes them into the prompt, and the calls are those in the sampled text. The thought is the model's reasoning,
    or else the text around the calls.

    Calls beyond `max_actions_per_turn` are not executed. A reply without a call, a call that is not JSON, an
    unknown function and wrong arguments are malformed: the model is answered with the reason in one sentence, and
    the other calls of the reply are executed.
    """

    name: ClassVar[str] = "tools"
    has_thoughts: ClassVar[bool] = True
    action_prefix: ClassVar[str] = f"{BEGIN_CALL}\n"
    action_stop: ClassVar[tuple[str, ...]] = (END_CALL,)

    _tools: ClassVar[tuple[Tool, ...]] = (ANY_ACTION,)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Functions of the environment; before `bind`, one that takes any action."""
        return self._tools

    def bind(self, env: TextEnv[Any]) -> Self:
        if self.tools == env.tools:
            return self
        bound = copy(self)
        vars(bound)["_tools"] = env.tools  # beside the fields, which are the settings
        return bound

    # ------------------------------------------------------------------ replies

    def format_rules(self) -> str:
        return "Act by calling the functions that you are given; a reply without a call does nothing."

    def parse(self, reply: str) -> Parsed:
        parts = read_reply(reply)
        actions = [self._action(call) for call in parts.calls]
        valid = tuple(action for action in actions if isinstance(action, str))
        thought = parts.content or None if parts.thought is None else parts.thought
        return Parsed(valid, thought, bool(actions) and len(valid) == len(actions))

    def demonstrate(self, thought: str, action: str) -> str:
        return write_reply(thought if thought.strip() else None, "", self._calls(action))

    def write_action(self, action: str) -> str:
        return "\n".join(map(write_call, self._calls(action))).removeprefix(self.action_prefix)

    def read_action(self, text: str) -> str:
        return f" {SEPARATOR} ".join(self.parse(self.action_prefix + text).actions) or text.strip()

    def thought_span(self, reply: str) -> tuple[int, int] | None:
        if not self.parse(reply).well_formed:
            return None
        return strip_span(reply, *read_reply(reply).thought_span)

    def _action(self, call: ToolCall) -> str | ValueError:
        """Return the action of a call, or the reason why it is none."""
        if call.name is None:
            return ValueError("it is not a JSON object with a name and arguments")
        tool = next((tool for tool in self.tools if tool.name == call.name), None)
        if tool is None:
            known = ", ".join(tool.name for tool in self.tools)
            return ValueError(f"there is no function {call.name[:40]!r}; the functions are {known}")
        if isinstance(call.arguments, str):
            return ValueError(f"the arguments of {call.name} are not a JSON object")
        try:
            return tool.action(call.arguments)
        except ValueError as error:
            return error

    def _calls(self, action: str) -> list[ToolCall]:
        """Return the calls of the actions of one reply."""
        calls = []
        for one in split_actions(action) if self.max_actions_per_turn > 1 else (action,):
            tool, arguments = find_call(self.tools, one) or (ANY_ACTION, {"action": one})
            calls.append(ToolCall(tool.name, arguments))
        return calls

    # ------------------------------------------------------------------ prompts

    def user(self, observation: str, turns: list[Turn]) -> str:
        answers = self._answers(read_reply(turns[-1].reply), turns[-1]) if turns else []
        return "\n".join([*filter(None, answers), self._state(observation, turns)])

    def messages(self, observation: str, turns: list[Turn]) -> list[Message]:
        """Return an answer to every call of the last reply, the last of which has the observation.

        A reply without a call is answered by a user message, as the beginning of an episode is.
        """
        reply = read_reply(turns[-1].reply) if turns else None
        if reply is None or not reply.calls:
            return [Message("user", self.user(observation, turns))]
        *answers, last = self._answers(reply, turns[-1])
        state = "\n".join([*filter(None, [last]), self._state(observation, turns)])
        return [*(Message("tool", answer or "Done.") for answer in answers), Message("tool", state)]

    def _state(self, observation: str, turns: list[Turn]) -> str:
        """Return the observation, with the reward and the remaining actions where the settings ask for them."""
        lines = [observation]
        if turns and self.show_reward:
            lines.insert(0, f"Reward: {sum(move.reward for move in turns[-1].moves):g}")
        left = self.actions_left(turns)
        if left is not None:
            lines.append(f"Actions left: {left}.")
        return "\n".join(lines)

    def _answers(self, reply: ToolReply, turn: Turn) -> list[str]:
        """Return what to say of each call of an executed reply; nothing of one that succeeded.

        One sentence if there is no call. The observation has the environment's refusal of the last action.
        """
        if not reply.calls:
            return [] if turn.well_formed else ["Your reply called no function."]
        answers = []
        executed = 0
        for call in reply.calls:
            action = self._action(call)
            if isinstance(action, ValueError):
                answers.append(f"This call was not executed: {action}.")
            elif executed >= len(turn.moves):
                answers.append("This call was not executed: the reply has more calls than are allowed.")
            else:
                refused = not turn.moves[executed].valid and executed < len(turn.moves) - 1
                answers.append("The environment refused this action." if refused else "")
                executed += 1
        return answers
