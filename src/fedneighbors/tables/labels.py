"""Labels as users know them, and their positions among the classes of a federation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.federation.roles import Refuse

__all__ = ["Label", "label_array", "label_index", "label_positions", "reserved_labels"]

Label = str | int | float | bool


def label_index(classes: tuple[Label, ...]) -> Mapping[Label, int]:
    """Return the position of each label."""
    return {label: position for position, label in enumerate(classes)}


def label_positions(
    y: npt.NDArray[Any], classes: tuple[Label, ...], *, name: str
) -> npt.NDArray[np.int64]:
    """Return the position of each row's label among the classes, inside a party.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    classes : tuple of labels
        Of the federation.
    name : str
        Of the column of labels.

    Raises
    ------
    Refuse
        If a label is not among the classes.
    """
    index = label_index(classes)
    own, inverse = np.unique(y, return_inverse=True)
    if not all(label in index for label in own.tolist()):
        raise Refuse("a label is not among the classes", name)
    positions = np.array([index[label] for label in own.tolist()], np.int64)
    return positions[inverse]


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
