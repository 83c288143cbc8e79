"""Vectors in pgvector, found by an exact scan in the database."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.sources._candidates import SourceSettings
from fedneighbors.sources._filter_sql import Values, sql
from fedneighbors.sources._postgres import PostgresCandidates, PostgresSource

_OPERATORS = {"euclidean": "<->", "manhattan": "<+>", "cosine": "<=>", "inner_product": "<#>"}
_UNIT = 2.0**-24  # unit roundoff of float32
_OVERFLOW = {"euclidean": 2.0**63, "manhattan": 2.0**127}  # least distance of an infinite result
_MAX_NORM = 1e15  # squares of components stay far from the limits of float32
_MAX_PRODUCT = 1e37  # largest product of two lengths
_MAX_EF_SEARCH = 1000  # pgvector's limit


class PgvectorSource(PostgresSource):
    """Vectors of pgvector.

    The option ``vector`` names the column, of type ``vector``. The database computes in float32; a
    margin for its rounding errors, and for those of the query, decides what is certain. No index is
    used, unless the option ``exact`` is false: then answers may lack neighbours and say so, and
    private searches are refused.
    """

    column_option = "vector"

    def __init__(self, settings: SourceSettings) -> None:
        if settings.metric not in _OPERATORS:
            names = ", ".join(_OPERATORS)
            raise DataError(f"expected a metric among {names}, got {settings.metric}")
        self.exact = settings.options.get("exact", True)
        if not isinstance(self.exact, bool):
            raise DataError(f"expected true or false for the option 'exact', got {self.exact!r}")
        super().__init__(settings)

    def _more_options(self) -> set[str]:
        return {"exact"}

    def _prepare(self) -> None:
        values = Values()
        name = self.options[self.column_option]
        # the operators of halfvec round the query
        self.check_type("vector", *([] if self.exact else ["halfvec"]))
        has_zero = "bool_or(vector_norm({0}::vector) = 0)" if self.metric == "cosine" else "false"
        columns = sql.SQL(f"min(vector_dims({{0}})), max(vector_dims({{0}})), {has_zero}")
        least, most, zero = self.run_once(columns.format(self.column), values)
        if least is None:
            least = most = self.read_modifier()  # the length that the type declares
        if least < 1:
            raise DataError(
                f"the column {name} has no vectors, so that their length is unknown; declare it"
            )
        if least != most:
            raise DataError(f"the column {name} has vectors of {least} and {most} components")
        if zero:
            raise DataError(
                f"the column {name} has a vector of zeros, which has no angle; name a view without "
                f'it: WHERE vector_norm("{name}"::vector) > 0'
            )
        self.sample = np.ones((1, least))

    def order(self, query: Any, values: Values) -> Any:
        """Return the expression of the distance; of ``inner_product``, its lower bound."""
        point = sql.SQL("{}::real[]::vector").format(values.bind(self._round(query).tolist()))
        operator = sql.SQL(_OPERATORS[self.metric])
        distance = sql.SQL("({} {} {})").format(self.column, operator, point)
        if not self.exact:
            return distance
        # another expression than that of an index, so that the index is not used
        if self.metric in _OVERFLOW:
            return sql.SQL("({} + 0)").format(distance)
        # products out of the range of float32 come first, so that they are always read
        norm, least, margin = sql.SQL("vector_norm({})").format(self.column), "1e-15", sql.SQL("")
        most = _MAX_NORM
        if self.metric == "inner_product":
            error = self._margin(query)
            length = float(np.linalg.norm(self._round(query).astype(np.float64)))
            most = min(most, _MAX_PRODUCT / max(length, 1.0))
            least, margin = "-1", sql.SQL("- {} * {}").format(values.bind(error), norm)
        return sql.SQL(
            "CASE WHEN {0} BETWEEN {1} AND {2} THEN {3} {4} ELSE '-Infinity' END"
        ).format(norm, sql.SQL(least), sql.SQL(repr(most)), distance, margin)

    def columns(self) -> Any:
        """Return the components."""
        return sql.SQL("{}::real[]").format(self.column)

    def decode(self, rows: list[tuple[Any, ...]]) -> Floats:
        """Return vectors from their components."""
        return np.array([row[0] for row in rows], np.float64).reshape(-1, self.sample.shape[1])

    def bound(self, distance: float, query: Any) -> float:
        """Return a lower bound of distances, given a value of ``order``."""
        if not self.exact:
            return distance
        if self.metric in _OVERFLOW:
            distance = min(distance, _OVERFLOW[self.metric])
            n_columns = self.sample.shape[1]
            smallest = 2.0**-74 * n_columns  # squares may vanish
            bound = distance * (1 - (n_columns + 8) * _UNIT) - smallest - self._margin(query)
            return float(max(bound, 0.0))
        if self.metric == "cosine":
            return distance - self._margin(query)
        return distance - 2.0**-120

    def _round(self, query: Any) -> Floats:
        """Return a query in float32; for the cosine, of length 1."""
        point = np.asarray(query, np.float64)
        if self.metric == "cosine":
            point = point / np.linalg.norm(point / np.abs(point).max()) / np.abs(point).max()
        largest = float(np.finfo(np.float32).max)
        return np.clip(point, -largest, largest).astype(np.float32)

    def _margin(self, query: Any) -> float:
        """Return the error of rounded queries and products."""
        point, rounded = np.asarray(query, np.float64), self._round(query).astype(np.float64)
        n_columns = len(point)
        if self.metric == "cosine":  # the rounded query has length 1
            return (4 * (n_columns + 8) + 4 * math.sqrt(n_columns)) * _UNIT
        errors = np.abs(point - rounded)
        if self.metric == "manhattan":
            return float(errors.sum()) * (1 + 1e-9)
        error = float(np.linalg.norm(errors)) * (1 + 1e-9)
        if self.metric == "inner_product":  # for a vector of length 1
            error += (n_columns + 8) * _UNIT * float(np.linalg.norm(rounded))
        return error

    def settings(self, limit: int) -> Mapping[str, str]:
        """Return settings of the database for a read of ``limit`` rows."""
        if self.exact:
            return {}
        return {"hnsw.ef_search": str(min(max(limit, 40), _MAX_EF_SEARCH))}

    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> PostgresCandidates:
        """Open a query over the vectors that meet a filter."""
        candidates = super().open(query, where, deadline_s=deadline_s)
        candidates.exact = self.exact
        return candidates
