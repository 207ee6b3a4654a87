"""Table of algorithms: each row combines a sampler, a selector, a credit and an objective with hyper-parameters.

Values are the published ones, each with its source in a comment. Where sources disagree, the paper has precedence;
where a paper gives no value, the value is that of the released code behind its results. PPO and GRPO were first
published on other kinds of tasks (control; single-turn mathematics), so their rows use the values of multi-turn
agent training. A new algorithm is a new row, or one new part.

Settings that a row omits have verl's defaults, which RAGEN, Search-R1 and GiGPO used: AdamW with β = (0.9, 0.999)
and weight decay 0.01, gradients clipped to norm 1, a constant learning rate without warm-up, temperature 1.

Sources:
    RAGEN       StarPO, arXiv:2504.20073, sec. 3.2, app. C.2; code: config/base.yaml of its release
    verl        defaults of verl 0.8.0.dev, trainer/config
    TRL         defaults of TRL 1.10.0.dev, trainer/*_config.py
    Search-R1   arXiv:2503.09516, app. B; code: train_ppo.sh, train_grpo.sh, trainer/config
    Dr. GRPO    arXiv:2503.20783, app. G, table 6; code: examples/qwen2.5-math-7b.sh
    RLOO        arXiv:2402.14740, app. "Preference Training"
    DAPO        arXiv:2503.14476; code: run_dapo_qwen2.5_32b.sh
    GiGPO       arXiv:2505.10978; code: examples/gigpo_trainer/run_{alfworld,webshop,sokoban}.sh
    Tree-GRPO   arXiv:2509.21240; code: its release, which is built on Search-R1's
    T-STAR      arXiv:2604.07165, section 4 and appendix B
    GROVE       this project's own, docs/grove.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...envs.errors import unknown_name
from ...envs.plugins import plugin_object, plugin_objects
from .credit.anchor import Anchor
from .credit.cognitive_credit import Cognitive
from .credit.gae import Gae
from .credit.group import Group
from .credit.grove_credit import Grove
from .credit.tree import TreeCredit
from .grafting import Grafting
from .objectives.settings import Kl, Objective, Overlong
from .objectives.surgical import Surgical
from .recipe import Critic, Optimization, Recipe
from .rewards import Rewards
from .samplers import Chains, Trees
from .schedules import Linear
from .selectors import Dynamic, Uncertainty

RAGEN_CHAINS = Chains(
    prompts=8,  # RAGEN: P
    rollouts=16,  # RAGEN: N
    temperature=1.0,  # RAGEN code
    reply_tokens=400,  # RAGEN code
    max_turns=5,  # RAGEN
    max_actions_per_turn=5,  # RAGEN app. C.2 (2 in later code)
    max_actions=10,  # RAGEN
    format_penalty=-0.1,  # RAGEN
    think=True,  # RAGEN
)


def _table(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


_BASES: Mapping[str, Recipe] = _table(
    Recipe(
        name="ppo",
        about="PPO with a token-level critic and a KL penalty in the reward (arXiv:1707.06347).",
        credit=Gae(gamma=1.0, lam=1.0),  # Search-R1, RAGEN
        objective=Objective(
            clip_low=0.2,  # Search-R1
            clip_high=0.2,  # Search-R1
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # verl
            entropy_coef=0.001,  # RAGEN; Search-R1 code
            kl=Kl(coef=0.001, estimator="k1", placement="reward"),  # Search-R1; k1: Search-R1 code
        ),
        sampler=Chains(prompts=8, rollouts=16),  # RAGEN (Search-R1: 512 × 1)
        critic=Critic(
            lr=1e-5,  # Search-R1; RAGEN code
            clip=0.5,  # verl
            warmup=0,  # Search-R1 code, verl: critic_warmup
        ),
        optimization=Optimization(
            updates=200,  # RAGEN (Search-R1: 500)
            lr=1e-6,  # Search-R1; RAGEN code
            warmup=0,  # RAGEN code (Search-R1: 0.285 of the steps; critic: 0.015)
            episodes_per_step=32,  # RAGEN: E (Search-R1: 256)
        ),
    ),
    Recipe(
        name="grpo",
        about="GRPO: returns normalized within the group of a prompt, without a critic (arXiv:2402.03300).",
        credit=Group(scale="group", eps=1e-6),  # arXiv:2402.03300, sec. 4.1.2; eps: verl
        objective=Objective(
            clip_low=0.2,  # Search-R1, T-STAR's baseline
            clip_high=0.2,  # Search-R1, T-STAR's baseline
            aggregation="seq-mean-token-mean",  # arXiv:2402.03300, eq. 3
            entropy_coef=0.001,  # RAGEN; Search-R1 code
            kl=Kl(
                coef=0.001,  # Search-R1 (arXiv:2402.03300, sec. 4.2: 0.04)
                estimator="k3",  # arXiv:2402.03300, eq. 4
                placement="loss",  # arXiv:2402.03300, eq. 3
            ),
        ),
        sampler=Chains(prompts=8, rollouts=16),  # RAGEN (Search-R1: N = 5; arXiv:2402.03300, sec. 4.2: 64)
        optimization=Optimization(
            updates=200,  # RAGEN
            lr=1e-6,  # arXiv:2402.03300, sec. 4.2; Search-R1; RAGEN code
            episodes_per_step=32,  # RAGEN: E (arXiv:2402.03300, sec. 4.2: all)
        ),
    ),
    Recipe(
        name="dr_grpo",
        about="Dr. GRPO: GRPO without division by standard deviation or length (arXiv:2503.20783).",
        credit=Group(scale="none"),  # Dr. GRPO sec. 3.2
        objective=Objective(
            clip_low=0.2,  # Dr. GRPO
            clip_high=0.2,  # Dr. GRPO
            aggregation="dr-grpo",  # Dr. GRPO sec. 3.2; code: masked sum over a constant, mean over episodes
            norm_length=None,  # code: the longest reply, 3000 in one turn; here the limit of the run's episodes
        ),
        sampler=Chains(
            prompts=128,  # Dr. GRPO code: rollout_batch_size
            rollouts=8,  # Dr. GRPO
            temperature=1.0,  # Dr. GRPO
            reply_tokens=400,  # RAGEN code
            max_turns=5,  # RAGEN
        ),
        optimization=Optimization(
            updates=200,  # RAGEN
            lr=1e-6,  # Dr. GRPO
            betas=(0.9, 0.95),  # Dr. GRPO
            weight_decay=0.0,  # Dr. GRPO
            schedule="constant",  # Dr. GRPO
            max_grad_norm=1.0,  # Dr. GRPO
            episodes_per_step=128,  # Dr. GRPO code: train_batch_size; 8 steps per update
            passes=1,  # Dr. GRPO
        ),
    ),
    Recipe(
        name="rloo",
        about="RLOO: REINFORCE with a leave-one-out baseline and a KL penalty in the reward (arXiv:2402.14740).",
        credit=Group(scale="none", leave_one_out=True),  # RLOO sec. 2.3
        objective=Objective(
            clip_low=0.2,  # TRL (RLOO does not clip)
            clip_high=0.2,  # TRL (RLOO does not clip)
            aggregation="seq-mean-token-sum",  # the log-probability of the whole episode: RLOO sec. 2.3
            kl=Kl(
                coef=0.03,  # RLOO, on TL;DR (0.10 on HH; TRL: 0.05)
                estimator="k1",  # RLOO eq. 3
                placement="reward",  # RLOO eq. 3
            ),
        ),
        sampler=Chains(
            prompts=128,  # RLOO: a rollout batch of 512, which we read as episodes
            rollouts=4,  # RLOO: k = 4, the larger of 2 and 4 (TRL: 2)
        ),
        optimization=Optimization(
            updates=600,  # RLOO, on TL;DR
            lr=1e-6,  # RLOO, TRL
            schedule="constant",  # RLOO
            warmup=18,  # RLOO: 3 % of the steps
            episodes_per_step=256,  # RLOO: 2 steps per update
        ),
    ),
    Recipe(
        name="dapo",
        about="DAPO: GRPO with clip-higher, dynamic sampling and overlong penalty, without KL (arXiv:2503.14476).",
        credit=Group(scale="group", eps=1e-6),  # DAPO eq. 9; eps: verl
        objective=Objective(
            clip_low=0.2,  # DAPO sec. 4.1
            clip_high=0.28,  # DAPO sec. 4.1
            aggregation="token-mean",  # DAPO eq. 12
            entropy_coef=0.0,  # DAPO code
        ),
        sampler=Chains(
            prompts=512,  # DAPO sec. 4.1
            rollouts=16,  # DAPO sec. 4.1
            temperature=1.0,  # DAPO code
        ),
        selector=Dynamic(
            metric="success",  # DAPO eq. 11: correctness
            max_batches=10,  # DAPO code
            on_exhausted="partial",  # DAPO code: raises, which would end a run in a hard task early
        ),
        overlong=Overlong(
            coef=1.0,  # DAPO eq. 13, code
            cache=4096,  # DAPO sec. 4.1, of 20480 tokens; here the limit is that of the run
        ),
        optimization=Optimization(
            updates=200,  # RAGEN
            lr=1e-6,  # DAPO sec. 4.1
            weight_decay=0.1,  # DAPO code
            schedule="constant",  # DAPO sec. 4.1
            warmup=20,  # DAPO sec. 4.1 (code: 10)
            max_grad_norm=1.0,  # DAPO code
            episodes_per_step=512,  # DAPO sec. 4.1: 16 steps per update
        ),
    ),
    Recipe(
        name="dapo_tstar",
        about="DAPO as in T-STAR: GRPO with a temperature falling from 1 to 0.5 (arXiv:2604.07165, app. B.3).",
        credit=Group(scale="group", eps=1e-6),  # T-STAR; eps: verl
        objective=Objective(
            clip_low=0.2,  # T-STAR app. B.3: [0.8, 1.2]
            clip_high=0.2,  # T-STAR app. B.3
            aggregation="token-mean",  # DAPO eq. 12; not given by T-STAR
        ),
        sampler=Chains(
            prompts=32,  # T-STAR: a batch of 32, which we read as prompts
            rollouts=8,  # T-STAR: M
            temperature=Linear(1.0, 0.5),  # T-STAR app. B.3; the linear schedule is our reading
        ),
        optimization=Optimization(
            updates=160,  # T-STAR
            lr=5e-6,  # T-STAR
        ),
    ),
    Recipe(
        name="gigpo",
        about="GiGPO: GRPO between episodes, and between turns that start in the same state (arXiv:2505.10978).",
        credit=Anchor(
            gamma=0.95,  # GiGPO eq. 5; code
            omega=1.0,  # GiGPO eq. 8; code
            scale="none",  # GiGPO code: default, WebShop and Sokoban (ALFWorld: "group")
            eps=1e-6,  # GiGPO code
            anchor="state",  # equals "observation" where observations determine the state
            invalid_penalty=0.1,  # GiGPO, code
        ),
        rewards=Rewards(scale=10.0),  # GiGPO, code: 10 for success (here 1), which penalty and KL are chosen for
        objective=Objective(
            clip_low=0.2,  # GiGPO code
            clip_high=0.2,  # GiGPO code
            dual_clip=3.0,  # GiGPO code
            aggregation="token-mean",  # GiGPO code
            entropy_coef=0.0,  # GiGPO: no entropy term in the objective (code: 0.001)
            kl=Kl(coef=0.01, estimator="k3", placement="loss"),  # GiGPO; k3: code
        ),
        sampler=Chains(
            prompts=16,  # GiGPO, code (32 on Sokoban)
            rollouts=8,  # GiGPO: N
            temperature=1.0,  # GiGPO, code
            reply_tokens=512,  # GiGPO, code
            format_penalty=0.0,  # replaced by credit.invalid_penalty
        ),
        optimization=Optimization(
            updates=150,  # GiGPO code
            lr=1e-6,  # GiGPO, code
            episodes_per_step=32,  # RAGEN: E; GiGPO counts turns, 64 per step (256 on ALFWorld)
        ),
    ),
    Recipe(
        name="starpo",
        about="StarPO of RAGEN, as PPO: critic-based advantages over complete episodes (arXiv:2504.20073).",
        credit=Gae(gamma=1.0, lam=1.0),  # RAGEN
        objective=Objective(
            clip_low=0.2,  # RAGEN app. D
            clip_high=0.2,  # RAGEN app. D, before clip-higher
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # RAGEN code (eq. 4: mean per trajectory first)
            entropy_coef=0.001,  # RAGEN
            kl=Kl(
                coef=0.001,  # RAGEN app. C.2
                estimator="k1",  # RAGEN app. C.2
                placement="loss",  # RAGEN eq. 10
            ),
        ),
        sampler=RAGEN_CHAINS,
        critic=Critic(
            lr=1e-5,  # RAGEN code
            clip=0.5,  # verl
        ),
        optimization=Optimization(
            updates=200,  # RAGEN app. C.2
            lr=1e-6,  # RAGEN code
            betas=(0.9, 0.999),  # RAGEN app. C.2
            max_grad_norm=1.0,  # verl
            episodes_per_step=32,  # RAGEN app. C.2: E
            passes=1,  # RAGEN sec. 4.3: Online-1 was best
        ),
    ),
    Recipe(
        name="starpo_s",
        about="StarPO-S: StarPO on the most uncertain prompts, with clip-higher, without KL (arXiv:2504.20073).",
        credit=Gae(gamma=1.0, lam=1.0),  # RAGEN
        objective=Objective(
            clip_low=0.2,  # RAGEN app. D
            clip_high=0.28,  # RAGEN app. D
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # RAGEN code (eq. 4: mean per trajectory first)
            entropy_coef=0.001,  # RAGEN
        ),
        sampler=RAGEN_CHAINS,
        selector=Uncertainty(rule="fraction", amount=0.25),  # RAGEN sec. 4.2 (later scripts: 0.5)
        critic=Critic(
            lr=1e-5,  # RAGEN code
            clip=0.5,  # verl
        ),
        optimization=Optimization(
            updates=200,  # RAGEN app. C.2
            lr=1e-6,  # RAGEN code
            betas=(0.9, 0.999),  # RAGEN app. C.2
            max_grad_norm=1.0,  # verl
            episodes_per_step=32,  # RAGEN app. C.2: E; one step per update with a quarter of the groups
            passes=1,  # RAGEN sec. 4.3: Online-1 was best
        ),
    ),
    Recipe(
        name="tree_grpo",
        about="Tree-GRPO: episodes branch off each other; GRPO within their tree and prompt (arXiv:2509.21240).",
        credit=TreeCredit(
            estimator="total",  # Tree-GRPO: inter-tree + intra-tree
            eps=1e-6,  # Tree-GRPO code
            singleton="zero",  # Tree-GRPO code: "return", which is biased upward; no tree has a single leaf here
            prefix_weighting="duplicate",  # Tree-GRPO code: every leaf is a sequence of its own
        ),
        objective=Objective(
            clip_low=0.2,  # Tree-GRPO code
            clip_high=0.2,  # Tree-GRPO code
            dual_clip=3.0,  # Tree-GRPO code
            aggregation="token-mean",  # Tree-GRPO code
            entropy_coef=0.001,  # Tree-GRPO code
            kl=Kl(coef=0.001, estimator="k3", placement="loss"),  # Tree-GRPO code
        ),
        sampler=Trees(
            prompts=512,  # Tree-GRPO, on question answering (web agent: 128)
            trees=2,  # Tree-GRPO: M
            expansions=2,  # Tree-GRPO: N
            rounds=1,  # Tree-GRPO: L
            leaves=None,  # Tree-GRPO: K = 3, which are all leaves of a tree
            choice="random",  # Tree-GRPO: uniform, with replacement
            temperature=1.0,  # Tree-GRPO code
            top_p=1.0,  # Search-R1 (default of Tree-GRPO's code: 0.95, off the policy that is trained)
            reply_tokens=500,  # Tree-GRPO code: per turn
        ),
        optimization=Optimization(
            updates=180,  # Tree-GRPO, on question answering (web agent: 34)
            lr=1e-6,  # Tree-GRPO code of its GRPO runs; that of tree runs leaves it undefined
            warmup=51,  # Tree-GRPO code: 0.285 of the steps
            episodes_per_step=384,  # Tree-GRPO code: mini-batches of 64, which we read as prompts of 6 episodes
        ),
    ),
)


def t_star(base: Recipe, name: str, about: str, *, omega: float = 0.0) -> Recipe:
    """Return T-STAR on top of a recipe (arXiv:2604.07165, section 4 and appendix B).

    The advantages of a cognitive graph replace those between episodes, and the surgical term is added to the
    objective. Sampler, optimizer and the rest of the objective are the base's, with T-STAR's sizes. The paper does
    not say whether its GRPO loss has a KL term; there is none here, and only the surgical term has a reference.

    Args:
        base: Recipe to extend.
        name, about: See `Recipe`.
        omega: Weight of GiGPO's step advantage, which is added.
    """
    sizes = base.with_settings(
        {
            "sampler.prompts": 32,  # T-STAR: a batch of 32, which we read as prompts
            "sampler.rollouts": 8,  # T-STAR: M
            "sampler.max_turns": 20,  # T-STAR: steps
            "sampler.max_actions": 20,  # T-STAR: steps
            "optimization.updates": 160,  # T-STAR
            "optimization.lr": 5e-6,  # T-STAR
            "optimization.episodes_per_step": None,  # T-STAR alg. 1: one step per update
        }
    )
    return replace(
        sizes,
        name=name,
        about=about,
        credit=Cognitive(
            kl_threshold=0.25,  # T-STAR
            kl_samples=16,  # T-STAR: K
            gamma=0.99,  # T-STAR (1 is lemma 1's condition)
            delta=0.3,  # T-STAR, for returns from 0 to 1
            omega=omega,
        ),
        rewards=Rewards(),  # T-STAR: 0 or 1, which δ is chosen for
        objective=replace(
            base.objective,
            kl=Kl(),
            terms=(*base.objective.terms, Surgical(beta=0.1, weight=0.15)),  # T-STAR: β, λ
            reference_decay=0.95,  # T-STAR: α
        ),
        grafting=Grafting(mode="rewrite"),  # T-STAR eq. 9; pairs of one update, which algorithm 1 never drops
    )


RECIPES: Mapping[str, Recipe] = {
    **_BASES,
    **_table(
        t_star(
            _BASES["grpo"],
            "t_star",
            "T-STAR over GRPO: merged turns share values, and thoughts at divergences are corrected "
            "(arXiv:2604.07165).",
        ),
        t_star(
            _BASES["dapo_tstar"],
            "t_star_dapo",
            "T-STAR over its version of DAPO (arXiv:2604.07165, app. B.3).",
        ),
        t_star(
            # GiGPO subtracts 0.1 for an invalid action where success earns 10.
            _BASES["gigpo"].with_settings({"sampler.format_penalty": -0.01}),
            "t_star_gigpo",
            "T-STAR over GiGPO: its advantage of episodes is replaced, that of steps stays (arXiv:2604.07165).",
            omega=1.0,  # GiGPO eq. 8; code
        ),
        replace(
            _BASES["grpo"],
            name="grove",
            about="GROVE: values of states from the graph of all states that a group visited (docs/grove.md).",
            credit=Grove(
                gamma=1.0,  # GROVE
                key="state",  # GROVE: pooled over turn numbers
                scale="group",  # GROVE, GRPO
                eps=1e-6,  # verl
            ),
            objective=replace(
                _BASES["grpo"].objective,
                # GROVE: an advantage belongs to a turn, not to an episode, so every turn counts alike. A mean per
                # episode first would give the turns of short episodes, mostly the successful ones, more weight.
                aggregation="token-mean",
            ),
        ),
    ),
}


def recipe_names() -> list[str]:
    """Return the names of all recipes: those of the table, then those of installed plug-ins."""
    return [*RECIPES, *(recipe.name for recipe in plugin_objects(Recipe))]


def get_recipe(name: str) -> Recipe:
    """Return a recipe by its name in the table, the name of a plug-in's recipe, or a path `module:attribute`.

    Raises:
        ConfigurationError: There is no such recipe.
    """
    if name in RECIPES:
        return RECIPES[name]
    found = plugin_object(Recipe, name)
    if found is None:
        raise unknown_name("recipe", name, recipe_names())
    return found
