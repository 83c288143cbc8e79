"""Named runs of FedPNN, each of which returns a record."""

from experiments.fedpnn import privacy, real, sensitivity, table7
from experiments.harness import Study

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
