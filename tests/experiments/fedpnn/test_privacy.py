"""The study of privacy budgets: declared bounds, reproducible noise."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from experiments.catalog import find_study
from experiments.fedpnn.privacy import (
    CASES,
    DIAGNOSTIC,
    GUARDS,
    load_case,
    score_private,
)
from fedneighbors.records import read_record, write_record

GRADES = "Breast Cancer Wisconsin"


def test_a_quick_run_scores_every_guard_and_can_be_read_again(tmp_path):
    write_record(find_study("fedpnn.privacy").run(quick=True), tmp_path / "record.jsonl")

    scores, exact = (
        [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in read_record(tmp_path / "record.jsonl").tables
    )

    assert {(row["noise"], row["epsilon"]) for row in scores} == {
        (guard, epsilon) for guard in GUARDS for epsilon in (1.0, 8.0)
    }
    assert [row["set"] for row in exact] == [GRADES]
    assert all(row["balanced accuracy"] > 0.9 for row in scores + exact)  # noise is seeded


@pytest.mark.parametrize("guard", GUARDS)
def test_seeded_noise_gives_reproducible_scores(guard):
    first, again = (score_private(GRADES, 3, 1, guard, "1") for _ in range(2))

    assert first == again
    assert score_private(GRADES, 3, 1, guard, "1/10") != first


def test_documented_bounds_equal_those_of_scikit_learn():
    printed = load_breast_cancer().DESCR

    assert len(DIAGNOSTIC.low) == len(DIAGNOSTIC.high) == 30
    for low, high in zip(DIAGNOSTIC.low, DIAGNOSTIC.high, strict=True):
        assert any(line.split()[-2:] == [str(low), str(high)] for line in printed.splitlines())


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_bounds_for_all_columns_and_a_rare_class(name):
    x, y, bounds = load_case(CASES[name])

    assert bounds.shape == (x.shape[1], 2)
    assert (bounds[:, 0] < bounds[:, 1]).all()
    assert 0 < y.mean() < 0.5
    if CASES[name].marks_missing:
        n = x.shape[1] // 2
        assert (x[:, n:] == np.isnan(x[:, :n])).all()


def test_wider_bounds_have_the_same_centers():
    narrow, wide = (load_case(CASES[name])[2] for name in list(CASES)[:2])

    np.testing.assert_allclose(wide.mean(axis=1), narrow.mean(axis=1))
    np.testing.assert_allclose(np.diff(wide), 2 * np.diff(narrow))


def test_settings_with_excessive_noise_are_skipped():
    assert score_private("Polish bankruptcy, year 1", 0, 0, "Laplace", "1/10") is None
