"""Functional test of the assumption that the numbers of a row depend on no other row."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_TOLERANCE = 1e-3  # relative to the largest number; sums may be rounded in another order


def mixes_rows(
    compute: Callable[[npt.NDArray[np.generic], int], npt.NDArray[np.floating]],
    shape: tuple[int, ...],
    *,
    n_values: int | None = None,
) -> bool:
    """Return whether other rows change the numbers of a row.

    Their number and earlier calls count, too.

    A bound on the contribution of a row, such as that of clipped gradients, requires that they do
    not. The rows are random.

    Parameters
    ----------
    compute : callable
        ``compute(rows, seed)`` returns one row of numbers for each row; ``seed`` fixes its random
        choices.
    shape : tuple of int
        Shape of a row.
    n_values : int, optional
        Rows are integers from 0 to ``n_values - 1``; normal random numbers by default.

    Examples
    --------
    >>> mixes_rows(lambda rows, seed: rows**2, (3,))
    False
    >>> mixes_rows(lambda rows, seed: rows - rows.mean(axis=0), (3,))
    True
    """
    random = np.random.default_rng()

    def draw(n_rows: int, scale: float) -> npt.NDArray[np.generic]:
        if n_values is not None:
            return random.integers(n_values, size=(n_rows, *shape))
        return scale * random.normal(size=(n_rows, *shape))

    for n_rows, scale in ((2, 1.0), (5, 1.0), (5, 30.0)):
        rows = draw(n_rows, scale)
        before = compute(rows, 0)
        for position in (0, n_rows - 1):  # sums over earlier rows leave the first one unchanged
            others = draw(n_rows, scale)
            others[position] = rows[position]
            after = compute(others, 0)
            if not np.array_equal(before[position], after[position], equal_nan=True):
                return True
        is_random = not np.array_equal(before, compute(rows, 1), equal_nan=True)
        alone = compute(rows[:1], 0)
        limit = _TOLERANCE * np.abs(np.nan_to_num(before[0])).max(initial=0.0)
        # random choices, such as those of dropout, differ between numbers of rows
        if not is_random and not np.allclose(
            before[0], alone[0], rtol=0, atol=limit, equal_nan=True
        ):
            return True
    return False
