"""What users pass in, turned into what parties and kernels take; values never change."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

__all__ = ["hashable_numbers", "label_array", "public_seed", "rows_by_party"]


def public_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed that a ``random_state`` stands for.

    Raises
    ------
    ValueError
        If an integer is negative.
    """
    if isinstance(random_state, int | np.integer):
        if random_state < 0:
            raise ValueError(f"expected random_state of at least 0, got {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def hashable_numbers(x: Any) -> Any:
    """Return a table in a dtype that the kernels hash."""
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    if x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype in (np.uint32, np.uint64):
        return x.astype(np.int64 if x.dtype == np.uint32 else np.float64)
    return x


def rows_by_party(parties: Sequence[Any] | npt.NDArray[Any] | None, n_rows: int) -> dict[str, Any]:
    """Return the rows of each party, in the order of the names; all rows for None.

    Raises
    ------
    ValueError
        If there is not one party for each row.
    """
    if parties is None:
        return {"all": slice(None)}
    owner = np.asarray(parties)
    if owner.shape != (n_rows,):
        raise ValueError(f"expected one party for each of {n_rows} rows, got shape {owner.shape}")
    names = owner.tolist()
    if any(name is None or name != name for name in names):
        raise ValueError("expected a party for every row, found rows without one")
    owner = np.array([str(name) for name in names])
    return {str(name): np.flatnonzero(owner == name) for name in np.unique(owner)}


def label_array(classes: Sequence[Any], *, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return classes as an array, of objects where the labels were objects."""
    return np.array(classes, dtype=object if like.dtype == object else None)
