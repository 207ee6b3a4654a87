"""One flipped bit in an exported model or a checkpoint is refused before it is loaded."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.local.load import load_model, load_tokenizer
from arboretum.agents.engines.shipped_models import model_source
from arboretum.envs.checksums import SUMS_FILE, verify_checksums, write_checksums
from arboretum.envs.errors import DataError
from arboretum.trainers.checkpoints.export import export_checkpoint, export_model
from arboretum.trainers.checkpoints.store import Checkpoints, verify_checkpoint
from arboretum.trainers.trainer import Trainer
from support.mutations import damage, files_below
from support.training import Make, finish

MUTATIONS = 60


@pytest.fixture
def sapling(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_source("sapling"), tmp_path / "sapling"))


def test_shipped_model_has_checksums() -> None:
    assert (Path(model_source("sapling")) / SUMS_FILE).is_file()


def test_one_flipped_bit_of_the_weights_is_refused(sapling: Path) -> None:
    path = sapling / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"model\.safetensors: is damaged .* restore it from a copy"):
        load_model(sapling, "cpu", "float32", None)
    with pytest.raises(DataError, match="delete SHA256SUMS beside it"):
        load_tokenizer(sapling)
    (sapling / SUMS_FILE).unlink()
    assert load_model(sapling, "cpu", "float32", None)


def test_no_mutation_of_an_exported_model_is_loaded(sapling: Path, tmp_path: Path) -> None:
    model = tmp_path / "exported"
    export_model(load_model(sapling, "cpu", "float32", None), load_tokenizer(sapling), model)
    rng = random.Random(0)
    for _ in range(MUTATIONS):
        with damage(rng.choice(files_below(model)), rng) as kind, pytest.raises(DataError):
            model_source(model)
            pytest.fail(kind)
    assert load_model(model, "cpu", "float32", None)


def test_no_mutation_of_a_checkpoint_is_resumed_or_exported(run_of: Make, tmp_path: Path) -> None:
    config = run_of("grpo", {"optimization.updates": 2}, checkpoint_every=1)
    finish(Trainer(config))
    last = Checkpoints(config.out / "checkpoints").last
    assert last is not None
    rng = random.Random(0)
    for _ in range(MUTATIONS):
        with damage(rng.choice(files_below(last)), rng) as kind, pytest.raises(DataError):
            verify_checkpoint(last)
            pytest.fail(kind)
    for name in ("trainer.pt", "model/model.safetensors", "metrics.jsonl"):
        with damage(last / name, rng):
            with pytest.raises(DataError, match=r"is damaged .* restore it from a copy"):
                Trainer(config, resume=True)
            with pytest.raises(DataError, match="is damaged"):
                export_checkpoint(config.out, "last", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    exported = export_checkpoint(config.out, "last", tmp_path / "exported")
    assert verify_checksums(exported, "") >= 5


def test_checkpoint_without_a_part_of_the_state_is_refused(run_of: Make) -> None:
    """As one that an earlier version wrote."""
    config = run_of("grpo", {"optimization.updates": 2}, checkpoint_every=1)
    finish(Trainer(config))
    last = Checkpoints(config.out / "checkpoints").last
    assert last is not None
    state = torch.load(last / "trainer.pt", weights_only=True)
    del state["learner"]["preferences"]
    torch.save(state, last / "trainer.pt")
    write_checksums(last)
    with pytest.raises(DataError, match=r"trainer\.pt lacks preferences; the version of Arboretum"):
        Trainer(config, resume=True)
