"""Linear heads in closed form."""

import numpy as np
import pytest

from fedneighbors.methods.knnper.personal._heads import (
    PENALTIES,
    Head,
    head_leave_one_out,
    ridge,
    ridge_leave_one_out,
    with_ones,
)

RANDOM = np.random.default_rng(1)
KEYS, TARGETS = RANDOM.normal(size=(12, 5)), RANDOM.normal(size=(12, 3))


@pytest.mark.parametrize("targets", [TARGETS, np.eye(3)[np.arange(12) % 3]])
def test_held_out_scores_come_from_heads_without_the_row(targets):
    scores = ridge_leave_one_out(KEYS, targets, penalties=(0.5, 10.0))

    for place, penalty in enumerate((0.5, 10.0)):
        for row in range(12):
            others = np.arange(12) != row
            head = ridge(KEYS[others], targets[others], penalty=penalty)
            expected = with_ones(KEYS[[row]]) @ head
            np.testing.assert_allclose(scores[place, [row]], expected, rtol=1e-9)


def test_a_head_has_the_penalty_of_least_held_out_error():
    noise_head = Head.fit(KEYS, TARGETS)
    line_head = Head.fit(KEYS, KEYS[:, :2] * 4 + 1)

    def penalty_of(head, targets):
        keys = KEYS * head.scale
        return next(
            p for p in PENALTIES if np.allclose(ridge(keys, targets, penalty=p), head.coefficients)
        )

    assert penalty_of(noise_head, TARGETS) == max(PENALTIES)
    assert penalty_of(line_head, KEYS[:, :2] * 4 + 1) == min(PENALTIES)


def test_heads_do_not_depend_on_the_unit_of_keys():
    head, scaled_head = Head.fit(KEYS, TARGETS), Head.fit(KEYS * 1e6, TARGETS)

    np.testing.assert_allclose(head.outputs(KEYS), scaled_head.outputs(KEYS * 1e6), rtol=1e-9)
    np.testing.assert_allclose(
        head_leave_one_out(KEYS, TARGETS), head_leave_one_out(KEYS * 1e6, TARGETS), rtol=1e-9
    )


def test_a_single_row_and_rows_of_zeros_have_a_head():
    assert head_leave_one_out(KEYS[:1], TARGETS[:1]).tolist() == [[0.0, 0.0, 0.0]]
    assert np.isfinite(Head.fit(KEYS[:1], TARGETS[:1]).outputs(KEYS)).all()

    flat = Head.fit(np.zeros((4, 2)), np.full((4, 1), 5.0))

    np.testing.assert_allclose(flat.outputs(np.zeros((1, 2))), [[5 * 4 / 4.1]], rtol=1e-12)
