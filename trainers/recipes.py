"""Every algorithm, as one row of one table: which episodes to roll out, which groups to learn from, what each
token's advantage is, and which loss.

Numbers are the published ones, with their source beside them; where a paper is silent, the source is the released
code that its results come from. A new algorithm is a new row, or one new part.

Sources:
    RAGEN       StarPO, arXiv:2504.20073, and its released configuration
    verl        defaults of verl 0.8
    TRL         defaults of TRL 1.10
    Search-R1   arXiv:2503.09516 and its released scripts
    DAPO        arXiv:2503.14476
    GiGPO       arXiv:2505.10978 and its released scripts
    T-STAR      arXiv:2604.07165, section 4 and appendix B
"""

from __future__ import annotations

from collections.abc import Mapping

from ..envs.errors import unknown_name
from .credit.anchor import Anchor
from .credit.gae import Gae
from .credit.group import Group
from .objectives.settings import Kl, Objective, Overlong
from .recipe import Chains, Critic, Optimisation, Recipe
from .schedules import Linear
from .selectors import Dynamic, Uncertainty

RAGEN_CHAINS = Chains(
    prompts=8,  # RAGEN: P
    rollouts=16,  # RAGEN: N
    temperature=1.0,  # RAGEN
    reply_tokens=400,  # RAGEN
    max_turns=5,  # RAGEN
    max_actions_per_turn=5,  # RAGEN
    max_actions=10,  # RAGEN
    format_penalty=-0.1,  # RAGEN
    think=True,  # RAGEN
)


def _table(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


RECIPES: Mapping[str, Recipe] = _table(
    Recipe(
        name="ppo",
        about="PPO with a token critic; KL to the first policy in the reward (arXiv:1707.06347).",
        credit=Gae(gamma=1.0, lam=1.0),  # Search-R1, verl, RAGEN
        objective=Objective(
            clip_low=0.2,  # verl, Search-R1
            clip_high=0.2,  # verl, Search-R1
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # verl
            kl=Kl(coef=0.001, estimator="k1", placement="reward"),  # Search-R1
        ),
        sampler=Chains(prompts=8, rollouts=16),  # RAGEN
        critic=Critic(lr=1e-5, clip=0.5),  # Search-R1; verl
        optimisation=Optimisation(
            updates=200,  # RAGEN
            lr=1e-6,  # Search-R1, RAGEN
            episodes_per_step=32,  # RAGEN
        ),
    ),
    Recipe(
        name="grpo",
        about="Returns relative to their group, on every token of the episode (arXiv:2402.03300).",
        credit=Group(scale="group", eps=1e-6),  # arXiv:2402.03300; verl
        objective=Objective(
            clip_low=0.2,  # T-STAR's baseline, verl
            clip_high=0.2,  # T-STAR's baseline, verl
            aggregation="seq-mean-token-mean",  # arXiv:2402.03300, eq. 3
            kl=Kl(coef=0.001, estimator="k3", placement="loss"),  # Search-R1's GRPO
        ),
        sampler=Chains(prompts=8, rollouts=16),  # RAGEN
        optimisation=Optimisation(updates=200, lr=1e-6, episodes_per_step=32),  # RAGEN
    ),
    Recipe(
        name="dr_grpo",
        about="GRPO without its two biases: no division by the deviation nor by the length (arXiv:2503.20783).",
        credit=Group(scale="none"),  # arXiv:2503.20783
        objective=Objective(
            clip_low=0.2,  # TRL
            clip_high=0.2,  # TRL
            aggregation="dr-grpo",  # arXiv:2503.20783
            norm_length=2000,  # any constant: here RAGEN's 5 turns of 400 tokens
        ),
        sampler=Chains(prompts=16, rollouts=8, reply_tokens=400, max_turns=5),  # N: arXiv:2503.20783; rest: RAGEN
        optimisation=Optimisation(
            updates=200,  # RAGEN
            lr=1e-6,  # arXiv:2503.20783
            episodes_per_step=128,  # one step an update: arXiv:2503.20783
        ),
    ),
    Recipe(
        name="rloo",
        about="REINFORCE with the mean of the other rollouts as baseline; KL in the reward (arXiv:2402.14740).",
        credit=Group(scale="none", leave_one_out=True),  # arXiv:2402.14740
        objective=Objective(
            clip_low=0.2,  # TRL
            clip_high=0.2,  # TRL
            aggregation="seq-mean-token-sum",  # the log-probability of the whole episode: arXiv:2402.14740
            kl=Kl(coef=0.05, estimator="k1", placement="reward"),  # TRL
        ),
        sampler=Chains(prompts=32, rollouts=4),  # N = k = 4: arXiv:2402.14740
        optimisation=Optimisation(updates=200, lr=1e-6, episodes_per_step=128),  # RAGEN; TRL; on policy
    ),
    Recipe(
        name="dapo",
        about="Clip-higher, dynamic sampling, token-mean loss, soft overlong penalty, no KL (arXiv:2503.14476).",
        credit=Group(scale="group", eps=1e-6),  # DAPO eq. 9
        objective=Objective(clip_low=0.2, clip_high=0.28, aggregation="token-mean"),  # DAPO sec. 4.1, eq. 12
        sampler=Chains(prompts=512, rollouts=16),  # DAPO sec. 4.1
        selector=Dynamic(
            metric="return",
            max_batches=10,  # verl's recipe
            on_exhausted="partial",  # verl raises; early in a hard task that would end the run
        ),
        overlong=Overlong(coef=1.0, cache=4096),  # DAPO sec. 4.1; the limit is the run's own
        optimisation=Optimisation(
            updates=200,
            lr=1e-6,  # DAPO sec. 4.1
            warmup=20,  # DAPO sec. 4.1
            episodes_per_step=512,  # DAPO sec. 4.1: 16 steps an update
        ),
    ),
    Recipe(
        name="dapo_tstar",
        about="What T-STAR calls DAPO: GRPO with a sampling temperature that falls from 1 to 0.5 (app. B.3).",
        credit=Group(scale="group", eps=1e-6),
        objective=Objective(
            clip_low=0.2,  # T-STAR app. B.3: [0.8, 1.2]
            clip_high=0.2,  # T-STAR app. B.3
            aggregation="token-mean",  # DAPO eq. 12; T-STAR is silent
        ),
        sampler=Chains(
            prompts=32,  # T-STAR: batch 32
            rollouts=8,  # T-STAR: M
            temperature=Linear(1.0, 0.5),  # T-STAR app. B.3; the line is our reading
        ),
        optimisation=Optimisation(updates=160, lr=5e-6),  # T-STAR
    ),
    Recipe(
        name="gigpo",
        about="GRPO between episodes plus the same between turns taken from one state (arXiv:2505.10978).",
        credit=Anchor(
            gamma=0.95,  # GiGPO
            omega=1.0,  # GiGPO
            scale="none",  # GiGPO's scripts: the deviation on ALFWorld, 1 on Sokoban
            anchor="state",  # where observations name the state the two are the same
            invalid_penalty=0.1,  # GiGPO's scripts
        ),
        objective=Objective(
            clip_low=0.2,  # verl
            clip_high=0.2,  # verl
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # GiGPO
            kl=Kl(coef=0.01, estimator="k3", placement="loss"),  # GiGPO's scripts
        ),
        sampler=Chains(
            prompts=16,  # GiGPO's scripts (32 on Sokoban)
            rollouts=8,  # GiGPO: N
            reply_tokens=512,  # GiGPO's scripts
            format_penalty=0.0,  # the credit rule's own takes its place
        ),
        optimisation=Optimisation(
            updates=150,  # GiGPO's scripts
            lr=1e-6,  # GiGPO's scripts
            episodes_per_step=32,  # RAGEN; the scripts count turns, not episodes
        ),
    ),
    Recipe(
        name="starpo",
        about="RAGEN's StarPO, its PPO form: whole trajectories, sparse critic credit (arXiv:2504.20073).",
        credit=Gae(gamma=1.0, lam=1.0),  # RAGEN
        objective=Objective(
            clip_low=0.2,  # RAGEN, before StarPO-S
            clip_high=0.2,  # RAGEN, before StarPO-S
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # RAGEN
            entropy_coef=0.001,  # RAGEN
            kl=Kl(coef=0.001, estimator="k1", placement="loss"),  # RAGEN
        ),
        sampler=RAGEN_CHAINS,
        critic=Critic(lr=1e-5, clip=0.5),  # RAGEN; verl
        optimisation=Optimisation(
            updates=200,  # RAGEN
            lr=1e-6,  # RAGEN
            max_grad_norm=1.0,  # verl
            episodes_per_step=32,  # RAGEN
            passes=1,  # RAGEN: Online-1 was best
        ),
    ),
    Recipe(
        name="starpo_s",
        about="StarPO, stabilised: only the most uncertain starts, no KL, clip-higher (arXiv:2504.20073).",
        credit=Gae(gamma=1.0, lam=1.0),  # RAGEN
        objective=Objective(
            clip_low=0.2,  # RAGEN
            clip_high=0.28,  # RAGEN
            dual_clip=3.0,  # verl
            aggregation="token-mean",  # RAGEN
            entropy_coef=0.001,  # RAGEN
        ),
        sampler=RAGEN_CHAINS,
        selector=Uncertainty(rule="fraction", amount=0.25),  # RAGEN
        critic=Critic(lr=1e-5, clip=0.5),  # RAGEN; verl
        optimisation=Optimisation(updates=200, lr=1e-6, episodes_per_step=32),  # RAGEN
    ),
)


def recipe_named(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
