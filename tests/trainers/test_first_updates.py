"""The first updates of the shipped studies reproduce recorded metrics.

`golden/first_updates.json` holds the metrics of the validation before training and of the first two updates of
seed 0, by study, recipe and environment. A change of environments, dialogues, sampling, credit, objectives or the
optimizer that alters any number of a training run fails here. The model computes in float64: in float32 processors
round differently, and sometimes another token is sampled.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

for module in ("torch", "transformers", "accelerate"):
    pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.study.definition import Trial
from arboretum.trainers.study.parsing import load_study

RECORDED = json.loads((Path(__file__).parent / "golden" / "first_updates.json").read_text(encoding="utf-8"))
QUICK = "first-steps/grpo on Lake 5x5"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[] if key == QUICK else pytest.mark.heavy) for key in RECORDED]
)
def test_first_updates_reproduce_recorded_metrics(key: str, tmp_path: Path) -> None:
    from arboretum.trainers.trainer import Trainer

    study_name, _, trial_name = key.partition("/")
    recipe, _, env = trial_name.partition(" on ")
    trainer = Trainer(load_study(study_name).config(Trial(env, recipe, seed=0), tmp_path))
    trainer.optimizer.policy.model.double()
    records = [record.metrics for record in itertools.islice(trainer.run(), len(RECORDED[key]))]
    trainer.close()
    for found, expected in zip(records, RECORDED[key], strict=True):
        # The absolute tolerance concerns approx_kl, the mean of tiny squares of float32 differences.
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-7)
