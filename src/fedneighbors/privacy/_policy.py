"""Privacy requirements of users: amount, neighbouring relation, and public facts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedneighbors.privacy._guarantees import (
    NEIGHBORS,
    ApproxDP,
    Guarantee,
    Neighbors,
    Number,
    PureDP,
    exact,
)

PUBLIC_FACTS = ("classes", "n_rows", "scaling")
"""Facts about rows that may be declared public instead of being charged."""

MECHANISMS = ("paper", "local", "central")


@dataclass(frozen=True)
class Privacy:
    """Privacy requirements of a training or a search.

    Everything that a training learns from rows is either charged to ``epsilon`` and ``delta`` or
    declared public here. Arguments of the estimator, such as ``n_units``, are public. A search
    charges ``epsilon`` and ``delta`` for each query and ignores the other fields.

    Parameters
    ----------
    epsilon : number
        Above 0. A float counts as the decimal that it prints as.
    delta : number
        In [0, 1). FlyNN uses a positive delta under ``"central"`` only, FedPNN also under
        ``"local"``; kNN-Per requires one; a search needs one for answers that are always exact.
    mechanism : {"local", "central", "paper"}
        ``"local"``: each party adds the full noise to its release. ``"central"``: each party adds a
        noise share and only the masked sum is visible, with the noise of one table. ``"paper"``:
        the mechanism printed in the method's paper.
    neighbors : {"add_remove", "replace_one"}
        Neighbouring tables: one row added or removed, or one row replaced.
    public : tuple of str
        Facts about the rows of *each party* that are declared to be public: ``"classes"`` (which
        labels occur), ``"n_rows"`` (number of rows), ``"scaling"`` (exact sums of columns and of
        their squares, which give mean and spread). They leave a party whenever requested, and
        unmasked where sums are not masked.
    classes : tuple of labels, optional
        The labels, if known beforehand; they are then not derived from the rows.
    bounds : (low, high), optional
        Range of the values, numbers or one number per column, known beforehand. The scaling is then
        computed from noisy moments of the clipped values and charged.
    constants_share : number
        Share of the budget for charges other than the counts (rows, scaling), in (0, 1).
    n_picks : int, optional
        Number of cells that ``"paper"`` picks (T). None derives it.
    accounting : {"parallel", "paper"}
        Composition of ``"paper"`` over the parties. Rows of different parties are disjoint, so each
        party may spend all of epsilon (``"parallel"``); the paper divides it by the number of
        parties.
    n_parties : int, optional
        Number of parties, needed to divide epsilon under ``accounting="paper"``.
    colluders : int
        Number of parties that may collude with the coordinator under ``"central"``; the noise
        shares of the others suffice. Each party knows its own share and could subtract it, so the
        default of 1 protects towards every single party, and 0 towards the coordinator alone.

    Raises
    ------
    TypeError, ValueError
        If a value is of another type or out of range.

    Examples
    --------
    >>> Privacy(epsilon=1.0, delta=1e-6, mechanism="central", public=("classes", "n_rows")).total
    ApproxDP(epsilon=Fraction(1, 1), delta=Fraction(1, 1000000))
    """

    epsilon: Number
    delta: Number = 0
    mechanism: Literal["paper", "local", "central"] = "local"
    neighbors: Neighbors = "add_remove"
    public: tuple[str, ...] = ()
    classes: tuple[Any, ...] | None = None
    bounds: tuple[Any, Any] | None = None
    constants_share: Number = Fraction(1, 10)
    n_picks: int | None = None
    accounting: Literal["parallel", "paper"] = "parallel"
    n_parties: int | None = None
    colluders: int = 1

    def __post_init__(self) -> None:
        if not exact(self.epsilon, "epsilon") > 0:
            raise ValueError(f"expected epsilon above 0, got {self.epsilon!r}")
        if not 0 <= exact(self.delta, "delta") < 1:
            raise ValueError(f"expected delta in [0, 1), got {self.delta!r}")
        if not 0 < exact(self.constants_share, "constants_share") < 1:
            raise ValueError(f"expected constants_share in (0, 1), got {self.constants_share!r}")
        _one_of("mechanism", self.mechanism, MECHANISMS)
        _one_of("neighbors", self.neighbors, NEIGHBORS)
        _one_of("accounting", self.accounting, ("parallel", "paper"))
        if isinstance(self.public, str) or set(self.public) - set(PUBLIC_FACTS):
            raise ValueError(f"expected public as some of {PUBLIC_FACTS}, got {self.public!r}")
        if self.knows("scaling") and not self.knows("n_rows"):
            raise ValueError(
                "expected 'n_rows' in public together with 'scaling', whose constants are sums "
                f"over all rows, got {self.public!r}"
            )
        for name, least in (("n_picks", 1), ("n_parties", 1), ("colluders", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"expected {name} as an integer, got {value!r}")
            if value is not None and value < least:
                raise ValueError(f"expected {name} of {least} or more, got {value}")

    @property
    def total(self) -> Guarantee:
        """Return the cost limit of one training."""
        epsilon, delta = exact(self.epsilon, "epsilon"), exact(self.delta, "delta")
        return ApproxDP(epsilon, delta) if delta else PureDP(epsilon)

    def check_delta(self) -> None:
        """Raise if a training with this mechanism cannot use its delta.

        Raises
        ------
        ValueError
            If a delta has no effect.
        """
        if self.delta and self.mechanism != "central":
            raise ValueError(
                f"mechanism {self.mechanism!r} does not use a delta: expected "
                f"delta=0, got {self.delta!r}; omit it, or use mechanism='central'"
            )

    def check_classes(self) -> None:
        """Raise unless the labels are known or public.

        Labels cannot be charged to a budget.

        Raises
        ------
        ValueError
            If they are neither.
        """
        if self.classes is None and not self.knows("classes"):
            raise ValueError(
                "the label set depends on rows and cannot be charged: pass it as "
                "Privacy(classes=[...]), or declare public=('classes', ...)"
            )

    def check_fields(
        self, method: str, names: tuple[str, ...], others: tuple[str, ...] = ()
    ) -> None:
        """Raise ValueError if a field without effect is set.

        Checks the named fields and the others that have no effect.
        """
        idle = [
            entry.name
            for entry in fields(self)
            if entry.name in names and getattr(self, entry.name) != entry.default
        ]
        if idle or others:
            raise ValueError(
                f"{', '.join([*idle, *others])} have no effect for {method}; omit them from Privacy"
            )

    def knows(self, fact: str) -> bool:
        """Return whether a fact about the rows was declared to be public."""
        return fact in self.public


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"expected {name} as one of {known}, got {value!r}")


def terms(privacy: Privacy) -> dict[str, str]:
    """Return the agreed privacy terms as exact text."""
    return {
        "epsilon": str(exact(privacy.epsilon, "epsilon")),
        "delta": str(exact(privacy.delta, "delta")),
        "mechanism": privacy.mechanism,
        "neighbors": privacy.neighbors,
        "constants_share": str(exact(privacy.constants_share, "constants_share")),
        "accounting": privacy.accounting,
        "n_parties": str(privacy.n_parties),
        "colluders": str(privacy.colluders),
        "public": ", ".join(sorted(privacy.public)),
        "classes": repr(privacy.classes),
        "bounds": _numbers(privacy.bounds),
    }


def _numbers(bounds: Any) -> str:
    return "" if bounds is None else repr([np.asarray(bound, float).tolist() for bound in bounds])


_NUMBERS = ("epsilon", "delta", "constants-share")
_WORDS = ("mechanism", "neighbors", "accounting")
_COUNTS = ("n-picks", "n-parties", "colluders")


def privacy_from(config: Mapping[str, Any]) -> Privacy | None:
    """Return the privacy of a configuration; None without ``epsilon``.

    Parameters
    ----------
    config : mapping
        Keys as the arguments of :class:`~fedneighbors.privacy.Privacy` with ``-`` for
        ``_``. Numbers may be text such as ``"1/3"``; ``public`` is text with commas,
        ``public-classes`` and ``bounds`` are JSON lists. An empty text, or 0 for ``n-picks`` and
        ``n-parties``, counts as absent.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of another type.

    Examples
    --------
    >>> privacy_from({"epsilon": "1/2", "mechanism": "local", "public": "classes, n_rows"}).public
    ('classes', 'n_rows')
    """
    if config.get("epsilon", "") == "":
        return None
    given: dict[str, Any] = {
        key.replace("-", "_"): config[key]
        for key in (*_NUMBERS, *_WORDS, *_COUNTS)
        if config.get(key, "") != "" and not (key in ("n-picks", "n-parties") and config[key] == 0)
    }
    public = str(config.get("public", ""))
    given["public"] = tuple(word.strip() for word in public.split(",") if word.strip())
    classes, bounds = _read_list(config, "public-classes"), _read_list(config, "bounds")
    if classes:
        given["classes"] = tuple(classes)
    if bounds:
        if len(bounds) != 2:
            raise ValueError(f"expected bounds as a JSON list [low, high], got {bounds!r}")
        given["bounds"] = tuple(bounds)
    return Privacy(**given)


def _read_list(config: Mapping[str, Any], key: str) -> list[Any]:
    text = config.get(key, "") or "[]"
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"expected {key} as a JSON list, got {text!r}") from error
    if not isinstance(found, list):
        raise ValueError(f"expected {key} as a JSON list, got {text!r}")
    return found
