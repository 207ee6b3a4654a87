"""The actions of Blocksworld as functions."""

from __future__ import annotations

from collections.abc import Sequence

from ..tools import Parameter, Tool


def plan_tool() -> Tool:
    """Return the function of plan mode, which takes the whole plan."""
    plan = Parameter("plan", "The plan as the instructions describe it, one action a line.")
    return Tool("submit_plan", "Submit the whole plan.", "{plan}", (plan,))


def move_tools(notation: str, blocks: Sequence[str]) -> tuple[Tool, ...]:
    """Return the functions of the four actions.

    Args:
        notation: "english" or "pddl".
        blocks: Names of the blocks in this notation; empty if no task is open.
    """
    names = tuple(blocks)
    block = Parameter("block", "Name of the block to move.", names)
    target = Parameter("target", "Name of the block on which it is put.", names)
    source = Parameter("source", "Name of the block on which it is.", names)
    if notation == "pddl":
        forms = (
            "(pick-up {block})",
            "(put-down {block})",
            "(stack {block} {target})",
            "(unstack {block} {source})",
        )
    else:
        forms = (
            "pick up the {block} block",
            "put down the {block} block",
            "stack the {block} block on top of the {target} block",
            "unstack the {block} block from on top of the {source} block",
        )
    return (
        Tool("pick_up", "Pick up a clear block from the table with an empty hand.", forms[0], (block,)),
        Tool("put_down", "Put the held block down on the table.", forms[1], (block,)),
        Tool("stack", "Put the held block on a clear block.", forms[2], (block, target)),
        Tool("unstack", "Take a clear block off another with an empty hand.", forms[3], (block, source)),
    )
