"""The echo-trap monitor raises an alarm for a collapse, in time, and for nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.trainers.monitor import Alarm, Monitor, current_lineage

Metrics = dict[str, float]


def history(updates: int, **curves: object) -> list[Metrics]:
    """Return metrics of some updates; each curve is a number, or a function of the update."""
    return [
        {"update": t, **{k: float(c(t) if callable(c) else c) for k, c in curves.items()}}  # type: ignore[arg-type]
        for t in range(1, updates + 1)
    ]


def steady(updates: int, **changes: object) -> list[Metrics]:
    """Return metrics of a run without collapse, with some curves replaced."""
    names = {"return": "return", "std": "group_return_std", "entropy": "entropy", "norm": "grad_norm"}
    curves: dict[str, object] = {"return": 0.3, "std": 0.4, "entropy": 1.5, "norm": 0.8, **changes}
    return history(updates, **{names[key]: value for key, value in curves.items()})


def all_alarms(monitor: Monitor, records: list[Metrics]) -> list[Alarm]:
    return [alarm for t in range(1, len(records) + 1) for alarm in monitor.alarms(records[:t])]


def test_steady_run_raises_no_alarm() -> None:
    wobble = {
        "return": lambda t: 0.3 + 0.05 * math.sin(t),
        "std": lambda t: 0.4 + 0.05 * math.cos(t),
        "entropy": lambda t: 1.5 + 0.2 * math.sin(3 * t),
        "norm": lambda t: 0.8 + 0.4 * math.sin(7 * t),
    }
    assert all_alarms(Monitor(), steady(120, **wobble)) == []


def test_improving_run_raises_no_alarm() -> None:
    """With binary success p the deviation is sqrt(p (1 - p)): it falls because the policy solves its tasks."""
    p = lambda t: 0.5 + 0.49 * min(t / 60, 1.0)  # noqa: E731
    records = steady(80, **{"return": p, "std": lambda t: math.sqrt(p(t) * (1 - p(t)))})
    assert all_alarms(Monitor(), records) == []


def test_echo_trap_is_detected_before_the_mean_return_falls() -> None:
    """As in RAGEN: deviation and entropy decay from update 40 on, and the mean breaks down at update 80."""
    decay = lambda t: 0.95 ** max(t - 40, 0)  # noqa: E731
    records = steady(
        100,
        **{
            "return": lambda t: 0.3 if t < 80 else 0.05,
            "std": lambda t: 0.4 * decay(t),
            "entropy": lambda t: 1.5 * decay(t),
            "norm": lambda t: 0.8 if t < 85 else 20.0,
        },
    )
    alarms = all_alarms(Monitor(), records)
    first = {alarm.sign: alarm for alarm in reversed(alarms)}
    assert 45 < first["echo-trap"].update < 70
    assert first["gradient"].update == 85
    assert first["gradient"].evidence == {"norm": 20.0, "median": 0.8}
    trap = first["echo-trap"].evidence
    assert trap["deviation"] < 0.5 * trap["peak"] or trap["entropy"] < 0.75
    assert "ECHO TRAP" in str(first["echo-trap"]) and str(first["echo-trap"]).startswith("update ")
    # Each sign raises one alarm, not one at every update.
    assert sum(alarm.sign == "echo-trap" for alarm in alarms) == 1


def test_falling_entropy_alone_is_no_echo_trap() -> None:
    alarms = all_alarms(Monitor(), steady(60, entropy=lambda t: 1.5 * 0.95**t))
    assert [alarm.sign for alarm in alarms] == ["entropy"]


def test_falling_entropy_of_a_policy_that_improves_raises_no_alarm() -> None:
    p = lambda t: 0.3 + 0.4 * min(t / 40, 1.0)  # noqa: E731
    curves = {"return": p, "std": lambda t: math.sqrt(p(t) * (1 - p(t))), "entropy": lambda t: 1.5 * 0.96**t}
    assert all_alarms(Monitor(), steady(60, **curves)) == []
    # The gain before the entropy fell does not explain it.
    late = {**curves, "entropy": lambda t: (1.4 + 0.1 * min(t / 40, 1.0)) * 0.96 ** max(t - 40, 0)}
    assert [alarm.sign for alarm in all_alarms(Monitor(), steady(100, **late))] == ["entropy"]
    # Updates that took no step have no entropy, and are left out for the returns, too.
    records = steady(60, **curves)
    for record in records[::7]:
        del record["entropy"]
    assert all_alarms(Monitor(), records) == []


def test_jump_of_entropy_raises_an_alarm() -> None:
    alarms = all_alarms(Monitor(window=5), steady(40, entropy=lambda t: 1.0 if t < 20 else 4.0))
    assert [alarm.sign for alarm in alarms] == ["entropy-jump"]


def test_groups_with_equal_returns_raise_an_alarm_after_one_window() -> None:
    records = steady(40, std=lambda t: 0.4 if t <= 15 else 0.01)
    silence = next(alarm for alarm in all_alarms(Monitor(), records) if alarm.sign == "silence")
    assert silence.update == 25  # the tenth silent update in a row


def test_groups_with_equal_returns_of_a_solved_environment_raise_no_alarm() -> None:
    p = lambda t: min(0.3 + 0.05 * t, 1.0)  # noqa: E731
    records = steady(40, **{"return": p, "std": lambda t: math.sqrt(p(t) * (1 - p(t)))})
    assert all_alarms(Monitor(), records) == []


@pytest.mark.parametrize(
    ("options", "sign", "fatal"),
    [
        ({}, "echo-trap", False),
        ({"action": "stop"}, "echo-trap", True),
        ({"action": "rollback"}, "echo-trap", True),
        ({"action": "stop"}, "silence", True),
        ({"action": "stop"}, "gradient", False),
        ({"action": "stop", "fatal": ("silence", "gradient")}, "silence", True),
        ({"action": "stop", "fatal": ("silence", "gradient")}, "echo-trap", False),
    ],
)
def test_fatal_signs_depend_on_action_and_setting(options: dict[str, Any], sign: Any, fatal: bool) -> None:
    assert Monitor(**options).is_fatal([Alarm(3, sign, {})]) is fatal


def test_updates_that_a_rollback_undid_are_no_evidence() -> None:
    """Updates 21 to 30 fade; update 30 is rolled back to 20; from then on all is as before."""
    fade = {t: 0.8 ** max(t - 20, 0) if t <= 30 else 1.0 for t in range(1, 61)}
    records = steady(60, std=lambda t: 0.4 * fade[t], entropy=lambda t: 1.5 * fade[t])
    monitor = Monitor(window=5)
    assert {alarm.sign for alarm in monitor.all_alarms(records)} >= {"echo-trap", "entropy"}
    trap = next(alarm for alarm in monitor.all_alarms(records) if alarm.sign == "echo-trap")
    records[29]["rolled_back_to"] = 20.0
    assert [record["update"] for record in current_lineage(records[:32])] == [*range(1, 21), 31, 32]
    found = monitor.all_alarms(records)
    assert trap in found and all(alarm.update <= 30 for alarm in found)


def test_penalties_that_drown_the_returns_raise_one_alarm_after_a_window() -> None:
    """Refused commands cost 0.1 each: a dozen of them more or less outweigh whether the task was solved."""
    records = steady(30, std=0.35)
    drowned = [{**record, "group_penalty_std": 0.6} for record in records]
    (alarm,) = all_alarms(Monitor(), drowned)
    assert (alarm.update, alarm.sign) == (10, "penalty")
    assert alarm.evidence == pytest.approx({"deviation": 0.6, "of returns": 0.35})
    assert "sampler.format_penalty" in str(alarm)
    assert all_alarms(Monitor(), [{**record, "group_penalty_std": 0.2} for record in records]) == []
    assert all_alarms(Monitor(penalty=2.0), drowned) == []
    # Training scales returns, and not penalties.
    assert all_alarms(Monitor(), [{**record, "reward_scale": 10.0} for record in drowned]) == []
    small = [{**record, "group_penalty_std": 0.2, "reward_scale": 0.1} for record in records]
    assert all_alarms(Monitor(), small)[0].evidence == pytest.approx({"deviation": 0.2, "of returns": 0.035})
    # It says nothing against the policy, so that a rollback may return to this update.
    assert Monitor().is_sound(drowned) and not Monitor(fatal=("penalty",)).is_sound(drowned)


def test_updates_that_lack_a_metric_are_skipped_for_it() -> None:
    """Updates whose steps were all skipped have no entropy and no gradient norm."""
    records = [{"update": t, "return": 0.0, "group_return_std": 0.0} for t in range(1, 50)]
    assert all_alarms(Monitor(), records) == []


def test_empty_history_raises_no_alarm() -> None:
    assert Monitor().alarms([]) == []


@pytest.mark.parametrize(
    ("setting", "value"), [("action", "soon"), ("fatal", ("trap",)), ("lr_factor", 2.0), ("window", 1)]
)
def test_impossible_value_is_rejected_with_the_name_of_its_setting(setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"monitor\.{setting}"):
        Monitor(**{setting: value}).check()
