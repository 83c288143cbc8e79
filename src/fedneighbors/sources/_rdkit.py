"""Molecules in RDKit's cartridge for PostgreSQL, found by thresholds of their similarity.

The cartridge's nearest-neighbour index returns wrong objects, and is not used. Its operator ``%``
finds all molecules above a similarity exactly.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import DataError, SourceError
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.sources._candidates import CandidateBatch, SourceSettings
from fedneighbors.sources._filter_sql import Values, sql
from fedneighbors.sources._postgres import PostgresCandidates, PostgresSource, Snapshot

_THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
_MARGIN = 1e-9  # rounding of similarities


class RDKitSource(PostgresSource):
    """Fingerprints of RDKit, for the metric ``tanimoto``.

    The option ``fingerprint`` names the column, of type ``bfp`` and with a GiST index, such as of
    ``morganbv_fp(molecule, 2)`` with ``rdkit.morgan_fp_size = 2048``. Queries in SMILES have such
    fingerprints.
    """

    column_option = "fingerprint"

    def __init__(self, settings: SourceSettings) -> None:
        if settings.metric != "tanimoto":
            raise DataError(f"expected the metric tanimoto, got {settings.metric}")
        super().__init__(settings)

    def _prepare(self) -> None:
        self.check_type("bfp")
        values = Values()
        name = self.options[self.column_option]
        columns = sql.SQL("min(size({0})), max(size({0}))").format(self.column)
        least, most = self.run_once(columns, values)
        if least is None:
            raise DataError(f"the column {name} has no fingerprints: their length is unknown")
        if least != most or least % 8:
            raise DataError(
                f"expected fingerprints of one length in bytes in the column {name}, got {least} "
                f"and {most} bits"
            )
        self.sample = np.ones((1, least // 8), np.uint8)

    def order(self, query: Any, values: Values) -> Any:
        """Return the expression of a fingerprint."""
        point = values.bind(np.asarray(query, np.uint8).tobytes())
        return sql.SQL("bfp_from_binary_text({})").format(point)

    def columns(self) -> Any:
        """Return the bits."""
        return sql.SQL("bfp_to_binary_text({})").format(self.column)

    def decode(self, rows: list[tuple[Any, ...]]) -> npt.NDArray[np.uint8]:
        """Return packed bits."""
        cells, n_bytes = [bytes(row[0]) for row in rows], self.sample.shape[1]
        for cell in cells:
            if len(cell) != n_bytes:
                raise SourceError(
                    f"expected fingerprints of {n_bytes} bytes, got one of {len(cell)}"
                )
        return np.frombuffer(b"".join(cells), np.uint8).reshape(-1, n_bytes)

    def bound(self, distance: float, query: Any) -> float:  # noqa: ARG002 - of other sources
        """Return a lower bound of distances below a threshold of similarity."""
        return math.inf if distance == 1 else distance - _MARGIN

    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> "RDKitCandidates":
        """Open a query over the molecules that meet a filter."""
        return RDKitCandidates(self, self.snapshot(deadline_s), query, where)

    def read_similar(
        self,
        snapshot: Snapshot,
        query: Any,
        where: Where | None,
        threshold: float,
        deadline_s: float | None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of molecules of at least a similarity."""
        values = Values()
        columns = sql.SQL("{}, {}").format(self._id, self.columns())
        rest = None  # all
        if threshold > 0:
            rest = sql.SQL("AND {} %% {}").format(self.column, self.order(query, values))
        statement = self.select(columns, where, values, rest)
        settings = {"rdkit.tanimoto_threshold": repr(threshold)}
        return snapshot.run(statement, values, deadline_s, settings)


class RDKitCandidates(PostgresCandidates):
    """Molecules with similarities above thresholds that descend."""

    _source: RDKitSource
    _n_passed = 0  # thresholds

    def read(self, n: int, *, deadline_s: float | None) -> CandidateBatch:
        """Read the molecules above the next threshold with ``n`` further ones."""
        for i in range(self._n_passed, len(_THRESHOLDS)):
            threshold = _THRESHOLDS[i]
            rows = self._source.read_similar(
                self._snapshot, self._query, self._where, threshold, deadline_s
            )
            if len(rows) >= len(self._seen) + n or threshold == 0:
                break
        self._n_passed = i + 1
        fresh = self._keep_fresh(rows)
        rest = self._source.bound(1 - threshold, self._query)
        return CandidateBatch(
            [row[0] for row in fresh], self._source.decode([row[1:] for row in fresh]), rest
        )
