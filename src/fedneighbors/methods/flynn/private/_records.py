"""Which rows of a private table are records: each is judged, and cut, by itself.

A party that failed, or refused, because of a row would tell that the row is there.
"""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

FARTHEST = 2.0**40
"""Values are cut here, so that no sum or expansion of them leaves the range of its type."""


def records_of(
    x: Any, y: npt.NDArray[Any], classes: tuple[Any, ...] | None
) -> tuple[Any, npt.NDArray[Any]]:
    """Return a table without what is no record, far values cut.

    Left out are rows with a value that is not finite or a label that is not among ``classes``. A
    row more or less in the table is at most a row more or less in the result.

    Parameters
    ----------
    x : array or sparse matrix of shape (n_rows, n_features)
        Numbers.
    y : array of shape (n_rows,)
        Labels.
    classes : tuple of labels or None
        Those that were agreed; None where they are public.

    Returns
    -------
    x, y : array or CSR matrix, array
        Copies.
    """
    rows = x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)
    kept = np.ones(len(y), bool)
    if classes is not None:
        kept &= np.array([label in classes for label in y.tolist()], bool)
    if rows.dtype.kind == "f":
        kept &= _finite_rows(rows)
    if not kept.all():
        log.warning("rows with a value that is not finite or a label not agreed are left out")
    return _cut(rows[kept]), y[kept]


def _finite_rows(rows: Any) -> npt.NDArray[np.bool_]:
    if not hasattr(rows, "tocsr"):
        return np.asarray(np.isfinite(rows).all(axis=1), bool)
    bad = rows.copy()
    bad.data = (~np.isfinite(bad.data)).astype(np.int64)
    return np.asarray(np.asarray(bad.sum(axis=1)).ravel() == 0, bool)


def _cut(rows: Any) -> Any:
    """Return the rows with values cut at :data:`FARTHEST`; types that cannot reach it stay."""
    sparse = hasattr(rows, "tocsr")
    cells = rows.data if sparse else rows
    if cells.dtype.kind == "f" and np.finfo(cells.dtype).max > FARTHEST:
        cells = np.clip(cells, -FARTHEST, FARTHEST)
    elif cells.dtype.kind in "iu" and np.iinfo(cells.dtype).max > FARTHEST:
        cells = np.clip(cells, -int(FARTHEST) if cells.dtype.kind == "i" else 0, int(FARTHEST))
    if not sparse:
        return cells
    result = rows.copy()
    result.data = cells
    return result
