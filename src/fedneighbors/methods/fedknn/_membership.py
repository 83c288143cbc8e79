"""Which party owns which objects, and what objects are called."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt


def members_of(
    n_objects: int,
    *,
    parties: Sequence[Any] | npt.NDArray[Any] | None,
    ids: Sequence[Any] | None,
) -> tuple[dict[str, list[int]], list[Any]]:
    """Return the rows of each party, and the name of each object.

    Parameters
    ----------
    n_objects : int
        In the whole federation.
    parties : sequence of shape (n_objects,), optional
        Owner of each object. None means one party.
    ids : sequence of shape (n_objects,), optional
        Names, each once. Positions if None.

    Returns
    -------
    members : dict of str to list of int
        By party, in ascending order; one party without objects if there are none.
    names : list
        As given.

    Raises
    ------
    ValueError
        If owners or names are not one for each object.

    Examples
    --------
    >>> members_of(3, parties=["b", "a", "b"], ids=None)
    ({'a': [1], 'b': [0, 2]}, [0, 1, 2])
    """
    owners = ["all"] * n_objects if parties is None else [str(name) for name in parties]
    if len(owners) != n_objects:
        raise ValueError(f"expected one party for each of {n_objects} objects, got {len(owners)}")
    names = list(range(n_objects)) if ids is None else list(ids)
    if len(names) != n_objects or len(set(map(str, names))) < n_objects:
        raise ValueError(f"expected a name of its own for each of {n_objects} objects")
    members: dict[str, list[int]] = {name: [] for name in sorted(set(owners))}
    for place, name in enumerate(owners):
        members[name].append(place)
    return members or {"all": []}, names
