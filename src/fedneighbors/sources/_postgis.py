"""Places in PostGIS: geography for ``haversine``, planar geometry for ``euclidean``."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError, SourceError
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.sources._candidates import CandidateCount, SourceSettings
from fedneighbors.sources._filter_sql import Values, sql
from fedneighbors.sources._postgres import PostgresCandidates, PostgresSource, Snapshot

_TYPES = {"haversine": "geography", "euclidean": "geometry"}
_POSTGIS_RADIUS_M = (2 * 6378137.0 + 6356752.314245179506) / 3  # the sphere of <->
_SCALE = 6371008.8 / _POSTGIS_RADIUS_M  # the metric's radius over that of PostGIS
_RELATIVE, _ABSOLUTE = 1e-9, 1e-3  # margins; 2e-13 and 4e-7 m were the largest seen
_FAR_M = 2e7  # 15 km before the antipode, where distances of the metric have errors up to 0.8 m
_NO_LIMIT_M = 2.1e7  # more than half the equator
_WRONG_ORDER = "index returned tuples in wrong order"
_PLANAR = 1e-12  # relative margin of planar distances
_OVERFLOW = float(np.finfo(np.float32).max)  # least distance that PostGIS replaces by NULL
_DEGREES = 4326  # SRID


class PostGISSource(PostgresSource):
    """Points of PostGIS, found with a GiST index.

    The option ``location`` names the column: of type ``geography`` for the metric ``haversine``, or
    ``geometry`` with planar coordinates for ``euclidean``. Distances are computed again, so that
    they equal those of objects in memory.
    """

    column_option = "location"
    sample = np.zeros((1, 2))

    def __init__(self, settings: SourceSettings) -> None:
        if settings.metric not in _TYPES:
            raise DataError(f"expected a metric among {', '.join(_TYPES)}, got {settings.metric}")
        self._is_sphere = settings.metric == "haversine"
        super().__init__(settings)

    def _prepare(self) -> None:
        self.check_type(_TYPES[self.metric])
        values = Values()
        name = self.options["location"]
        points = sql.SQL(
            "coalesce(bool_and(ST_GeometryType({0}::geometry) = 'ST_Point'), true), "
            "array_agg(DISTINCT ST_SRID({0}::geometry)), postgis_typmod_srid({1})"
        ).format(self.column, values.bind(self.read_modifier()))
        are_points, srids, declared = self.run_once(points, values)
        if not are_points:
            raise DataError(f"the column {name} has shapes other than points")
        found = srids or [_DEGREES if self._is_sphere else declared]
        if len(found) > 1 or (self._is_sphere and found != [_DEGREES]):
            expected = f"the SRID {_DEGREES}" if self._is_sphere else "one SRID"
            raise DataError(
                f"expected {expected} in the column {name}, got {', '.join(map(str, found))}; a "
                "view can use ST_Transform"
            )
        (self._srid,) = found

    def condition(self, where: Where | None, values: Values) -> Any:
        """Return the condition of rows with a point that meet a filter."""
        is_empty = sql.SQL("NOT ST_IsEmpty({}::geometry)").format(self.column)
        return sql.SQL("{} AND {}").format(super().condition(where, values), is_empty)

    def _point(self, query: Any, values: Values) -> Any:
        """Return the expression of a query."""
        x, y = (values.bind(float(value)) for value in query)
        point = f"ST_SetSRID(ST_MakePoint({{}}, {{}}), {int(self._srid)})::{_TYPES[self.metric]}"
        return sql.SQL(point).format(x, y)

    def order(self, query: Any, values: Values) -> Any:
        """Return the expression of the distance."""
        return sql.SQL("{} <-> {}").format(self.column, self._point(query, values))

    def columns(self) -> Any:
        """Return the coordinates of a point."""
        return sql.SQL("ST_X({0}::geometry), ST_Y({0}::geometry)").format(self.column)

    def decode(self, rows: list[tuple[Any, ...]]) -> Floats:
        """Return points from coordinates."""
        return np.array(rows, np.float64).reshape(-1, 2)

    def bound(self, distance: Any, query: Any) -> float:  # noqa: ARG002 - of other sources
        """Return a lower bound of distances, given one of the database."""
        known = _OVERFLOW if distance is None else float(distance)
        if self._is_sphere:
            return min(known * _SCALE * (1 - _RELATIVE) - _ABSOLUTE, _FAR_M)
        return known * (1 - _PLANAR)

    def settings_after(self, error: SourceError) -> Mapping[str, str] | None:
        """Return settings for another try after an error, if any."""
        # near a pole, bounds of the index exceed distances by rounding errors; a scan has none
        return {"enable_indexscan": "off"} if _WRONG_ORDER in str(error) else None

    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> "PostGISCandidates":
        """Open a query over the points that meet a filter."""
        return PostGISCandidates(self, self.snapshot(deadline_s), query, where)

    def count(
        self,
        snapshot: Snapshot,
        query: Any,
        where: Where | None,
        radius: float,
        deadline_s: float | None,
    ) -> CandidateCount:
        """Count points within a radius; those near its boundary are returned."""
        values = Values()
        if self._is_sphere:
            radius /= _SCALE
            inner = radius * (1 - _RELATIVE) - _ABSOLUTE
            outer = radius * (1 + _RELATIVE) + _ABSOLUTE
            if radius > _FAR_M:
                inner, outer = min(inner, _FAR_M), _NO_LIMIT_M
        else:
            inner, outer = radius * (1 - _PLANAR), radius * (1 + _PLANAR)
        sphere = sql.SQL(", false" if self._is_sphere else "")
        pair = sql.SQL("{}, {}").format(self.column, self._point(query, values))
        is_inner = sql.SQL("ST_Distance({}{}) < {}").format(pair, sphere, values.bind(inner))
        is_near = sql.SQL("AND ST_DWithin({}, {}{})").format(pair, values.bind(outer), sphere)
        # ST_X fails for shapes other than points
        certain = sql.SQL("count(ST_X({}::geometry)) FILTER (WHERE {})").format(
            self.column, is_inner
        )
        statement = self.select(certain, where, values, is_near)
        ((n_certain,),) = snapshot.run(statement, values, deadline_s)
        rest = sql.SQL("{} AND ({}) IS NOT TRUE").format(is_near, is_inner)
        rows = snapshot.run(self.select(self.columns(), where, values, rest), values, deadline_s)
        return CandidateCount(int(n_certain), self.decode(rows))


class PostGISCandidates(PostgresCandidates):
    """Candidates of a query over points."""

    _source: PostGISSource

    def count(self, radius: float, *, deadline_s: float | None) -> CandidateCount | None:
        """Count the points within a radius."""
        if not math.isfinite(radius) or radius < 0:
            return None
        return self._source.count(self._snapshot, self._query, self._where, radius, deadline_s)
