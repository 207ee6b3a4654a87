"""The shipped model: round trips of its tokenizer, its architecture, and reproducible pretraining."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.local.load import load_model, load_tokenizer
from arboretum.agents.engines.shipped_models import model_source
from arboretum.agents.tokens.chat import ChatTokens
from arboretum.envs.registry import make_env
from arboretum.trainers.sapling.pretraining import FROZENLAKE, SOKOBAN, SaplingConfig, SaplingTrainer, Stage
from arboretum.trainers.sapling.tokenizer import make_tokenizer

TOKENIZER = make_tokenizer()


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
    shipped = load_tokenizer("sapling")
    assert shipped.get_vocab() == TOKENIZER.get_vocab() and shipped.chat_template == TOKENIZER.chat_template
    for text in ("<answer>Left || Down</answer>", "#√_P\n wörld", "Actions left: 10."):
        assert shipped.encode(text) == TOKENIZER.encode(text)
    ChatTokens(shipped)  # raises unless the template is append-only


def test_shipped_model_is_small_and_has_the_default_architecture() -> None:
    folder = Path(model_source("sapling"))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3e6
    model = load_model("sapling", "cpu", "float32", None)
    config = SaplingConfig(Path())
    assert model.config.model_type == "qwen2" and model.config.num_hidden_layers == config.layers
    assert sum(weight.numel() for weight in model.parameters()) < 5e5


def test_pretraining_is_reproducible_and_lowers_the_loss(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    config = SaplingConfig(
        tmp_path / "one",
        stages=(Stage(256, 64, chunks=2), Stage(64, 64, noise=0.5, chunks=1)),
        validations=1,
    )
    records, weights = [], []
    for out in ("one", "two"):
        trainer = SaplingTrainer(replace(config, out=tmp_path / out))
        # Validation episodes would take most of the time.
        trainer.validate = lambda tasks=0: {}  # type: ignore[method-assign]
        records.append(list(trainer.run()))
        weights.append(load_model(trainer.export(), "cpu", "float32", None).state_dict())
    assert records[0] == records[1]
    assert [record["step"] for record in records[0]] == [4, 6]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    # The uniform distribution over the vocabulary has a loss of ln(348) = 5.9 per token.
    assert records[0][0]["loss"] < 5.9


def test_folder_with_other_content_is_rejected_and_unchanged(tmp_path: Path) -> None:
    from rich.console import Console

    from arboretum.envs.errors import ConfigurationError
    from arboretum.trainers.sapling.command import make_sapling

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="holds no model"):
        make_sapling(tmp_path, console=Console(quiet=True))
    assert (tmp_path / "notes.txt").read_text() == "mine"
