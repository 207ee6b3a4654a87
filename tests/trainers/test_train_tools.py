"""`arboretum sft`, `train` and `eval` with function calls, on a random model whose chat template has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from arboretum.assets import asset
from arboretum.cli import main
from arboretum.envs.registry import make_env

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

DIALOGUE = "--dialogue tools --dialogue-arg max_turns=2 --dialogue-arg max_actions_per_turn=1 --device cpu"

WHOLE_CALL = re.compile(
    r'<tool_call>\n\{"name": "act", "arguments": \{"action": "(Up|Down|Left|Right)"\}\}\n</tool_call>'
)


def run_command(command: str) -> int:
    """Run a command of `arboretum`, and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert isinstance(ended.value.code, int)
    return ended.value.code


def make_model(folder: Path) -> Path:
    """Write a tiny random model with a chat template of Qwen's form of function calls.

    Its tokenizer has tokens for the constant parts of prompts and calls, so that it learns to call within seconds.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from arboretum.eval.bench.tiny import make_tiny_model

    make_tiny_model(folder)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = asset("templates/qwen2.5.jinja").read_text("utf-8")
    env = make_env("TextFrozenLake-v0")
    prompt = tokenizer.apply_chat_template(
        [{"role": "system", "content": env.instructions}],
        tools=[tool.schema() for tool in env.tools],
        tokenize=False,
    )
    _, begin, rest = str(prompt).rpartition("\n\n# Tools")
    call = '<tool_call>\n{"name": "act", "arguments": {"action": "'
    parts = [*env.instructions.split(". "), begin + rest.removesuffix("<|im_end|>\n"), call, '"}}\n</tool_call>']
    tokenizer.add_tokens([*parts, "Up", "Down", "Left", "Right"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_random_model_learns_to_call_functions_is_trained_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, warm, run, played = (tmp_path / name for name in ("tiny", "warm", "run", "eval"))
    common = f"--env TextFrozenLake-v0 {DIALOGUE}"
    expert = "--episodes 64 --epochs 3 --batch 8 --lr 8e-3 --warmup 3 --expert.noise 0.5 --expert.keep all"
    expert += " --expert.thoughts none"
    assert run_command(f"sft {common} --model {make_model(tiny)} --out {warm} {expert}") == 0
    command = (
        f"train grpo {common} --model {warm / 'model'} --out {run} --validation.every 1 --validation.tasks 2"
        " --set sampler.prompts=4 --set sampler.rollouts=4 --set sampler.reply_tokens=8"
        " --set optimization.updates=1 --set optimization.episodes_per_step=16"
    )
    assert run_command(command) == 0
    _, line = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert line["valid_turns"] > 0.2 and line["grad_norm"] > 0
    assert line["mismatch_abs_max"] < 1e-4  # the tokens that were sampled are the tokens that are trained on
    options = f"--limit 16 --temperature 1 --max-tokens 8 {DIALOGUE} --agent direct --model {run / 'model'}"
    assert run_command(f"eval TextFrozenLake-v0 {options} --out {played}") == 0
    turns = [turn for line in (played / "episodes.jsonl").read_text().splitlines() for turn in _turns(line)]
    # What a random model samples differs between processors: some calls may be broken off.
    whole = [turn for turn in turns if WHOLE_CALL.fullmatch(turn["reply"])]
    assert whole and all(turn["well_formed"] and len(turn["moves"]) == 1 for turn in whole)
    capsys.readouterr()
    assert run_command(f"eval TextFrozenLake-v0 {options} --template chatml --out {tmp_path / 'none'}") == 2
    assert "does not support function calls; pass template='qwen2.5' (--template qwen2.5)" in " ".join(
        capsys.readouterr().err.split()
    )


def _turns(line: str) -> list[dict[str, Any]]:
    return list(json.loads(line)["turns"])
