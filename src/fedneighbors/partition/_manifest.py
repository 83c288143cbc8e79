"""Manifest of a partition: its parameters and row counts, to be stored with results."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Integers
from fedneighbors.errors import DataError
from fedneighbors.partition._assignment import index_parties
from fedneighbors.partition._clients import RowRoles

_FORMAT = 1
_ROLES = ("train", "validation", "test")


@dataclass(frozen=True)
class Manifest:
    """Description of a partition.

    Row and class counts per party reveal facts about the parties' data: keep the manifest where
    the data was split, and do not send it to a coordinator.

    Parameters
    ----------
    kind : str
        Name of the split, such as ``"dirichlet"``.
    parameters : mapping of str to float
        Parameters of the split except the number of parties and the seed.
    seed : int or None
        Seed of the split; None for a natural split.
    n_rows : int
        Total number of rows.
    parties : tuple of str
        Party names, shorter names first: ``"party-2"`` before ``"party-10"``.
    rows_per_party : tuple of int
        Number of rows of each party.
    classes : tuple of int or str
        Labels that occur, ascending.
    class_counts : tuple of tuple of int
        For each party, its number of rows of each class.
    digest : str
        SHA-256 of the party names in row order, which identifies the partition.
    format : int
        Version of the manifest format.
    role_counts : tuple of tuple of int, optional
        For each party, its numbers of training, validation and test rows. None means not recorded,
        also for the fields below.
    role_digest : str, optional
        SHA-256 of the roles in row order.
    unseen : tuple of str, optional
        Parties that join only after training.
    groups : tuple of int, optional
        Group of each party, if groups have different label permutations or features.

    Raises
    ------
    DataError
        If counts or names are inconsistent.
    """

    kind: str
    parameters: Mapping[str, float]
    seed: int | None
    n_rows: int
    parties: tuple[str, ...]
    rows_per_party: tuple[int, ...]
    classes: tuple[int | str, ...]
    class_counts: tuple[tuple[int, ...], ...]
    digest: str
    format: int = _FORMAT
    role_counts: tuple[tuple[int, ...], ...] | None = None
    role_digest: str | None = None
    unseen: tuple[str, ...] | None = None
    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        counts = tuple(sum(row) for row in self.class_counts)
        widths = {len(row) for row in self.class_counts}
        if (
            len(set(self.parties)) != len(self.rows_per_party)
            or counts != self.rows_per_party
            or widths != {len(self.classes)}
            or sum(self.rows_per_party) != self.n_rows
        ):
            raise DataError(
                f"the manifest counts {self.n_rows} rows, {len(self.parties)} parties and "
                f"{len(self.classes)} classes, but its lists do not add up to them; "
                "describe the partition again"
            )
        n_parties, roles, unseen = len(self.parties), self.role_counts, self.unseen or ()
        matches = {
            "roles": (roles is None) == (self.role_digest is None)
            and len(roles or self.parties) == n_parties
            and all(
                len(row) == len(_ROLES) and sum(row) <= rows
                for row, rows in zip(roles or (), self.rows_per_party, strict=False)
            ),
            "unseen parties": len(set(unseen) & set(self.parties)) == len(unseen),
            "groups": self.groups is None or len(self.groups) == n_parties,
        }
        wrong = [part for part, match in matches.items() if not match]
        if wrong:
            raise DataError(
                f"the manifest's {' and '.join(wrong)} do not match its {n_parties} parties and "
                "their rows; describe the partition again"
            )

    def to_json(self) -> str:
        """Serialize the manifest to JSON, readable by `from_json`.

        Returns
        -------
        str
        """
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Parse a manifest written by `to_json`.

        Parameters
        ----------
        text : str
            Output of `to_json`.

        Returns
        -------
        Manifest

        Raises
        ------
        DataError
            If the text is damaged or of another format version, or its counts are inconsistent.
        """
        try:
            content = json.loads(text)
            version = content["format"]
            missing = {f.name for f in fields(cls) if f.default is MISSING} - content.keys()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(
                f"the text is not a partition manifest ({error!r}); write it with Manifest.to_json"
            ) from error
        if version != _FORMAT:
            raise DataError(f"the manifest has format {version!r}; this version reads {_FORMAT}")
        if missing:
            raise DataError(
                f"the manifest lacks {', '.join(sorted(missing))}; it is truncated or was edited"
            )
        hints = get_type_hints(cls)
        try:
            return cls(
                **{name: _parse_value(content.get(name), hint) for name, hint in hints.items()}
            )
        except (TypeError, AttributeError) as error:
            raise DataError(
                f"the manifest is damaged: {error}; describe the partition again"
            ) from error


def describe(
    parties: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    kind: str,
    seed: int | None = None,
    parameters: Mapping[str, float] | None = None,
    roles: RowRoles | None = None,
    unseen: Sequence[str] | None = None,
    groups: npt.ArrayLike | None = None,
) -> Manifest:
    """Return the manifest of a partition.

    Parameters
    ----------
    parties : array-like of shape (n_rows,)
        Party that owns each row.
    y : array-like of shape (n_rows,)
        Labels of the same rows.
    kind : str
        Name of the split.
    seed : int, optional
        Seed of the split.
    parameters : mapping of str to float, optional
        Parameters of the split except the number of parties and the seed.
    roles : RowRoles, optional
        Training, validation and test rows.
    unseen : sequence of str, optional
        Parties that join only after training.
    groups : int array-like of shape (n_rows,), optional
        Group of each row's party, as returned by :func:`~fedneighbors.partition.groups`.

    Returns
    -------
    Manifest

    Raises
    ------
    ValueError
        If the arrays are empty or differ in length, or a party is in two groups.
    DataError
        If an unseen party is not among the parties.

    Examples
    --------
    >>> from fedneighbors.partition import describe, iid
    >>> y = [0, 1, 0, 1, 0, 1]
    >>> describe(iid(6, 2, seed=0), y, kind="iid", seed=0).rows_per_party
    (3, 3)
    """
    owners, labels = np.asarray(parties).astype(np.str_), np.asarray(y)
    if owners.ndim != 1 or owners.shape != labels.shape or len(owners) == 0:
        raise ValueError(
            f"parties has shape {owners.shape} and y {labels.shape}; expected one of each per row"
        )
    names, owner = index_parties(owners)
    classes, label = np.unique(labels, return_inverse=True)
    counts = np.bincount(owner * len(classes) + label, minlength=len(names) * len(classes))
    counts = counts.reshape(len(names), len(classes))
    order = sorted(range(len(names)), key=lambda index: (len(names[index]), names[index]))
    return Manifest(
        kind=kind,
        parameters=dict(parameters or {}),
        seed=seed,
        n_rows=len(owners),
        parties=tuple(str(names[index]) for index in order),
        rows_per_party=tuple(int(counts[index].sum()) for index in order),
        classes=tuple(entry if type(entry) is int else str(entry) for entry in classes.tolist()),
        class_counts=tuple(tuple(counts[index].tolist()) for index in order),
        digest=_digest(owners.tolist()),
        role_counts=None if roles is None else _role_counts(roles, owner, order),
        role_digest=None if roles is None else _digest(_role_names(roles)),
        unseen=None if unseen is None else tuple(str(name) for name in unseen),
        groups=None if groups is None else _party_groups(np.asarray(groups), owner, order),
    )


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _role_names(roles: RowRoles) -> list[str]:
    names: list[str] = np.select(_masks(roles), _ROLES, default="nothing").tolist()
    return names


def _masks(roles: RowRoles) -> list[Array]:
    return [np.asarray(getattr(roles, role)) for role in _ROLES]


def _role_counts(
    roles: RowRoles, owner: Integers, order: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Count each party's rows by role, in the given order."""
    masks = _masks(roles)
    if any(mask.shape != owner.shape for mask in masks):
        raise ValueError(f"expected roles of {len(owner)} rows, got {masks[0].shape}")
    counts = np.array([np.bincount(owner[mask], minlength=len(order)) for mask in masks])
    return tuple(tuple(counts[:, index].tolist()) for index in order)


def _party_groups(groups: Array, owner: Integers, order: Sequence[int]) -> tuple[int, ...]:
    """Return the group of each party, in the given order."""
    if groups.shape != owner.shape:
        raise ValueError(f"expected the group of {len(owner)} rows, got {groups.shape}")
    group = np.zeros(len(order), np.int64)
    group[owner] = groups
    if (group[owner] != groups).any():
        raise ValueError("expected the same group for all rows of a party, got several groups")
    return tuple(group[list(order)].tolist())


_JSON_TYPES: Mapping[Any, tuple[type, ...]] = {float: (float, int), int | str: (int, str)}


def _parse_value(value: Any, hint: Any) -> Any:
    """Convert a JSON value to its declared type.

    Integers must be non-negative, except for labels.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return None if value is None else _parse_value(value, inner[0])
    if origin is tuple:
        return tuple(_parse_value(part, inner[0]) for part in value)
    if origin is Mapping:
        return {
            _parse_value(name, inner[0]): _parse_value(part, inner[1])
            for name, part in value.items()
        }
    if type(value) not in _JSON_TYPES.get(hint, (hint,)):
        raise TypeError(f"expected {getattr(hint, '__name__', hint)}, found {value!r}")
    if hint is int and value < 0:
        raise TypeError(f"expected a non-negative number, found {value!r}")
    return value
