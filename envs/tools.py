"""Actions as functions: their schemas for function calling, and the mapping between calls and action strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

_FIELD = re.compile(r"\{(\w+)\}")


class Parameter(NamedTuple):
    """Parameter of a function; its value is a string.

    Attributes:
        name: Name, of letters, digits and underscores.
        description: Description for the caller.
        choices: All values in the open task; empty where they cannot be listed.
    """

    name: str
    description: str
    choices: tuple[str, ...] = ()


class Tool(NamedTuple):
    """Function whose calls are actions of an environment.

    Attributes:
        name: Name, of letters, digits and underscores.
        description: Description for the caller.
        form: The action of a call, with every parameter in braces, such as "search[{keywords}]".
        parameters: Parameters, all of which are required.
    """

    name: str
    description: str
    form: str
    parameters: tuple[Parameter, ...] = ()

    def schema(self) -> dict[str, Any]:
        """Return the function in the form of OpenAI's `tools`, with a JSON schema of its parameters."""
        properties: dict[str, Any] = {}
        for parameter in self.parameters:
            properties[parameter.name] = {"type": "string", "description": parameter.description}
            if parameter.choices:
                properties[parameter.name]["enum"] = list(parameter.choices)
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def action(self, arguments: Mapping[str, Any]) -> str:
        """Return the action of a call.

        Values beyond the listed choices are passed on: the environment refuses an action better than a schema.

        Raises:
            ValueError: An argument is missing, unknown or not a string; the message is one sentence.
        """
        names = [parameter.name for parameter in self.parameters]
        for name in names:
            if name not in arguments:
                raise ValueError(f"{self.name} needs the argument {name!r}")
            if not isinstance(arguments[name], str):
                raise ValueError(f"the argument {name!r} of {self.name} must be a string")
        for name in arguments:
            if name not in names:
                known = f"its arguments are {', '.join(names)}" if names else "it takes none"
                raise ValueError(f"{self.name} has no argument {name[:40]!r}; {known}")
        action = _FIELD.sub(lambda field: str(arguments[field[1]]), self.form)
        if not action.strip():
            raise ValueError(f"the argument {names[0]!r} of {self.name} is empty")
        return action

    def arguments(self, action: str) -> dict[str, str] | None:
        """Return the arguments of the call that is an action; None if no call of this function is."""
        first, *pieces = _FIELD.split(self.form)
        if not action.startswith(first):
            return None
        found: dict[str, str] = {}
        start = len(first)
        for name, literal in zip(pieces[::2], pieces[1::2], strict=True):
            is_last = len(found) == len(pieces) // 2 - 1
            end = len(action) - len(literal) if is_last else action.find(literal, start)
            if end < start:
                return None
            found[name] = action[start:end]
            start = end + len(literal)
        return found if _FIELD.sub(lambda field: found[field[1]], self.form) == action else None


ANY_ACTION = Tool(
    "act",
    "Take one action.",
    "{action}",
    (Parameter("action", "The action, exactly as the instructions describe it."),),
)
"""Function of any environment: the action as text."""


def choose_action(description: str, choices: Iterable[str]) -> Tool:
    """Return the function `act`, whose only argument is one of the listed actions."""
    return Tool("act", description, "{action}", (Parameter("action", "The action.", tuple(choices)),))


def find_call(tools: Iterable[Tool], action: str) -> tuple[Tool, dict[str, str]] | None:
    """Return the first function that has a call for an action, and the call's arguments; None if none has."""
    for tool in tools:
        arguments = tool.arguments(action)
        if arguments is not None:
            return tool, arguments
    return None


class ToolRules:
    """Base of environments whose actions can be called as functions."""

    _constant_actions: ClassVar[tuple[str, ...]]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Functions whose calls are the actions, constant within an episode.

        Before the first reset, and in other tasks, only the listed choices may differ. By default the function is
        `act`, with the actions listed where they are the same in every state.
        """
        if self._constant_actions:
            return (choose_action("Take one action.", self._constant_actions),)
        return (ANY_ACTION,)
