"""What users pass in, turned into what parties and kernels take; values never change."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

__all__ = ["hashable_numbers", "label_array", "public_seed", "reserved_labels", "rows_by_party"]


def public_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed that a ``random_state`` stands for.

    Raises
    ------
    ValueError
        If an integer is negative or has more than 63 bits.
    """
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ValueError(f"expected random_state in [0, 2**63), got {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def hashable_numbers(x: Any) -> Any:
    """Return a table in a dtype that the kernels hash."""
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    if x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype == np.longdouble:
        return x.astype(np.float64)
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
    owner = np.asarray(parties, dtype=object)  # as text, a NaN beside names would become one
    if owner.shape != (n_rows,):
        raise ValueError(f"expected one party for each of {n_rows} rows, got shape {owner.shape}")
    missing = sum(_is_missing(name) for name in owner)
    if missing:
        raise ValueError(
            f"expected a party for every row, found {missing} rows without one; fill them in"
        )
    owner = np.array([str(name) for name in owner])
    return {str(name): np.flatnonzero(owner == name) for name in np.unique(owner)}


def _is_missing(name: Any) -> bool:
    """Return whether it is None, or unequal to itself as NaN, NaT and pandas' NA are."""
    equal = name == name
    return name is None or not isinstance(equal, bool | np.bool_) or not equal


def label_array(classes: Sequence[Any], *, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return classes as an array, of objects where the labels were objects."""
    return np.array(classes, dtype=object if like.dtype == object else None)


def reserved_labels(classes: Sequence[Any] | npt.NDArray[Any], y: Any) -> tuple[Any, ...]:
    """Return the classes that were announced for all rows to come, ascending.

    Raises
    ------
    ValueError
        If ``y`` holds others.
    """
    reserved = np.unique(np.asarray(classes)).tolist()
    unknown = set(np.asarray(y).ravel().tolist()) - set(reserved)
    if unknown:
        raise ValueError(
            f"y holds labels {list(unknown)[:5]} that are not among classes={reserved[:10]}; "
            "name all labels that will ever come"
        )
    return tuple(reserved)
