"""Privacy settings of a training or a search, and their configuration keys."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedneighbors.datasets._schema import Schema
from fedneighbors.privacy._guarantees import (
    NEIGHBORS,
    ApproxDP,
    Guarantee,
    Neighbors,
    Number,
    PureDP,
    exact,
)

MECHANISMS = ("paper", "local", "central")


@dataclass(frozen=True)
class Privacy:
    """Privacy settings of a training or a search.

    Everything that a training learns from rows is charged to ``epsilon`` and ``delta``. Columns,
    their ranges and the labels must be declared: by a ``schema`` for data frames and files, by
    ``bounds`` and ``classes`` for arrays. Arguments of the estimator, such as ``n_units``, are
    public. A search charges ``epsilon`` and ``delta`` for each query and ignores the other fields.

    Parameters
    ----------
    epsilon : number
        Above 0. A float counts as its shortest decimal representation, so 0.1 is one tenth.
    delta : number
        In [0, 1). FlyNN uses a positive delta only under ``"central"``, FedPNN also under
        ``"local"``. kNN-Per requires a positive delta, and so does a search whose answers must
        always be exact.
    mechanism : {"local", "central", "paper"}
        ``"local"``: each party adds the full noise to its release. ``"central"``: each party adds a
        noise share and only the masked sum is visible, with the noise of one table. ``"paper"``:
        the mechanism printed in the method's paper.
    neighbors : {"add_remove", "replace_one"}
        Relation of neighboring tables: one row added or removed, or one row replaced.
    schema : Schema, optional
        Declared columns and labels, see :class:`~fedneighbors.datasets.Schema`. Each column needs a
        range. ``classes`` and ``bounds`` are set to those of the schema.
    classes : tuple of labels, optional
        All labels. Rows with other labels are not used.
    bounds : (low, high), optional
        Range of the values: two numbers, or two sequences of one number per feature. Values outside
        the range are clipped. Means and standard deviations are computed from noisy moments of the
        clipped values.
    constants_share : number
        Budget share of the constants, in (0, 1): FlyNN's number of rows and scaling, kNN-Per's
        class counts.
    n_picks : int, optional
        Number of picks of ``"paper"`` (T); derived by default.
    accounting : {"parallel", "paper"}
        Composition of ``"paper"`` over the parties. Rows of different parties are disjoint, so each
        party may spend all of epsilon (``"parallel"``); the paper divides it by the number of
        parties.
    n_parties : int, optional
        Number of parties, needed to divide epsilon under ``accounting="paper"``.
    colluders : int
        Number of parties that may collude with the coordinator under ``"central"``; the noise
        shares of the others alone give the guarantee. Each party knows its own share and could
        subtract it: the default of 1 also protects against every single party, 0 only against the
        coordinator.

    Raises
    ------
    TypeError, ValueError
        If a value is of another type or out of range.

    Examples
    --------
    >>> Privacy(1.0, 1e-6, mechanism="central", classes=(0, 1), bounds=(0, 255)).total
    ApproxDP(epsilon=Fraction(1, 1), delta=Fraction(1, 1000000))
    """

    epsilon: Number
    delta: Number = 0
    mechanism: Literal["paper", "local", "central"] = "local"
    neighbors: Neighbors = "add_remove"
    schema: Schema | None = None
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
        _check_choice("mechanism", self.mechanism, MECHANISMS)
        _check_choice("neighbors", self.neighbors, NEIGHBORS)
        _check_choice("accounting", self.accounting, ("parallel", "paper"))
        if self.schema is not None:
            self._copy_schema_fields(self.schema)
        for name, least in (("n_picks", 1), ("n_parties", 1), ("colluders", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"expected {name} as an integer, got {value!r}")
            if value is not None and value < least:
                raise ValueError(f"expected {name} of {least} or more, got {value}")

    def _copy_schema_fields(self, schema: Schema) -> None:
        if not isinstance(schema, Schema):
            raise TypeError(f"expected schema=Schema.load(path) or None, got {schema!r:.80}")
        declared = {"classes": schema.classes, "bounds": schema.bounds}
        if not schema.classes:
            raise ValueError("a privacy budget needs the classes of the schema; declare them")
        for name, value in declared.items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f"{name} are declared twice, here and in the schema; omit {name}")
            object.__setattr__(self, name, value)

    @property
    def total(self) -> Guarantee:
        """Return ``epsilon`` and ``delta`` as a guarantee."""
        epsilon, delta = exact(self.epsilon, "epsilon"), exact(self.delta, "delta")
        return ApproxDP(epsilon, delta) if delta else PureDP(epsilon)

    def check_delta(self) -> None:
        """Raise if delta is positive and the mechanism does not use it.

        Raises
        ------
        ValueError
            If delta has no effect.
        """
        if self.delta and self.mechanism != "central":
            raise ValueError(
                f"mechanism {self.mechanism!r} does not use a delta: expected "
                f"delta=0, got {self.delta!r}; omit it, or use mechanism='central'"
            )

    def check_classes(self) -> None:
        """Raise unless the labels are declared.

        Raises
        ------
        ValueError
            If ``classes`` is None: under a budget, labels cannot be derived from rows.
        """
        if self.classes is None:
            raise ValueError(
                "the labels cannot be derived from rows under a privacy budget: declare them with "
                "Privacy(classes=[...]), or with Privacy(schema=...) for data frames and files"
            )

    def check_fields(self, method: str, names: tuple[str, ...]) -> None:
        """Raise ValueError if a field of ``names``, without effect, is set."""
        unused = [
            entry.name
            for entry in fields(self)
            if entry.name in names and getattr(self, entry.name) != entry.default
        ]
        if unused:
            raise ValueError(
                f"{', '.join(unused)} have no effect for {method}; omit them from Privacy"
            )


def check_privacy(privacy: object) -> None:
    """Raise TypeError unless a budget is a ``Privacy``."""
    if not isinstance(privacy, Privacy):
        raise TypeError(
            f"expected privacy=fedneighbors.Privacy(epsilon=...) or None, got {privacy!r}"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} as one of {choices}, got {value!r}")


def terms(privacy: Privacy) -> dict[str, str]:
    """Return the privacy settings as exact text, which parties can compare."""
    return {
        "epsilon": str(exact(privacy.epsilon, "epsilon")),
        "delta": str(exact(privacy.delta, "delta")),
        "mechanism": privacy.mechanism,
        "neighbors": privacy.neighbors,
        "constants_share": str(exact(privacy.constants_share, "constants_share")),
        "accounting": privacy.accounting,
        "n_parties": str(privacy.n_parties),
        "colluders": str(privacy.colluders),
        "schema": "" if privacy.schema is None else privacy.schema.digest,
        "classes": repr(privacy.classes),
        "bounds": _bounds_text(privacy.bounds),
    }


def _bounds_text(bounds: Any) -> str:
    return "" if bounds is None else repr([np.asarray(bound, float).tolist() for bound in bounds])


_NUMBER_KEYS = ("epsilon", "delta", "constants-share")
_CHOICE_KEYS = ("mechanism", "neighbors", "accounting")
_COUNT_KEYS = ("n-picks", "n-parties", "colluders")


def privacy_from(config: Mapping[str, Any]) -> Privacy | None:
    """Return the privacy settings of a configuration, or None without ``epsilon``.

    Parameters
    ----------
    config : mapping
        Arguments of :class:`~fedneighbors.privacy.Privacy` by name, with ``-`` for ``_``. Numbers
        may be text such as ``"1/3"``; ``schema`` is the path of a TOML file. An empty text, or 0
        for ``n-picks`` and ``n-parties``, counts as absent.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of another type, or no schema is given.
    MissingDataError, DataError
        If the schema file is missing or invalid.
    """
    if config.get("epsilon", "") == "":
        return None
    arguments: dict[str, Any] = {
        key.replace("-", "_"): config[key]
        for key in (*_NUMBER_KEYS, *_CHOICE_KEYS, *_COUNT_KEYS)
        if config.get(key, "") != "" and not (key in ("n-picks", "n-parties") and config[key] == 0)
    }
    if not config.get("schema"):
        raise ValueError(
            "epsilon needs a schema: under a privacy budget, rows must not decide how a table is "
            "read. Declare columns, ranges and labels in a TOML file; `fedneighbors schema draft` "
            "helps to write it from public rows"
        )
    return Privacy(**arguments, schema=Schema.load(str(config["schema"])))
