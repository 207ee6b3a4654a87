"""Program for the environment of SkyRL: one step of its trainer on groups of episodes, with a model.

    python skyrl_step.py MODEL ROWS OUT

The dataset, generator, trainer, advantages and loss are SkyRL's own. Two parts need a GPU there, and are replaced:
the inference engine, by `generate` of transformers, and the workers of the policy, by AdamW in this process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from pathlib import Path
from typing import Any
from zlib import crc32

import typing_extensions

# SkyRL requires Python 3.12. Before it, pydantic rejects a model whose fields are of the class typing.TypedDict.
typing.TypedDict = typing_extensions.TypedDict

import skyrl_gym
import torch
from skyrl.backends.skyrl_train.distributed.dispatch import WorkerOutput
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.backends.skyrl_train.utils.torch_utils import logprobs_from_logits
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.generators import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.callbacks import TrainingCallback
from skyrl.train.utils.tracking import Tracking
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

GROUPS, MEMBERS = 4, 8


class Engine:
    """Inference engine with the part of SkyRL's interface that its generator calls.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        opening: Beginning of every reply, which the shipped model expects.
    """

    def __init__(self, model: Any, tokenizer: Any, opening: str) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.opening = tokenizer(opening, add_special_tokens=False)["input_ids"]

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        (prompt_ids,), sampling = input_batch["prompt_token_ids"], input_batch["sampling_params"]
        config = GenerationConfig(
            do_sample=True,
            temperature=sampling["temperature"],
            top_k=max(sampling["top_k"], 0),
            top_p=sampling["top_p"],
            max_new_tokens=sampling["max_tokens"],
            stop_strings=sampling["stop"],
            eos_token_id=self.model.config.eos_token_id,
            pad_token_id=self.model.config.pad_token_id,
        )
        # The order of requests depends on SkyRL's threads, so each has a seed of its own.
        torch.manual_seed(crc32(f"{input_batch['session_ids']} {len(prompt_ids)}".encode()))
        prompt = torch.tensor([[*prompt_ids, *self.opening]])
        mask = torch.ones_like(prompt)
        with torch.inference_mode():
            sequence = self.model.generate(
                prompt, attention_mask=mask, generation_config=config, tokenizer=self.tokenizer
            )
            ids = sequence[0, len(prompt_ids) :]
            values = logprobs_from_logits(self.model(sequence).logits[:, len(prompt_ids) - 1 : -1], ids[None])[0]
        return {
            "responses": [self.tokenizer.decode(ids, skip_special_tokens=True)],
            "response_ids": [ids.tolist()],
            "response_logprobs": [values.tolist()],
            "stop_reasons": ["stop"],
        }

    async def finish_session(self, session_id: str) -> None:
        """Do nothing: the engine holds nothing between two replies."""


class Workers:
    """Workers of the policy with the part of the interface of SkyRL's dispatch that its trainer calls.

    Args:
        model: The model, which the engine samples from.
        config: Settings of the algorithm.
    """

    def __init__(self, model: Any, config: Any) -> None:
        self.model, self.config = model, config
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        self.loss = PolicyLossRegistry.get(config.policy_loss_type)

    def logprobs(self, batch: TrainingInputBatch) -> torch.Tensor:
        """Return log-probabilities of the responses, which stand at the end of the sequences."""
        ids, mask, length = batch["sequences"], batch["attention_mask"], batch.metadata["response_length"]
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
        return logprobs_from_logits(logits[:, -length - 1 : -1], ids[:, -length:])

    def stage_data(self, role: str, batch: TrainingInputBatch, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [[batch[start:end]] for start, end in boundaries]

    def forward_from_staged(self, role: str, chunks: list[TrainingInputBatch]) -> WorkerOutput:
        (batch,) = chunks
        return WorkerOutput(loss_fn_outputs=[{"logprobs": row.tolist()} for row in self.logprobs(batch)])

    def forward_backward_from_staged(self, role: str, chunks: list[TrainingInputBatch]) -> WorkerOutput:
        (batch,) = chunks
        values, mask = self.logprobs(batch), batch["loss_mask"]
        old, advantages, sampled = (batch[name] for name in ("action_log_probs", "advantages", "rollout_logprobs"))
        loss, metrics = self.loss(values, old, advantages, self.config, loss_mask=mask, rollout_logprobs=sampled)
        loss.backward()
        return WorkerOutput(metrics={"policy_loss": loss.item(), **metrics})

    def optim_step(self, role: str) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(norm)

    def get_lcm_dp_size(self) -> int:
        return 1

    def get_timing_metrics(self) -> dict[str, float]:
        return {}

    def init_weight_sync_state(self, engine: Any) -> None:
        """Do nothing: the engine samples from the model that is trained."""

    async def save_weights_for_sampler(self) -> None:
        """Do nothing, for the same reason."""

    def empty_cache(self) -> None:
        """Do nothing: there is no memory of a GPU."""

    def finalize_pending_saves(self, role: str) -> None:
        """Do nothing: no weights are saved."""


class Recorder(TrainingCallback):  # type: ignore[misc]
    """Callback that keeps the tensors of the last step."""

    batch: TrainingInputBatch

    def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self.batch = callback_input.batch


class Generator(SkyRLGymGenerator):  # type: ignore[misc]
    """SkyRL's generator, which keeps its last input and output."""

    async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
        output = await super().generate(input_batch, disable_tqdm)
        self.last = input_batch, dict(output)
        return output


def main(folder: str, rows: Path, out: Path) -> None:
    torch.set_num_threads(1)
    config = SkyRLTrainConfig.from_cli_overrides(
        {
            "data.dataloader.num_workers": 0,
            "trainer.train_batch_size": GROUPS,
            "trainer.policy_mini_batch_size": GROUPS,
            "trainer.epochs": 1,
            "trainer.eval_interval": -1,
            "trainer.ckpt_interval": -1,
            "trainer.hf_save_interval": -1,
            "trainer.resume_mode": "none",
            "trainer.placement.colocate_all": False,
            "trainer.algorithm.use_kl_loss": False,
            "trainer.policy.model.path": folder,
            "trainer.max_prompt_length": 512,
            "generator.n_samples_per_prompt": MEMBERS,
            "generator.inference_engine.enable_ray_prometheus_stats": False,
            "generator.sampling_params.max_generate_length": 24,
            "generator.sampling_params.stop": ["</answer>"],
        }
    )
    skyrl_gym.register("arboretum", entry_point="arboretum.agents.adapters.skyrl:SkyRLEnv")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine, recorder = Engine(model, tokenizer, "<answer>"), Recorder()
    generator = Generator(config.generator, config.environment.skyrl_gym, engine, tokenizer)
    trainer = RayPPOTrainer(
        config,
        tracker=Tracking("arboretum", "step", "console"),
        tokenizer=tokenizer,
        train_dataset=PromptDataset([str(rows)], tokenizer, config.trainer.max_prompt_length, num_workers=1),
        inference_engine_client=engine,
        generator=generator,
        callbacks=[recorder],
    )
    trainer.dispatch = workers = Workers(model, config.trainer.algorithm)
    asyncio.run(trainer.train())

    (batch, output), tensors = generator.last, recorder.batch
    mask, old, advantages = (tensors[name] for name in ("loss_mask", "action_log_probs", "advantages"))
    with torch.inference_mode():
        after = workers.logprobs(tensors)
    result = {
        "rows": [[extras["task"], extras["seed"]] for extras in batch["env_extras"]],
        "prompts": output["prompt_token_ids"],
        "responses": output["response_ids"],
        "mask": output["loss_masks"],
        "rewards": output["rewards"],
        "metrics": output["env_metrics"],
        "masked": int(mask.sum()),
        "difference": float(((old - tensors["rollout_logprobs"]) * mask).abs().max()),
        "advantages": advantages.abs().amax(1).tolist(),
        "gain": float((advantages * (after - old) * mask).sum()),
        "steps": trainer.global_step,
    }
    out.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
