"""The shipped models: round trips of their tokenizers, their architecture, and reproducible pretraining."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.local.load import load_model, load_tokenizer
from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.episode import Episode
from arboretum.agents.tokens.chat import ChatTokens
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env
from arboretum.eval.suite import Entry
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, ExpertConfig
from arboretum.trainers.data.episodes import from_episodes
from arboretum.trainers.data.microbatches import make_microbatches
from arboretum.trainers.sampling.demonstrations import collect_demonstrations
from arboretum.trainers.sapling import pretraining
from arboretum.trainers.sapling.evaluation import evaluate, scores_table
from arboretum.trainers.sapling.families import (
    BLOCKSWORLD,
    FAMILIES,
    FROZENLAKE,
    GRIDS,
    SOKOBAN,
    THOUGHTS,
    find_family,
)
from arboretum.trainers.sapling.family import Family, Source, Stage
from arboretum.trainers.sapling.imitation import joint_loss, with_observations
from arboretum.trainers.sapling.pretraining import SaplingConfig, SaplingTrainer
from arboretum.trainers.sapling.tokenizer import ASSISTANT, BLOCKSWORLD_PIECES, make_tokenizer

TOKENIZER = make_tokenizer()
BLOCKS_TOKENIZER = make_tokenizer(2048, BLOCKSWORLD_PIECES)


def small(family: Family) -> Family:
    """Return a family with two stages of seconds, the second with noise."""
    sources = family.stages[0].sources

    def shortened(episodes: int) -> tuple[Source, ...]:
        return tuple(replace(source, episodes=episodes // len(sources) + 2) for source in sources)

    stages = (
        Stage(shortened(192), chunks=2, validations=2),
        replace(
            family.stages[-1],
            sources=shortened(64),
            expert=replace(family.stages[-1].expert, noise=0.5),
            chunks=2,
            validations=1,
        ),
    )
    return replace(family, stages=stages, batch=16, layers=2, width=32)


def trainer_of(out: Path, family: Family) -> SaplingTrainer:
    """Return a trainer without validation episodes, which would take most of the time."""
    torch.set_num_threads(1)
    trainer = SaplingTrainer(SaplingConfig(out, family))
    trainer.validate = dict  # type: ignore[method-assign]
    return trainer


# Characters unassigned in Python's Unicode version ("Cn") may be composed by a tokenizer with a newer version.
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cn"])))
@example("\uf900")  # composes to another character
@example("e\u0301")
@example("P\u0301")  # "P" is a token of its own, which composes with nothing
def test_decoding_encoded_text_returns_canonically_equivalent_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=True)
    back = TOKENIZER.decode(ids)
    assert unicodedata.normalize("NFC", back) == unicodedata.normalize("NFC", text)
    assert back == text or not text.isascii()


def test_each_cell_of_a_board_is_one_token() -> None:
    for env in (FROZENLAKE, SOKOBAN):
        observation, _ = make_env(env.id, **env.kwargs).reset(seed=3)
        assert len(TOKENIZER.encode(observation, add_special_tokens=False)) == len(observation)


def test_phrases_of_environments_are_few_tokens() -> None:
    observation, _ = make_env("TextBlocksworld-v0", blocks=4).reset(seed=1)
    assert len(TOKENIZER.encode(observation, add_special_tokens=False)) < len(observation) / 4
    reply = make_dialogue("no_think").demonstrate("", "Right || Up")
    assert len(TOKENIZER.encode(reply, add_special_tokens=False)) == 5


def test_shipped_tokenizer_equals_made_tokenizer() -> None:
    shipped, made = load_tokenizer("sapling"), GRIDS.tokenizer(GRIDS.context)
    assert shipped.get_vocab() == made.get_vocab() and shipped.chat_template == made.chat_template
    for text in ("<answer>Left || Down</answer>", "#√_P\n wörld", "Actions left: 10."):
        assert shipped.encode(text) == TOKENIZER.encode(text)
    ChatTokens(shipped)  # raises unless the template is append-only


def test_template_of_grids_tells_replies_with_one_action_from_those_with_several() -> None:
    env, tokenizer = make_env("TextSokoban-v0"), GRIDS.tokenizer(GRIDS.context)
    observation, _ = env.reset(seed=0)
    prompts = {}
    for actions in (1, 5):
        dialogue = make_dialogue("no_think", {"max_actions_per_turn": actions})
        messages = [
            {"role": "system", "content": dialogue.system(env)},
            {"role": "user", "content": dialogue.user(observation, [])},
        ]
        prompts[actions] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompts[1] == "Reply with the action" + prompts[5]
    assert "Sokoban" not in prompts[1]


def test_sources_with_dialogues_of_their_own_demonstrate_other_levels(tmp_path: Path) -> None:
    """The same environment in two dialogues: replies of one action and of several, and no level twice."""
    one_action = DialogueConfig("no_think", {"max_actions_per_turn": 1})
    sources = (Source(SOKOBAN, 32), Source(SOKOBAN, 32, dialogue=one_action))
    family = replace(small(GRIDS), stages=(Stage(sources, chunks=1, validations=1),))
    trainer = trainer_of(tmp_path, family)
    seen: list[list[Episode]] = []
    collect = pretraining.collect_demonstrations
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pretraining, "collect_demonstrations", lambda *a, **k: seen.append(collect(*a, **k)) or seen[-1]
        )
        list(trainer.run())
    several, single = seen
    assert max(len(turn.moves) for episode in several for turn in episode.turns) > 1
    assert {len(turn.moves) for episode in single for turn in episode.turns} == {1}
    assert not {episode.task for episode in several} & {episode.task for episode in single}


def test_blocks_are_one_token_each_in_facts_actions_and_refusals() -> None:
    """The token of a block is the same everywhere, so that it can be copied from a fact into an action."""
    env = make_env("TextBlocksworld-v0", blocks=5)
    observation, _ = env.reset(seed=1)
    refusal, *_ = env.step("stack the red block on top of the blue block")
    for text in (observation, refusal, *env.admissible_actions(), *env.expert_actions()):
        ids = BLOCKS_TOKENIZER.encode(text, add_special_tokens=False)
        pieces = [BLOCKS_TOKENIZER.decode([i]) for i in ids]
        assert "".join(pieces) == text
        assert sum(piece.startswith("the ") and piece.endswith(" block") for piece in pieces) == text.count(
            " block"
        )
        # The words that are no piece are single letters.
        assert not any(len(piece) == 1 and piece.isalpha() for piece in pieces)
    assert len(BLOCKS_TOKENIZER.encode(observation, add_special_tokens=False)) < 45


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_shipped_model_is_small_and_has_the_architecture_of_its_family(family: Family) -> None:
    folder = Path(model_source(family.model))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3e6
    model = load_model(family.model, "cpu", "float32", None)
    assert model.config.model_type == "qwen2" and model.config.num_hidden_layers == family.layers
    assert model.config.hidden_size == family.width
    assert model.config.max_position_embeddings == family.context
    tokenizer = load_tokenizer(family.model)
    assert tokenizer.get_vocab() == family.tokenizer(family.context).get_vocab()


def test_families_are_found_by_name() -> None:
    assert {find_family(name).name for name in FAMILIES} == set(FAMILIES)
    with pytest.raises(ConfigurationError, match="blocksworld"):
        find_family("blocks")


# ---------------------------------------------------------------------- loss


def demonstrations(count: int = 6) -> list[Episode]:
    return collect_demonstrations(
        Entry("b", "TextBlocksworld-v0", {"blocks": 3}, split="train"),
        count,
        tokenizer=BLOCKS_TOKENIZER,
        context=2048,
        dialogue=make_dialogue("plain"),
        expert=ExpertConfig(noise=0.4, learn_noise=False),
    )


def test_observations_after_the_first_join_the_loss_and_random_actions_stay_outside() -> None:
    reply_start = BLOCKS_TOKENIZER.convert_tokens_to_ids(ASSISTANT)
    for episode in demonstrations():
        joined = with_observations(episode, reply_start)
        assert joined.turns[0] == episode.turns[0]
        for before, after in zip(episode.turns[1:], joined.turns[1:], strict=True):
            start = before.token_ids.index(reply_start) + 1
            assert set(after.loss_mask[:start]) == {1}
            assert after.loss_mask[start:] == before.loss_mask[start:]
            assert before.observation in BLOCKS_TOKENIZER.decode(after.token_ids[:start])


def test_joint_loss_is_the_mean_over_replies_plus_the_weighted_mean_over_observations() -> None:
    """Scores that are constant on each kind of token make both means known."""
    reply_start = BLOCKS_TOKENIZER.convert_tokens_to_ids(ASSISTANT)
    episodes = [with_observations(episode, reply_start) for episode in demonstrations()]
    rollouts = from_episodes(episodes, list(range(len(episodes))))
    is_reply = []
    for episode in episodes:
        for turn in episode.turns:
            start = turn.token_ids.index(reply_start) + 1
            is_reply += [place >= start for place, mask in enumerate(turn.loss_mask) if mask]
    loss_of = joint_loss(rollouts, reply_start, 0.25)
    total, parts = 0.0, []
    for micro in make_microbatches(rollouts, None, 512):
        kinds = torch.zeros(len(micro.targets), dtype=torch.bool)
        for copy, source in zip(micro.copies, micro.copy_source, strict=True):
            kinds[source] = is_reply[copy]
        loss, sums = loss_of(micro, (torch.where(kinds, -2.0, -3.0), torch.zeros(0)))
        total += float(loss)
        parts.append(sums)
    assert total == pytest.approx(2.0 + 0.25 * 3.0, rel=1e-5)
    assert sum(part["loss"] for part in parts) == pytest.approx(2.0, rel=1e-5)
    assert sum(part["observation_loss"] for part in parts) == pytest.approx(3.0, rel=1e-5)


# ---------------------------------------------------------------------- pretraining


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, id=name, marks=[] if name == "grids" else [pytest.mark.heavy])
        for name, family in FAMILIES.items()
    ],
)
def test_interrupted_pretraining_resumes_to_the_same_weights(family: Family, tmp_path: Path) -> None:
    family = small(family)
    whole = trainer_of(tmp_path / "whole", family)
    records = list(whole.run())
    for number in range(len(records) - 1):
        run = trainer_of(tmp_path / "parts", family).run()
        assert next(run) == records[number]
        run.close()
    resumed = trainer_of(tmp_path / "parts", family)
    assert list(resumed.run()) == records[-1:]
    assert resumed.history == records
    phase = resumed.activity.phase
    assert phase is not None and (phase.done, phase.total, phase.unit) == (family.steps, family.steps, "steps")
    weights = [load_model(trainer.export(), "cpu", "float32", None).state_dict() for trainer in (whole, resumed)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not (tmp_path / "parts" / "checkpoints").exists()
    # The uniform distribution over V tokens has a loss of ln(V) per token, 5.9 for V = 348.
    if family.start is None:
        assert records[0]["loss"] < math.log(len(whole.tokenizer))
    assert [record["step"] for record in records][-1] == family.steps
    assert [record["tokens"] for record in records] == sorted(record["tokens"] for record in records)


def test_family_that_continues_a_model_begins_with_its_weights(tmp_path: Path) -> None:
    trainer = SaplingTrainer(SaplingConfig(tmp_path, THOUGHTS))
    first = load_model("sapling", "cpu", "float32", None).state_dict()
    assert trainer.model.dtype == torch.float32
    assert all(torch.equal(value, first[name]) for name, value in trainer.model.state_dict().items())
    assert trainer.tokenizer.get_vocab() == load_tokenizer("sapling").get_vocab()


def test_checkpoint_of_another_seed_is_not_resumed(tmp_path: Path) -> None:
    family = small(BLOCKSWORLD)
    run = trainer_of(tmp_path, family).run()
    next(run)
    run.close()
    with pytest.raises(ConfigurationError, match="another sapling or seed"):
        SaplingTrainer(SaplingConfig(tmp_path, family, seed=1))


def test_evaluation_compares_with_random_actions_and_the_expert(tmp_path: Path) -> None:
    family = replace(
        small(BLOCKSWORLD),
        held_out={"3 blocks": EnvConfig("TextBlocksworld-v0", {"blocks": 3, "max_steps": 6})},
        evaluation_tasks=16,
    )
    (scores,) = evaluate(trainer_of(tmp_path, family))
    assert scores.tasks == 16 and scores.expert.value == 1.0 and scores.random.value < 0.6
    assert scores.greedy.value == 0.0  # untrained
    table = scores_table([scores])
    assert table.row_count == 1 and [column.header for column in table.columns][2:] == [
        "random",
        "sampled",
        "greedy",
        "expert",
    ]


@pytest.mark.parametrize(("name", "reason"), [("notes.txt", "exists"), ("model.safetensors", "holds a model")])
def test_folder_with_other_content_is_rejected_and_unchanged(name: str, reason: str, tmp_path: Path) -> None:
    from rich.console import Console

    from arboretum.trainers.sapling.command import make_sapling

    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"{reason}; choose another --out"):
        make_sapling("grids", tmp_path, console=Console(quiet=True))
    assert (tmp_path / name).read_text() == "mine"


def test_interruption_before_the_first_checkpoint_does_not_promise_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    from arboretum.trainers.sapling.command import make_sapling

    def interrupt(self: SaplingTrainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SaplingTrainer, "run", interrupt)
    text = StringIO()
    assert make_sapling("grids", tmp_path / "sapling", console=Console(file=text, width=200)) == 130
    assert "there is no checkpoint yet, so the same command starts again." in text.getvalue()
