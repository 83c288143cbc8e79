import numpy as np
import pytest

from fedneighbors.methods.knnper.personal._heads import (
    LANDMARKS,
    Head,
    KernelHead,
    RadialMap,
    kernel_leave_one_out,
)


def make_rings(n, seed=0):
    """Return points of the plane within the unit circle, or in a ring around it."""
    random = np.random.default_rng(seed)
    outside = random.integers(2, size=n)
    angles, radius = random.uniform(0, 2 * np.pi, n), outside + random.uniform(0.1, 0.8, n)
    return np.column_stack([radius * np.cos(angles), radius * np.sin(angles)]), outside


def test_products_of_columns_equal_the_kernel():
    rows, _ = make_rings(30)

    columns = RadialMap.of(rows, 2.0).transform(rows)

    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    unit = np.median(squares[squares > 0])
    np.testing.assert_allclose(columns @ columns.T, np.exp(-2 * squares / unit), atol=1e-6)


def test_a_head_separates_nonlinear_classes():
    (rows, labels), (new, new_labels) = make_rings(200), make_rings(100, seed=1)
    targets = np.eye(2)[labels]

    predicted = KernelHead.fit(rows, targets).outputs(new).argmax(axis=1)

    linear = Head.fit(rows, targets).outputs(new).argmax(axis=1)
    assert (predicted == new_labels).mean() > 0.97
    assert (linear == new_labels).mean() < 0.8


def test_a_left_out_rows_output_ignores_its_label():
    rows, labels = make_rings(200)
    other = np.where(np.arange(200) == 7, 1 - labels, labels)

    outputs, changed = (kernel_leave_one_out(rows, np.eye(2)[y]) for y in (labels, other))

    np.testing.assert_allclose(changed[7], outputs[7], rtol=1e-9)
    assert not np.allclose(changed[8], outputs[8], rtol=1e-9)


def test_the_number_of_landmarks_is_limited():
    (rows, labels), (new, new_labels) = make_rings(3 * LANDMARKS + 5), make_rings(100, seed=1)

    head = KernelHead.fit(rows, np.eye(2)[labels])

    assert head.radial_map.landmarks.shape == (LANDMARKS, 2)
    assert (head.outputs(new).argmax(axis=1) == new_labels).mean() > 0.97


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((1, 2)),
        np.ones((5, 2)),
        np.repeat([[0.0, 0.0], [1.0, 1.0]], 40, axis=0),
        np.array([[0.0, 1e30], [1.0, -1e30], [2.0, 0.0]]),
        np.empty((4, 0)),
    ],
    ids=["one row", "equal rows", "two rows many times", "far apart", "no columns"],
)
def test_degenerate_rows_give_finite_scores(rows):
    targets = np.eye(2)[np.arange(len(rows)) % 2]

    head = KernelHead.fit(rows, targets)

    assert np.isfinite(head.outputs(rows)).all()
    assert np.isfinite(kernel_leave_one_out(rows, targets)).all()


def test_a_single_row_has_no_held_out_output():
    assert kernel_leave_one_out(np.ones((1, 3)), np.array([[0.0, 1.0]])).tolist() == [[0.0, 0.0]]
