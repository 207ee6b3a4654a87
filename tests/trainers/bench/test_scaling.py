"""Cost model and simulation of training schedules: arithmetic by hand, published sizes, and real measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.bench.scaling.cluster import Cluster
from arboretum.trainers.bench.scaling.costs import PHASES, Costs, assumed_costs, decode_work, prefill_work
from arboretum.trainers.bench.scaling.devices import DEVICES, Assumptions
from arboretum.trainers.bench.scaling.episodes import (
    Lengths,
    TurnLength,
    read_lengths,
    scale_replies,
    shipped_lengths,
    write_lengths,
)
from arboretum.trainers.bench.scaling.fit import Point, fit_costs, relative_errors
from arboretum.trainers.bench.scaling.model_shape import PUBLISHED, ModelShape, find_shape
from arboretum.trainers.bench.scaling.simulate import Result, Schedule, simulate

SHAPE = ModelShape(body=10, head=4, layers=2, attention=3, parameters=14, keys=1)


def costs(**given: Mapping[str, float]) -> Costs:
    """Return costs that are 0 but for the given ones."""
    seconds = {phase: dict.fromkeys(names, 0.0) | dict(given.get(phase, {})) for phase, names in PHASES.items()}
    return Costs("test", seconds, measured=True)


def episode(*turns: tuple[int, int, float]) -> Lengths:
    return tuple(TurnLength(*turn) for turn in turns)


# ---------------------------------------------------------------------- sizes and work


def test_published_sizes_agree_with_the_model_cards() -> None:
    # Billions of parameters, and of those outside the embeddings, as the cards of Qwen2.5 state them.
    cards = {"0.5B": (0.49, 0.36), "1.5B": (1.54, 1.31), "3B": (3.09, 2.77), "7B": (7.61, 6.53)}
    cards |= {"14B": (14.7, 13.1), "32B": (32.5, 31.0)}
    for name, (parameters, body) in cards.items():
        shape = PUBLISHED[f"Qwen2.5-{name}"]
        assert shape.parameters / 1e9 == pytest.approx(parameters, rel=0.01)
        assert shape.body / 1e9 == pytest.approx(body, rel=0.01)


def test_sizes_of_a_config_equal_those_of_the_loaded_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from arboretum.agents.engines.local.load import load_model
    from arboretum.eval.bench.tiny import make_tiny_model
    from arboretum.trainers.bench.flops import ModelSize

    folder = make_tiny_model(tmp_path / "model", hidden=64, layers=3)
    shape, size = find_shape(str(folder)), ModelSize.of(load_model(folder, "cpu", None, None))
    assert (shape.body, shape.head, shape.layers, shape.attention) == (
        size.body,
        size.head,
        size.layers,
        size.attention,
    )


def test_work_of_decoding_and_of_prompts_equals_hand_arithmetic() -> None:
    # Keys and values of a token: 2 x 2 bytes x 2 layers x width 1. Weights: 14 x 2 bytes.
    assert decode_work(SHAPE, 3, 50) == {
        "step": 1,
        "layer": 2,
        "byte": 28 + 50 * 8,
        "flop": 2 * (10 * 3 + 4 * 3) + 4 * 2 * 3 * 50,
        "sequence": 3,
    }
    # Four tokens after five: each attends to the five and to those up to itself.
    assert prefill_work(SHAPE, 4, 5)["flop"] == 2 * (10 * 4 + 4) + 4 * 2 * 3 * (4 * 5 + 10)


def test_unknown_type_of_model_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"type 'mixtral' are not counted; give the folder of a model"):
        ModelShape.from_config({"model_type": "mixtral"})


# ---------------------------------------------------------------------- the fit


def test_fit_recovers_the_coefficients_of_exact_points() -> None:
    pytest.importorskip("scipy")
    true = costs(
        decode={"step": 1e-3, "byte": 2e-10, "sequence": 3e-5},
        prefill={"call": 2e-3, "flop": 1e-11},
        score={"flop": 2e-11, "layer": 1e-4},
        update={"flop": 3e-11, "parameter": 4e-9, "microbatch": 1e-3},
        turn={"turn": 5e-4},
    )
    points = []
    for phase, names in PHASES.items():
        for number in range(12):
            work = {
                name: float((number * (2 * n + 3)) % 7 + 1)
                * {"flop": 1e9, "byte": 1e7, "parameter": 1e6}.get(name, 1)
                for n, name in enumerate(names)
            }
            points.append(Point(phase, "", work, true.of(phase, work), held_out=number > 8))
    fitted = fit_costs("test", points)
    assert max(map(abs, relative_errors(fitted, points))) < 1e-6


# ---------------------------------------------------------------------- the simulation


def run(cluster: Cluster, schedule: Schedule, *lengths: Lengths, updates: int = 3, warmup: int = 1) -> Result:
    return simulate(cluster, schedule, lengths, updates=updates, warmup=warmup)


def test_one_episode_takes_the_sum_of_its_phases() -> None:
    cluster = Cluster(
        SHAPE, costs(decode={"step": 1.0}, prefill={"call": 2.0}, turn={"turn": 0.5}, update={"microbatch": 7.0})
    )
    result = run(cluster, Schedule(1, 1), episode((5, 3, 4.0), (1, 2, 0.25)))
    # Two prompts and turns of the harness, five tokens, both environments, one update.
    assert result.seconds == pytest.approx(2 * 2.5 + 5 + 4.25 + 7)
    assert result.sampling == pytest.approx(10 / 21.25)
    assert result.learning == pytest.approx(7 / 21.25)
    assert result.idle == pytest.approx(4.25 / 21.25)
    assert result.tokens == pytest.approx(5 / 21.25)


def test_sequences_share_steps_whose_time_depends_on_their_number() -> None:
    cluster = Cluster(SHAPE, costs(decode={"step": 1.0, "sequence": 0.5}, update={"microbatch": 1.0}))
    replies = [episode((0, 2, 0.0)), episode((0, 6, 0.0))]
    draws = simulate(cluster, Schedule(64, 1, slots=64), replies, updates=1, warmup=0)
    one = simulate(cluster, Schedule(64, 1, slots=1), replies, updates=1, warmup=0)
    # All together: two steps of 64 sequences and four of the longer half. One at a time: 1.5 s a token.
    import numpy as np

    rng = np.random.default_rng(0)
    longer = sum(rng.integers(2) for _ in range(64))
    assert draws.seconds == pytest.approx(2 * (1 + 32) + 4 * (1 + 0.5 * longer) + 1)
    assert one.seconds == pytest.approx(1.5 * (2 * (64 - longer) + 6 * longer) + 1)


def test_time_of_a_step_grows_with_the_context() -> None:
    cluster = Cluster(SHAPE, costs(decode={"byte": 1.0}, update={"microbatch": 1.0}))
    short = run(cluster, Schedule(1, 1), episode((0, 1, 0.0)))
    long = run(cluster, Schedule(1, 1), episode((100, 1, 0.0)))
    assert long.seconds - short.seconds == pytest.approx(100 * SHAPE.cache_bytes)


def test_inline_environments_stop_the_sampler_and_waiting_ones_do_not() -> None:
    cluster = Cluster(SHAPE, costs(decode={"step": 1.0}, update={"microbatch": 1.0}))
    turns = episode((0, 1, 10.0), (0, 1, 10.0))
    waiting = run(cluster, Schedule(8, 1), turns)
    inline = run(cluster, Schedule(8, 1, environments="inline"), turns)
    assert waiting.seconds == pytest.approx(1 + 10 + 1 + 10 + 1)
    assert inline.seconds >= 8 * 20


def test_sampling_one_update_ahead_hides_the_shorter_phase() -> None:
    cluster = Cluster(SHAPE, costs(decode={"step": 1.0}, update={"microbatch": 10.0}))
    reply = episode((0, 10, 0.0))
    synchronous = run(cluster, Schedule(4, 1, learners=1), reply, updates=6, warmup=2)
    ahead = run(cluster, Schedule(4, 1, learners=1, staleness=1), reply, updates=6, warmup=2)
    assert synchronous.seconds == pytest.approx(20) and synchronous.lag == 0
    assert ahead.seconds == pytest.approx(10) and ahead.lag == pytest.approx(1)
    assert ahead.idle == pytest.approx(0, abs=1e-9) and synchronous.idle == pytest.approx(0.5)


def test_episode_that_waits_for_its_environment_does_not_stop_other_replicas() -> None:
    """Four slots on two replicas, each with a second of decoding and ten of the environment for every episode."""
    cluster = Cluster(SHAPE, costs(decode={"step": 1.0}, update={"microbatch": 1.0}))
    schedule = Schedule(4, 2, learners=1, slots=2, staleness=4)
    assert run(cluster, schedule, episode((0, 1, 10.0)), updates=6, warmup=3).seconds == pytest.approx(11)


def test_updates_in_which_a_pipeline_fills_are_not_measured() -> None:
    cluster = Cluster(SHAPE, costs(decode={"step": 1.0}, update={"microbatch": 1.0}))
    schedule = Schedule(4, 1, learners=1, staleness=4)
    filled, filling = (simulate(cluster, schedule, [episode((0, 10, 0.0))], warmup=n) for n in (None, 0))
    assert filled.lag == 4 and filling.lag < 4


def test_lag_never_exceeds_the_staleness_and_shares_sum_to_one() -> None:
    device = DEVICES["H100"]
    cluster = Cluster(PUBLISHED["Qwen2.5-0.5B"], assumed_costs("H100", device, Assumptions()), device)
    for staleness in (0, 1, 3):
        schedule = Schedule(32, 3, learners=2, slots=8, staleness=staleness)
        result = simulate(cluster, schedule, shipped_lengths(), updates=4)
        assert result.lag <= staleness
        assert result.sampling + result.learning + result.transfer + result.idle == pytest.approx(1)
        assert result == simulate(cluster, schedule, shipped_lengths(), updates=4)


def test_devices_that_do_both_cannot_sample_ahead() -> None:
    with pytest.raises(ValueError, match="cannot sample ahead"):
        Schedule(4, 1, staleness=1)


# ---------------------------------------------------------------------- many devices


def test_sharded_learning_takes_the_longer_of_computing_and_transfers() -> None:
    device = DEVICES["H100"]
    shape = PUBLISHED["Qwen2.5-7B"]
    quick = Cluster(shape, costs(), device, Assumptions(latency=0.0), scores=1)
    # One micro-batch on 16 GPUs of two machines: weights are gathered for scoring, and gathered twice and reduced
    # once for the update, over the network.
    moved = 2 * shape.parameters * 15 / 16
    assert quick.learn_seconds([episode((10, 10, 0.0))] * 16, 16) == pytest.approx(4 * moved / 50e9)
    slow = Cluster(shape, costs(update={"microbatch": 100.0}), device, Assumptions(latency=0.0), scores=0)
    assert slow.learn_seconds([episode((10, 10, 0.0))] * 16, 16) == pytest.approx(100)


def test_large_model_takes_several_gpus_and_a_larger_one_is_refused() -> None:
    device = DEVICES["H100"]
    cluster = Cluster(PUBLISHED["Qwen2.5-32B"], assumed_costs("H100", device, Assumptions()), device)
    assert cluster.tensor_parallel(8000) == 2  # 65 GB of weights, and 16 conversations of 2.1 GB
    assert cluster.min_learners() == 11  # 32.8 billion weights of 16 bytes in 60 % of 80 GB
    big = ModelShape(body=10**12, head=1, layers=1, attention=1, parameters=10**12, keys=1)
    with pytest.raises(ConfigurationError, match=r"does not fit: its weights and 16 conversations take 2,000 GB"):
        Cluster(big, costs(), device).tensor_parallel(10)


# ---------------------------------------------------------------------- lengths and the command


def test_lengths_survive_a_file_and_replies_scale(tmp_path: Path) -> None:
    lengths = [episode((5, 2, 0.5), (1, 1, 0.25)), episode((3, 4, 0.0))]
    write_lengths(lengths, tmp_path / "lengths.json")
    assert read_lengths(tmp_path / "lengths.json") == lengths
    assert [turn.reply for turn in scale_replies(lengths, 10.0)[0]] == [20, 10]
    assert scale_replies(lengths, 0.01)[1][0].reply == 1
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(DataError, match=r"other\.json: no file of episode lengths"):
        read_lengths(tmp_path / "other.json")
    for empty in ("[]", "[[]]"):
        (tmp_path / "other.json").write_text(empty)
        with pytest.raises(DataError, match=r"other\.json: has no episode"):
            read_lengths(tmp_path / "other.json")
    with pytest.raises(
        ConfigurationError, match=r"no episodes\.jsonl; give the folder of a run of `arboretum eval`"
    ):
        read_lengths(tmp_path)
    (tmp_path / "episodes.jsonl").write_text('{"turns": [{"reply": "Up"}]}\n')
    with pytest.raises(ConfigurationError, match=r"no complete episode has tokens; give a run of a model"):
        read_lengths(tmp_path)


def test_episodes_that_broke_off_are_no_lengths(tmp_path: Path) -> None:
    turn = {"loss_mask": [0, 0, 1], "env_seconds": 0.5}
    lines = [{"turns": [turn], "error": "the server is gone"}, {"turns": [turn, turn], "error": None}]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_lengths(tmp_path) == [episode((2, 1, 0.5), (2, 1, 0.5))]


def test_plan_fits_80_columns_and_says_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arboretum.trainers.bench.scaling.command.PAUSE", 0.0)
    with pytest.raises(SystemExit) as ended:
        main(["scaling", "plan", "Qwen2.5-1.5B", "--gpus", "4", "16", "--batch", "16", "--reply-scale", "4"])
    assert not ended.value.code
    printed, progress = capsys.readouterr()
    assert progress.splitlines()[:2] == ["simulated: in turn, 4 GPUs", "simulated: split, 4 GPUs"]
    assert max(map(len, printed.splitlines())) <= 80 and "…" not in printed
    for word in ("in turn", "split", "one ahead", "four ahead", "not measured"):
        assert word in printed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--gpu", "H10"], "unknown GPU 'H10'"),
        (["--batch", "0"], "--batch must be at least 1, not 0"),
        (["--bandwidth", "1.5"], "bandwidth must be above 0 and at most 1"),
        (["--reply-scale", "0"], "--reply-scale must be above 0"),
        (["--gpus", "1"], "needs at least 3 GPUs"),
        (["Qwen2.5-8B"], "unknown model 'Qwen2.5-8B'"),
    ],
)
def test_wrong_option_of_plan_is_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["scaling", "plan", *options])
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        (".", "is a folder; name a file"),
        ("x/y.json", "x: is no folder"),
        ("kept.json", "exists; name another file, or delete this one"),
    ],
)
def test_file_that_cannot_be_written_is_refused_before_measuring(
    out: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.json").write_text("kept")
    with pytest.raises(SystemExit) as ended:
        main(["scaling", "measure", "--out", str(tmp_path / out)])
    assert ended.value.code == 2 and sentence in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "kept.json").read_text() == "kept"


@pytest.mark.heavy
def test_measured_costs_predict_a_whole_training_step() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    from arboretum.trainers.bench.scaling.full_step import compare_step
    from arboretum.trainers.bench.scaling.measure import Size, measure_points

    points = list(measure_points((Size(128, 2), Size(256, 3)), ((1, 160), (16, 160)), rounds=1))
    step = compare_step(fit_costs("cpu", points), updates=4)
    # A busy machine doubles CPU times.
    assert 0.4 < step.predicted / step.measured < 2.5
