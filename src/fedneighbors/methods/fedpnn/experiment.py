"""Named runs of FedPNN, each of which returns a record."""

from fedneighbors.methods.fedpnn.studies import privacy, real, sensitivity, table7
from fedneighbors.records.study import Study

__all__ = ["EXPERIMENTS"]

EXPERIMENTS: dict[str, Study] = {
    study.name: study
    for study in (
        table7.TABLE7,
        sensitivity.SENSITIVITY,
        real.REAL,
        real.NONIID,
        privacy.PRIVACY,
    )
}
"""The experiments by name."""
