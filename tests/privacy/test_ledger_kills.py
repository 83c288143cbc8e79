"""Processes killed at any point release nothing without a charge and no second answer."""

from collections import Counter

import pytest

from tests.privacy.ledger_campaign import POINTS, campaign

N_KILLS = 40
N_KILLS_SLOW = 1000


def test_killed_processes_never_release_without_a_charge(tmp_path):
    outcome = campaign(tmp_path, kills=N_KILLS, seed=1, words=("released", "refused", "failing"))

    assert outcome.errors == []
    assert outcome.kills >= N_KILLS
    assert set(outcome.self_kills) <= set(POINTS)
    assert sum(outcome.self_kills.values()) < outcome.kills
    assert outcome.steps["released"] > len(outcome.released) > N_KILLS  # ids were requested again
    assert outcome.steps["refused"] > 0
    assert outcome.steps["failing"] > 0


@pytest.mark.slow
def test_a_thousand_killed_processes_never_release_uncharged(tmp_path):
    outcome = campaign(tmp_path, kills=N_KILLS_SLOW, seed=2)

    assert outcome.errors == []
    assert outcome.kills >= N_KILLS_SLOW


@pytest.mark.parametrize(
    ("kind", "point", "expected"),
    [
        ("releases-first", "published", "released without being stored"),
        ("charges-late", "reserved", "drawn without a charge"),
        ("stores-late", "published", "released without being stored"),
    ],
)
def test_a_planted_fault_is_caught(kind, point, expected, tmp_path):
    outcome = campaign(tmp_path, kills=12, seed=3, kind=kind, points=(point,), self_kill_rate=1)

    assert Counter(error for error, _ in outcome.errors)[expected] > 0
