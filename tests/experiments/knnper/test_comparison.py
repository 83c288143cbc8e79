"""Comparison of methods: partitions of rows, choices without test rows, complete tables."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from experiments.catalog import find_study
from experiments.knnper.comparison import (
    BASELINES,
    ONE_NETWORK_METHODS,
    OURS,
    PAPER,
    compare_methods,
)
from experiments.knnper.federations import FEDERATIONS, Scope, load_roles, make_clients
from fedneighbors.methods.knnper import KNNPerClassifier

SETTINGS = {"hidden": (16,), "n_rounds": 3, "random_state": 0}
SMALL = Scope("digits", 500, 8, 3, ())


@cache
def clients():
    return make_clients("label skew", SMALL, 0)


@cache
def compare():
    return compare_methods(clients(), SETTINGS)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_every_row_is_training_or_test_row_of_one_client(name):
    data = FEDERATIONS[name][0]
    scope = Scope("digits" if data == "mnist" else data, 600, 8, 3, ())

    found = make_clients(name, scope, 3)

    rows = [found.rows(client, test=test) for client in found.names for test in (False, True)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(len(found.y)))
    assert set(found.unseen) < set(found.names)
    assert not np.isin(found.owners[found.fit], found.unseen).any()
    assert not found.test[found.fit].any()


def test_clients_have_two_classes_each():
    found = make_clients("two classes each", SMALL, 1)

    assert all(len(set(found.y[found.owners == name].tolist())) == 2 for name in found.names)


def test_groups_of_clients_have_different_label_meanings():
    same, other = make_clients("one meaning", SMALL, 1), make_clients("permuted labels", SMALL, 1)

    assert same.x.tolist() == other.x.tolist()
    has_changed = {name: (same.y != other.y)[same.owners == name].any() for name in same.names}
    # one group of four keeps its labels
    assert sorted(has_changed.values()) == [False] * 2 + [True] * 6


def test_all_methods_are_scored_on_the_test_rows_of_all_clients():
    scores, _ = compare()

    assert list(scores) == [*BASELINES, PAPER, OURS]
    expected = {name: len(clients().rows(name, test=True)) for name in clients().names}
    for found in scores.values():
        assert {name: n for name, (_, n) in found.test.items()} == expected
        assert all(0 <= n_hits <= n for n_hits, n in found.test.values())


def test_choices_do_not_depend_on_test_rows():
    rng = np.random.default_rng(0)
    scrambled = clients().y.copy()
    scrambled[clients().test] = rng.permutation(scrambled[clients().test])

    _, chosen = compare_methods(replace(clients(), y=scrambled), SETTINGS)

    assert chosen == compare()[1]


def test_the_papers_mixture_equals_a_separate_estimator():
    scores, chosen = compare()
    data, fit = clients(), clients().fit
    settings = {**SETTINGS, **chosen["rate"], "standardize": False, "classes": range(10)}
    estimator = KNNPerClassifier(combine="paper", **settings)
    estimator.fit(data.x[fit], data.y[fit], parties=data.owners[fit])
    for name in data.unseen:
        rows = data.rows(name, test=False)
        estimator.add_client(name, data.x[rows], data.y[rows])

    for name, (n_hits, n) in scores[PAPER].test.items():
        rows = data.rows(name, test=True)
        predicted = estimator.predict(data.x[rows], parties=[name] * n)
        assert int((predicted == data.y[rows]).sum()) == n_hits


def test_the_tables_name_every_method():
    record = find_study("knnper.claims").run(quick=True)

    tables = {table.name: table for table in record.tables}
    for kind in ("seen", "unseen"):
        rows = tables[kind].rows
        assert len(rows) == 2 + len(BASELINES)
        ours = [row for row in rows if row[1] == OURS]
        assert all(row[6:] == (0.0, 0.0, 0.0) for row in ours)
        assert all(row[7] <= row[6] <= row[8] for row in rows)
    assert len(tables["chosen"].rows) == 1 + len(BASELINES)
    assert ("CIFAR-10", "Ditto", 0.8, 0.665) in tables["paper-seen"].rows
    assert ("Shakespeare", "kNN-Per", 0.507, 0.642) in tables["paper-unseen"].rows


def test_windows_of_roles_do_not_overlap():
    found = load_roles(5, 30, 2)

    assert found.x.shape == (5 * 30, 24)
    assert len(found.names) == 5
    assert found.x.dtype == np.int64
    assert {len(found.rows(name, test=True)) for name in found.names} == {8}
    assert len({tuple(row) for row in found.x.tolist()}) > 145


def test_the_pool_and_baselines_predict_next_characters():
    record = find_study("knnper.shakespeare").run(quick=True)

    seen, unseen, _ = record.tables
    assert [row[1] for row in seen.rows] == [*ONE_NETWORK_METHODS, "Ditto", "FedRep", PAPER, OURS]
    assert [row[1] for row in unseen.rows] == [*ONE_NETWORK_METHODS, "Ditto", "FedRep", PAPER, OURS]
