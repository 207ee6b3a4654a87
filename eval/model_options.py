"""Options of the command line for the model of the language agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import UseAppendAction, arg

from ..agents.dialogue.registry import DIALOGUES
from ..agents.engines.registry import ENGINES


@dataclass(frozen=True)
class ModelOptions:
    """Model of the language agents.

    Attributes:
        engine: Engine.
        model: Folder of the model, or PROVIDER/NAME with an engine as provider, such as openai/gpt-4.1-mini or
            vllm/Qwen/Qwen2.5-3B-Instruct.
        base_url: Address of an OpenAI-compatible server. None uses the engine's default.
        template: Name of a shipped chat template, such as qwen3, or a .jinja file. None uses the tokenizer's own.
        dialogue: Dialogue.
        dialogue_arg: Setting of the dialogue, as key=value, such as max_turns=5, over the suite's. Repeat the
            option for more.
        examples: Solved examples in the prompt. None uses the agent's default: 3 for react and reflexion, else 0.
        agent_arg: Setting of the agents that have it, as key=value, such as n=4 of best_of_n or simulations=32 of
            mcts. Repeat the option for more.
        temperature: Sampling temperature; 0 is greedy. None uses the suite's, or 1 for best_of_n and mcts.
        max_tokens: Maximum length of a reply in tokens. None uses the suite's.
        engine_arg: Argument of the engine, as key=value, such as cost_limit=5. Repeat the option for more.
        device: Device of a model in this process (engine transformers): cuda, cuda:1, mps or cpu. None uses the
            best available one.
    """

    engine: Annotated[
        str | None,
        arg(help=f"Engine that runs the model: {', '.join(ENGINES)}, or a plug-in's. None takes it from --model."),
    ] = None
    model: str | None = None
    base_url: str | None = None
    template: str | None = None
    dialogue: Annotated[
        str | None,
        arg(
            help=f"Dialogue between environment and model: {', '.join(DIALOGUES)}, or a plug-in's. None uses the"
            " agent's own."
        ),
    ] = None
    dialogue_arg: UseAppendAction[tuple[str, ...]] = ()
    examples: int | None = None
    agent_arg: UseAppendAction[tuple[str, ...]] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    engine_arg: UseAppendAction[tuple[str, ...]] = ()
    device: str | None = None


DEFAULT_MODEL = ModelOptions()
"""No model, and the defaults of everything else."""
