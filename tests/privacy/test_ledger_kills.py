"""Processes are killed at any point: nothing is released without a charge, nothing twice."""

from collections import Counter

import pytest

from tests.privacy.ledger_campaign import POINTS, campaign

N_KILLS = 40
N_KILLS_SLOW = 1000


def test_killed_processes_never_release_without_a_charge(tmp_path):
    told = campaign(tmp_path, kills=N_KILLS, seed=1, words=("released", "refused", "failing"))

    assert told.wrong == []
    assert told.kills >= N_KILLS
    assert set(told.by_own_hand) <= set(POINTS)
    assert sum(told.by_own_hand.values()) < told.kills
    assert told.steps["released"] > len(told.released) > N_KILLS  # ids were requested again
    assert told.steps["refused"] > 0
    assert told.steps["failing"] > 0


@pytest.mark.slow
def test_a_thousand_killed_processes_never_release_uncharged(tmp_path):
    told = campaign(tmp_path, kills=N_KILLS_SLOW, seed=2)

    assert told.wrong == []
    assert told.kills >= N_KILLS_SLOW


@pytest.mark.parametrize(
    ("kind", "point", "expected"),
    [
        ("releases-first", "told", "released without being stored"),
        ("charges-late", "reserved", "drawn without a charge"),
        ("stores-late", "told", "released without being stored"),
    ],
)
def test_a_planted_fault_is_caught(kind, point, expected, tmp_path):
    told = campaign(tmp_path, kills=12, seed=3, kind=kind, points=(point,), own_hand=1)

    assert Counter(what for what, _ in told.wrong)[expected] > 0
