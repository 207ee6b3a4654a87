"""All policies of a study, and its reference agents, have the same limits."""

from __future__ import annotations

import pytest

from arboretum.agents.reference import RandomAgent
from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.config.settings import EnvConfig
from arboretum.trainers.study import evaluation
from arboretum.trainers.study.definition import Study, StudyEnv
from arboretum.trainers.study.evaluation import evaluate_reference

SOKOBAN = StudyEnv(EnvConfig("TextSokobanEasy-v0"))


def test_recipes_with_other_limits_are_refused_until_a_setting_of_all_says_which() -> None:
    """The defaults of `t_star` are 20 turns and 20 actions, those of RAGEN's recipes 5 and 10."""
    study = Study("mine", "", "sapling", {"Sokoban": SOKOBAN}, {"grpo": {}, "t_star": {}}, dialogue="no_think")
    message = r"'Sokoban': max_turns is 5 in grpo and 20 in t_star, .* set sampler\.max_turns for all recipes"
    with pytest.raises(ConfigurationError, match=message):
        study.check()
    settings = {"sampler.max_turns": 5, "sampler.max_actions": 10, "sampler.max_actions_per_turn": 5}
    alike = Study(
        "mine",
        "",
        "sapling",
        {"Sokoban": SOKOBAN},
        {"grpo": {}, "t_star": {}},
        dialogue="no_think",
        settings={**settings, "sampler.reply_tokens": 24},
    )
    alike.check()


@pytest.mark.parametrize(("max_turns", "expected"), [(50, 20), (7, 7)])
def test_reference_agents_take_no_more_steps_than_the_environment_allows(
    max_turns: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty turns of up to five moves are more than the 20 steps that a model has, too."""
    env = StudyEnv(
        EnvConfig("TextSokobanEasy-v0"), dialogue_settings={"max_actions": None, "max_actions_per_turn": 1}
    )
    study = Study(
        "mine",
        "",
        "sapling",
        {"Sokoban": env},
        {"grpo": {}},
        dialogue="no_think",
        settings={"sampler.max_turns": max_turns},
        tasks=4,
    )
    seen = []
    play = evaluation.play
    monkeypatch.setattr(
        evaluation, "play", lambda *given, **options: [seen.append(e) or e for e in play(*given, **options)]
    )
    evaluate_reference(study, "Sokoban", RandomAgent())
    assert max(one.steps for one in seen) == expected
