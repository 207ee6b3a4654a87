"""Program for the environment of verl: a batch of episodes of its agent loops, and one update on it, with a model.

    python verl_step.py MODEL LOOPS ROWS OUT

verl's manager, worker, client, load balancer, advantages and loss are its own. Two parts need a GPU there, and are
replaced: the inference server, by `generate` of transformers, and the optimizer's process, by AdamW in this one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from hydra import compose, initialize_config_module
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from verl.experimental.agent_loop import AgentLoopManager
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_policy_loss_vanilla
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

PROMPT, RESPONSE, REPLY = 256, 256, 24
"""Lengths in tokens: of a prompt, of all that follows it, and of one reply."""


class Server:
    """Inference server with the interface of verl's.

    Args:
        folder: Folder of the model.
        opening: Beginning of every reply, which the shipped model expects.
    """

    def __init__(self, folder: str, opening: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.opening = AutoTokenizer.from_pretrained(folder)(opening, add_special_tokens=False)["input_ids"]
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **others: Any
    ) -> TokenOutput:
        config = GenerationConfig(
            do_sample=True,
            temperature=sampling_params["temperature"],
            top_k=max(sampling_params["top_k"], 0),
            top_p=sampling_params["top_p"],
            max_new_tokens=REPLY,
            eos_token_id=self.model.config.eos_token_id,
            pad_token_id=self.model.config.pad_token_id,
        )
        prompt = torch.tensor([[*prompt_ids, *self.opening]])
        sequence = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        logits = self.model(sequence).logits[:, len(prompt_ids) - 1 : -1]
        ids = sequence[0, len(prompt_ids) :]
        values = logprobs_from_logits(logits, ids[None])[0]
        return TokenOutput(token_ids=ids.tolist(), log_probs=values.tolist(), stop_reason="completed")


def main(folder: str, loops: str, rows: list[dict[str, Any]], out: Path) -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={folder}",
                "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
                # verl joins the turns of a Qwen model with the tokens of ChatML, which the shipped one lacks.
                "+actor_rollout_ref.model.override_config.model_type=default",
                "actor_rollout_ref.rollout.name=vllm",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
                "actor_rollout_ref.rollout.agent.num_workers=1",
                f"data.max_prompt_length={PROMPT}",
                f"data.max_response_length={RESPONSE}",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            ],
        )
    # "local", because a cluster of another test on this machine would be joined.
    ray.init("local", num_cpus=3, include_dashboard=False)
    server = ray.remote(Server).remote(folder, "<answer>")
    balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers={"cpu": server})
    manager = AgentLoopManager.create(config, LLMServerClient(config, balancer))
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name in rows[0]}
    batch = manager.generate_sequences(DataProto.from_single_dict(columns))
    tensors = batch.batch
    mask = tensors["response_mask"]

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = {name: tensors[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**inputs).logits[:, -RESPONSE - 1 : -1]
    logprobs = logprobs_from_logits(logits, tensors["responses"])
    advantages, _ = compute_grpo_outcome_advantage(
        tensors["rm_scores"], mask, np.array([row["uid"] for row in rows], dtype=object)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = compute_policy_loss_vanilla(tensors["rollout_log_probs"], logprobs, advantages, mask, config=actor)
    loss.backward()
    optimizer.step()
    after = logprobs_from_logits(model(**inputs).logits[:, -RESPONSE - 1 : -1], tensors["responses"])

    real = inputs["attention_mask"].bool()
    prompts = [ids[own].tolist() for ids, own in zip(tensors["prompts"], real[:, :-RESPONSE], strict=True)]
    responses = [ids[own].tolist() for ids, own in zip(tensors["responses"], real[:, -RESPONSE:], strict=True)]
    result = {
        "prompts": prompts,
        "responses": responses,
        "mask": [own[: len(ids)].tolist() for ids, own in zip(responses, mask, strict=True)],
        "masked": int(mask.sum()),
        "scores": tensors["rm_scores"].sum(1).tolist(),
        "turns": batch.non_tensor_batch["__num_turns__"].tolist(),
        "difference": float(((logprobs.detach() - tensors["rollout_log_probs"]) * mask).abs().max()),
        "advantages": advantages[:, 0].tolist(),
        "gain": float((advantages * (after - logprobs).detach() * mask).sum()),
    }
    out.write_text(json.dumps(result), encoding="utf-8")
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
