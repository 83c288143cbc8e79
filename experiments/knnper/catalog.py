"""Named runs of kNN-Per, each of which returns a record."""

from experiments.harness import Study
from experiments.knnper import capacity, compression, drift, membership, memory, quality, tables

EXPERIMENTS: dict[str, Study] = {
    study.name: study
    for study in (
        tables.TABLE2,
        tables.TABLE3,
        tables.CLAIMS,
        tables.POOL,
        tables.CONCEPT,
        tables.ROLES,
        memory.LAMBDA,
        memory.K,
        memory.SIGMA,
        capacity.CAPACITY,
        capacity.HARDWARE,
        compression.COMPRESSION,
        quality.QUALITY,
        drift.DRIFT,
        membership.MEMBERSHIP,
    )
}
"""The experiments by name."""
