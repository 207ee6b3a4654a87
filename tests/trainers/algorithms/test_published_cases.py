"""Recorded, hand-checked values of the published algorithms; the inputs of a case determine rule and options.

The cases are stored beside the benchmark data. An unrecognized case fails, so that none is skipped silently; the
topics of other rooms are listed in `ELSEWHERE`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arboretum.trainers.algorithms.credit import cognitive
from arboretum.trainers.algorithms.credit.anchor import anchor_advantages, anchor_groups
from arboretum.trainers.algorithms.credit.gae import bi_level_gae, gae, whiten
from arboretum.trainers.algorithms.credit.group import group_advantages
from arboretum.trainers.algorithms.credit.tree import tree_advantages
from arboretum.trainers.algorithms.objectives.aggregate import token_weights
from arboretum.trainers.algorithms.objectives.penalties import soft_overlong_penalty
from arboretum.trainers.algorithms.schedules import Linear
from arboretum.trainers.algorithms.selectors import NotEnoughGroups, Refill, informative_groups, most_uncertain
from arboretum.trainers.data.segments import discounted_sums, factorize, group_statistics
from arboretum.trainers.sampling.tree import expandable_nodes, expected_budget, leaves_per_prompt

torch = pytest.importorskip("torch")

from arboretum.trainers.algorithms.objectives.kl import kl_estimate
from arboretum.trainers.algorithms.objectives.loss import policy_loss
from arboretum.trainers.algorithms.objectives.ratio import importance_ratios
from arboretum.trainers.algorithms.objectives.settings import AGGREGATIONS, Kl, Objective
from arboretum.trainers.algorithms.objectives.surgical import Surgical, surgical_losses, surgical_margins
from arboretum.trainers.algorithms.objectives.surrogate import clipped_surrogate
from arboretum.trainers.algorithms.objectives.tokens import Pairs, Tokens
from arboretum.trainers.algorithms.objectives.value import value_losses
from arboretum.trainers.learning.reference import update_average

ELSEWHERE = {"qa"}
"""Topics of the search environment, tested there."""

Inputs = dict[str, Any]


def recorded_cases() -> list[Any]:
    """Return the recorded cases as test parameters."""
    data = os.environ.get("ARBORETUM_DATA")
    path = Path(data).parent / "golden" / "algorithms" / "cases.json" if data else None
    if path is None or not path.is_file():
        reason = "needs the recorded cases beside the folder ARBORETUM_DATA"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["topic"] not in ELSEWHERE]


def floats(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(values, dtype=np.float64)


def tensor(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64)


def masked(inputs: Inputs, name: str) -> Any:
    """Return the entries of a recorded [B, T] array at the mask, shape [N]."""
    return tensor(inputs[name])[tensor(inputs["mask"]).bool()]


def singleton(inputs: Inputs) -> Any:
    return {"zero": "zero"}.get(inputs.get("singleton", "verl"), "return")


# ---------------------------------------------------------------------- credit


def grpo(inputs: Inputs) -> Any:
    scale = {True: "group", False: "none"}[inputs.get("norm_by_std", True)]
    advantages = group_advantages(
        floats(inputs["rewards"]),
        factorize(inputs["group"]),
        scale=inputs.get("scale", scale),
        eps=inputs.get("eps", 1e-6),
        singleton=singleton(inputs),
        leave_one_out=inputs.get("leave_one_out", False),
    )
    return advantages[:, None] * floats(inputs["mask"]) if "mask" in inputs else advantages


def ppo(inputs: Inputs) -> Any:
    if "turn_end_rewards" in inputs:
        return bi_level(inputs)
    if "score" in inputs:
        return reward_with_kl(inputs)
    if "old_values" in inputs:
        mask = tensor(inputs["mask"])
        weights = tensor(token_weights("token-mean", np.zeros(int(mask.sum()), dtype=np.int64)))
        losses = value_losses(
            masked(inputs, "values"), masked(inputs, "returns"), masked(inputs, "old_values"), inputs["clip"]
        )
        return float((losses * weights).sum())
    mask = np.atleast_2d(np.asarray(inputs["mask"], dtype=bool))
    estimates = gae(
        np.atleast_2d(floats(inputs["rewards"]))[mask],
        np.atleast_2d(floats(inputs["values"]))[mask],
        np.nonzero(mask)[0],
        gamma=inputs.get("gamma", 1.0),
        lam=inputs.get("lam", 1.0),
    )
    advantages, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    advantages[mask], returns[mask] = estimates
    return {
        "advantages_at_mask": estimates.advantages,
        "returns_at_mask": estimates.returns,
        "whitened_at_mask": whiten(estimates.advantages),
        "advantages": advantages,
        "returns": returns,
    }


def bi_level(inputs: Inputs) -> Any:
    mask = np.asarray(inputs["mask"], dtype=bool)
    ends = sorted(int(place) for place in inputs["turn_end_rewards"])
    turns = np.searchsorted(ends, np.arange(len(mask)))[mask]
    estimates = bi_level_gae(
        floats([inputs["turn_end_rewards"][str(place)] for place in ends]),
        floats(inputs["values"])[mask],
        turns,
        np.zeros(len(ends), dtype=np.int64),
        turn_gamma=inputs["gamma_turn"],
        gamma=inputs["gamma"],
        lam=inputs["lam"],
    )
    scattered = np.zeros(len(mask))
    scattered[mask] = estimates.advantages
    return scattered


def reward_with_kl(inputs: Inputs) -> Any:
    mask = np.asarray(inputs["mask"], dtype=bool)
    kl = kl_estimate(tensor(inputs["logp"]), tensor(inputs["ref_logp"]), inputs.get("kl", "k1")).numpy()
    rewards = np.where(mask, -inputs["kl_coef"] * kl, 0.0)
    rewards[np.flatnonzero(mask)[-1]] += inputs["score"]
    return rewards


def gigpo(inputs: Inputs) -> Any:
    if "rows" not in inputs:
        rewards = floats(inputs["rewards"])
        return discounted_sums(rewards, np.zeros(len(rewards), dtype=np.int64), inputs["gamma"])
    rows = inputs["rows"]
    tasks = factorize(row["task"] for row in rows)
    penalty = inputs.get("invalid_penalty")
    threshold = inputs.get("similarity", inputs.get("similarity_thresh"))
    if "r" not in rows[0]:
        return anchor_groups(tasks, [row["obs"] for row in rows], similarity=threshold)
    credit = anchor_advantages(
        floats([row["r"] for row in rows]),
        factorize((row["task"], row["traj"]) for row in rows),
        tasks,
        [row["obs"] for row in rows],
        gamma=inputs.get("gamma", 0.95),
        omega=inputs.get("omega", 1.0),
        scale="group" if inputs.get("norm_by_std", False) else "none",
        eps=inputs.get("eps", 1e-6),
        singleton=singleton(inputs),
        episode_statistics="turn" if inputs.get("episode_stats") == "step" else "episode",
        similarity=threshold,
        own_penalties=None
        if penalty is None
        else floats([0.0 if row.get("valid", True) else -penalty for row in rows]),
    )
    return {
        "step_returns": credit.step_returns,
        "A_E": credit.episode,
        "A_S": credit.step,
        "A": credit.total,
    }


def tree_grpo(inputs: Inputs) -> Any:
    if "children" in inputs:
        return expandable_nodes(inputs["children"], "root", inputs["leaf"])
    if "M" in inputs:
        shape = (inputs["M"], inputs["N"], inputs["L"])
        return {"rollouts": leaves_per_prompt(*shape), "budget": expected_budget(*shape)}
    scores, prompts = floats(inputs["scores"]), factorize(inputs["prompt"])
    trees = factorize(inputs["tree"])
    return {
        name: tree_advantages(
            scores, prompts, trees, name, eps=inputs.get("eps", 1e-6), singleton=singleton(inputs)
        )
        for name in ("inter", "intra", "total", "cascaded")
    }


# ---------------------------------------------------------------------- objectives


def loss(inputs: Inputs) -> Any:
    if "ratios" in inputs:
        ratios = tensor(inputs["ratios"])
        losses = clipped_surrogate(
            ratios,
            torch.full_like(ratios, inputs["advantage"])
            if "advantage" in inputs
            else tensor(inputs["advantages"]),
            clip_low=inputs.get("clip_low", inputs.get("clip", 0.2)),
            clip_high=inputs.get("clip_high", inputs.get("clip", 0.2)),
            dual_clip=inputs.get("dual_clip_c"),
            ratio_cap=inputs.get("delta"),
        ).losses
        return {"per_token": losses, "token_mean": losses.mean()}
    mask = tensor(inputs["mask"]).bool()
    rows = mask.nonzero()[:, 0]
    width = mask.shape[1]
    prompts = np.asarray(inputs.get("prompt", inputs.get("group", range(len(mask)))))[rows.numpy()]

    def weights(mode: str, length: float) -> Any:
        name: Any = mode.replace("_", "-")
        count = len(mask) if name == "dr-grpo" else None
        return tensor(token_weights(name, rows.numpy(), prompts=prompts, norm_length=length, count=count))

    if "loss" in inputs:
        length = inputs.get("norm_length", inputs.get("max_length", width))
        names = {spelling for mode in AGGREGATIONS for spelling in (mode, mode.replace("-", "_"))}
        return {name: (masked(inputs, "loss") * weights(name, length)).sum() for name in names}
    turns = masked(inputs, "turns").long() if "turns" in inputs else None
    ratio = "turn" if turns is not None else "sequence" if "gspo" in inputs["case"] else "token"
    mode = inputs.get("mode", inputs.get("agg", "token-mean")).replace("_", "-")
    logp, old = masked(inputs, "logp"), masked(inputs, "old_logp")
    objective = Objective(
        ratio=ratio,
        clip_low=inputs.get("clip_low", inputs.get("clip", 0.2)),
        clip_high=inputs.get("clip_high", inputs.get("clip", 0.2)),
        dual_clip=inputs.get("dual_clip_c"),
        aggregation=mode,
        norm_length=inputs.get("norm_length", width),
        kl=Kl(coef=inputs.get("kl_coef", 0.0), estimator=inputs.get("kl", "k3")),
    )
    tokens = Tokens(
        logp=logp,
        advantages=masked(inputs, "adv"),
        weights=weights(mode, objective.norm_length),
        rows=rows,
        turns=turns,
        old_logp=old,
        ref_logp=masked(inputs, "ref_logp") if "ref_logp" in inputs else None,
    )
    results = {"loss": policy_loss(objective, tokens)[0]}
    ratios = importance_ratios(logp, old, ratio, rows=rows, turns=turns)
    if ratio == "sequence":
        results["ratio"] = torch.stack([ratios[rows == row][0] for row in rows.unique()])
    if turns is not None:
        results |= {f"ratio_turn{turn}": ratios[turns == turn][0] for turn in turns.unique().tolist()}
    return results


def kl(inputs: Inputs) -> Any:
    logp, ref = tensor(inputs["logp"]), tensor(inputs["ref_logp"])
    return {name: kl_estimate(logp, ref, name) for name in ("k1", "k2", "k3", "abs")}


# ---------------------------------------------------------------------- selectors and schedules


def dapo(inputs: Inputs) -> Any:
    if "metric_per_group" in inputs:
        return informative_groups(inputs["metric_per_group"])
    if "total" in inputs:
        return [Linear(inputs["start"], inputs["end"]).at(step, inputs["total"]) for step in inputs["steps"]]
    if "needed" in inputs:
        state: Refill[int] = Refill(inputs["needed"], inputs["max_num_gen_batches"], "raise")
        for found in inputs["qualified_groups_per_generation_batch"]:
            if state.wants_more:
                state = state.add(range(found))
        try:
            used, error = len(state.batch()), False
        except NotEnoughGroups:
            used, error = 0, True
        return {"batches": state.batches, "kept": len(state.kept), "used": used, "error": error}
    lengths = next(inputs[name] for name in ("lengths", "length", "L") if name in inputs)
    limit = next(inputs[name] for name in ("L_max", "Lmax", "max_length", "max_len") if name in inputs)
    cache = next(inputs[name] for name in ("L_cache", "Lcache", "Lc", "cache", "buffer") if name in inputs)
    return soft_overlong_penalty(np.asarray(lengths), limit, cache)


def starpo_s(inputs: Inputs) -> Any:
    if "scores" in inputs:
        return most_uncertain(
            floats(inputs["scores"]),
            "top-p",
            inputs["top_p"],
            eps=inputs["eps"],
            include_zero=inputs["include_zero"],
        )
    groups = inputs["reward_groups"]
    members = factorize(i for i, group in enumerate(groups) for _ in group)
    std = group_statistics(floats([r for group in groups for r in group]), members).std
    return {"std": std, "kept": most_uncertain(std, "fraction", inputs["keep"])}


# ---------------------------------------------------------------------- T-STAR


def name_nodes(values: dict[Any, Any], separator: str = "/") -> dict[str, Any]:
    """Return values by the names of nodes in the cases: "root/a/b", or "1:b" in a graph."""

    def name(node: Any) -> Any:
        if not isinstance(node, tuple):
            return node
        if separator == ":" and node:
            return f"{node[0]}:{node[1]}"
        return "/".join(("root", *node))

    return {name(node): name_content(value, name) for node, value in values.items()}


def name_content(value: Any, name: Callable[[Any], Any]) -> Any:
    """Return a value of a node, with the nodes in it named."""
    if isinstance(value, cognitive.Divergence):
        return {"gap": value.gap, "best": name(value.best), "worst": name(value.worst)}
    return {name(node): inner for node, inner in value.items()} if isinstance(value, dict) else value


def tstar(inputs: Inputs) -> Any:
    if "trajectories" in inputs:
        return tstar_tree(inputs)
    if "grpo_loss" in inputs:
        # Pairs whose rejected thoughts are as likely as under the reference, and margins of the recorded losses.
        margins = -torch.log(torch.expm1(tensor(inputs["surgical_losses"]))) / 0.1
        zeros, counts = torch.zeros_like(margins), torch.ones_like(margins)
        pairs = Pairs(margins, zeros, counts, counts, zeros, zeros)
        return inputs["grpo_loss"] + Surgical(beta=0.1, weight=inputs["lam"]).pair_losses(pairs).mean()
    if "logp_rect" in inputs:
        names = ("logp_rect", "ref_rect", "logp_neg", "ref_neg")
        margins = surgical_margins(*(tensor(inputs[name]) for name in names))
        return {"margin": margins, "loss": surgical_losses(margins, inputs["beta"])}
    if "theta" in inputs:
        reference, path = tensor(inputs["ref0"]), []
        for theta in inputs["theta"]:
            reference = update_average(reference, tensor(theta), inputs["alpha"])
            path.append(float(reference))
        return path
    if "logp_i" in inputs:
        i, j = floats(inputs["logp_i"]), floats(inputs["logp_j"])
        k1 = cognitive.sampled_kl(i, j)
        return {
            "k1": k1,
            "k3": cognitive.sampled_kl(i, j, "k3"),
            "equivalent_k1": k1 < inputs["eps_kl"],
            "exact": cognitive.exact_kl(i, j),
        }
    if "p_i" in inputs:
        i, j = np.log(floats(inputs["p_i"])), np.log(floats(inputs["p_j"]))
        forward, backward = cognitive.exact_kl(i, j), cognitive.exact_kl(j, i)
        largest, mean = max(forward, backward), (forward + backward) / 2
        results = {"loss": forward, "ij": forward, "ji": backward, "max": largest, "mean": mean}
        results |= {"forward": forward, "backward": backward, "kl_ij": forward, "kl_ji": backward}
        rules = (
            ("forward", forward),
            ("backward", backward),
            ("max", largest),
            ("mean", mean),
            ("exact", forward),
        )
        return results | {f"equivalent_{rule}": kl < inputs.get("eps_kl", 0.25) for rule, kl in rules}
    if "first_actions" in inputs:
        sets = cognitive.comparison_sets(inputs["first_actions"], inputs.get("limit", 16))
        pairs = [(i, j) for i, j in combinations(range(len(sets)), 2) if sets[i] == sets[j]]
        every = len(sets) * (len(sets) - 1) // 2
        return {"pairs": len(pairs), "all_pairs": every}
    if "kl" in inputs:
        return cognitive.merge_steps(
            floats(inputs["kl"]),
            inputs["history"],
            threshold=inputs["eps_kl"],
            symmetrize=inputs.get("symmetrise", "max"),
        )
    pytest.fail(f"no rule of T-STAR has the inputs {sorted(inputs)}")


def tstar_tree(inputs: Inputs) -> Any:
    steps = inputs["trajectories"]
    paths = cognitive.tree_paths(steps)
    if "rewards" not in inputs:
        return name_nodes(dict(cognitive.edge_weights(paths)))
    rewards = floats(inputs["rewards"])
    gamma = inputs.get("gamma", 1.0)
    q = cognitive.q_values(paths, rewards, gamma)
    results: dict[str, Any] = {"tree": name_nodes(q), "Q": name_nodes(q), **name_nodes(q)}
    layers = cognitive.layer_paths(steps)
    results["dag"] = name_nodes(cognitive.q_values(layers, rewards, gamma), ":")
    advantages = cognitive.node_advantages(np.array(list(q.values())), rewards)
    results["adv"] = name_nodes(dict(zip(q, advantages.tolist(), strict=True)))
    if "delta" in inputs:
        delta = inputs["delta"]
        divergent = cognitive.divergences(paths, q, delta)
        results["divergent"] = name_nodes(dict(divergent))
        results["n_with_delta_03_plus_1e9"] = len(divergent)
        results["n_with_delta_03"] = len(cognitive.divergences(paths, q, delta, tie=0.0))
    return results


# ---------------------------------------------------------------------- comparison

RULES: dict[str, Callable[[Inputs], Any]] = {
    "grpo": grpo,
    "ppo": ppo,
    "gigpo": gigpo,
    "tree_grpo": tree_grpo,
    "loss": loss,
    "kl": kl,
    "dapo": dapo,
    "starpo_s": starpo_s,
    "tstar": tstar,
}


def assert_matches(ours: Any, expected: Any, tol: float, where: str) -> None:
    """Assert that every recorded value is reproduced; `ours` may have more values."""
    if isinstance(ours, dict) and not isinstance(expected, dict):
        assert "loss" in ours, f"{where}: one value is recorded, not {sorted(ours)}"
        ours = ours["loss"]
    if isinstance(expected, dict):
        assert isinstance(ours, dict), f"{where}: {sorted(expected)} are recorded, not one value"
        for name, value in expected.items():
            assert name in ours, f"{where}: {name!r} is missing from {sorted(ours)}"
            assert_matches(ours[name], value, tol, f"{where}.{name}")
        if not expected:
            assert ours == {}, where
    elif isinstance(expected, (bool, str)) or (
        isinstance(expected, list) and expected and isinstance(expected[0], (str, list))
    ):
        if isinstance(expected, list) and isinstance(expected[0], list) and not isinstance(ours, list):
            np.testing.assert_allclose(np.asarray(ours), expected, rtol=0, atol=tol, err_msg=where)
        else:
            assert ours == expected, where
    else:
        np.testing.assert_allclose(np.asarray(ours, dtype=np.float64), expected, rtol=0, atol=tol, err_msg=where)


@pytest.mark.parametrize("case", recorded_cases())
def test_published_case_is_reproduced(case: dict[str, Any]) -> None:
    assert case["topic"] in RULES, f"no rule for the topic {case['topic']!r}"
    ours = RULES[case["topic"]]({**case["inputs"], "case": case["name"]})
    expected = case["expected"]
    if isinstance(ours, dict) and "divergent" in ours and isinstance(dict(expected).get("root"), dict):
        ours = ours["divergent"]  # The case records only this part.
    assert_matches(ours, expected, case["tol"], case["name"])
