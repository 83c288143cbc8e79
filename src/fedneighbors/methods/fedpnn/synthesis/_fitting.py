"""Fitting of a synthesizer: training settings, the codings of each table, then its generator."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from fedneighbors._typing import Progress
from fedneighbors.datasets._table import Table
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.methods.fedpnn.synthesis._encoding import (
    NominalCoding,
    fit_transform,
)
from fedneighbors.methods.fedpnn.synthesis._generation import (
    NOISES,
    Noise,
    RowsByCategory,
)
from fedneighbors.methods.fedpnn.synthesis._model import TablePart


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training of one generator.

    Parameters
    ----------
    generator, critic : tuple of int
        Units of the hidden layers.
    epochs : int
        Passes; each has as many steps as batches fit into the rows.
    batch_size : int
        Rows of a batch; lowered where there are fewer, to a multiple of ``pac``.
    pac : int
        Rows that the critic judges together.
    critic_steps : int
        Steps of the critic for each of the generator.
    dropout : float
        Share of the critic's hidden units that are left out at each step.
    embedding : int
        Entries of a noise vector.
    learning_rate : float
        Of Adam, for both networks.
    noise : {"normal", "mixture", "concat"}
        See :func:`~._generation.draw_noise`.
    informed : bool
        Begin with a generator that makes categories and modes as often as the rows have them.

    Raises
    ------
    TypeError
        If a size is no integer.
    ValueError
        If a setting is out of range.
    """

    generator: tuple[int, ...] = (256, 256)
    critic: tuple[int, ...] = (256, 256)
    epochs: int = 300
    batch_size: int = 500
    pac: int = 10
    critic_steps: int = 1
    dropout: float = 0.5
    embedding: int = 128
    learning_rate: float = 2e-4
    noise: Noise = "mixture"
    informed: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "pac", "critic_steps", "embedding"):
            _check_size(name, getattr(self, name))
        for name in ("generator", "critic"):
            for units in getattr(self, name):
                _check_size(f"a layer of {name}", units)
        if self.batch_size < self.pac:
            raise ValueError(
                f"batch_size={self.batch_size} is less than pac={self.pac}; the critic judges pac "
                "rows of a batch together"
            )
        if not isinstance(self.learning_rate, Real) or not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must lie in (0, 1), got {self.learning_rate!r}")
        if not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        if self.noise not in NOISES:
            raise ValueError(f"noise must be one of {NOISES}, got {self.noise!r}")

    def batch_of(self, n_rows: int) -> int:
        """Rows of a batch when there are ``n_rows``: a multiple of ``pac``, at least one pack.

        A table of fewer rows than a pack is drawn from with replacement, as all batches are.
        """
        return max(min(self.batch_size, n_rows) // self.pac, 1) * self.pac


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")


_FEWEST_ROWS = 2  # a generator of a single row would be that row


@dataclass(frozen=True, eq=False)
class Job:
    """One generator to be trained.

    Parameters
    ----------
    name : str
        Whose rows these are, for messages.
    table : Table
        The rows.
    settings : TrainingSettings
        Sizes and speeds.
    """

    name: str
    table: Table
    settings: TrainingSettings


def fit_parts(
    jobs: Sequence[Job],
    *,
    max_modes: int,
    repeated_share: float | None,
    seed: int,
    progress: Progress,
) -> tuple[TablePart, ...]:
    """Fit codings and train a generator for each job.

    Parameters
    ----------
    jobs : sequence of Job
        At least one.
    max_modes, repeated_share
        See :func:`~._encoding.fit_transform`.
    seed : int
        Of all that is drawn.
    progress : callable
        Told epochs done, epochs of all jobs, and which job.

    Raises
    ------
    MissingExtraError
        If PyTorch is not installed.
    DataError
        If a table has less than two rows, or holds an infinite number.
    ValueError
        If a training diverges.
    """
    for job in jobs:
        if job.table.n_rows < _FEWEST_ROWS:
            raise DataError(
                f"{job.name} has {job.table.n_rows} row (1 sample), expected {_FEWEST_ROWS} or "
                "more: a generator of a single row would repeat it. Leave the row out, or take "
                "per_class=False"
            )
    try:
        from fedneighbors.methods.fedpnn.synthesis._training import train
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "torch") from None
    total, done, parts = sum(job.settings.epochs for job in jobs), 0, []
    for place, job in enumerate(jobs):
        transform = fit_transform(job.table, max_modes=max_modes, repeated_share=repeated_share)
        codes, places = transform.codes(job.table, np.random.default_rng([seed, place, 0]))
        nominal = [k for k, c in enumerate(transform.codings) if isinstance(c, NominalCoding)]
        widths = [transform.codings[k].width for k in nominal]
        rows = RowsByCategory.of(codes[:, nominal], widths)

        def report(
            epoch: int, _: int, what: str, *, before: int = done, name: str = job.name
        ) -> None:
            progress(before + epoch, total, f"{what}, {name}")

        generator = train(
            transform.matrix(codes, places),
            rows,
            transform.layout,
            nominal,
            job.settings,
            seed=(seed, place, 1),
            progress=report,
        )
        parts.append(TablePart(transform, generator, rows.conditions(), job.table.n_rows))
        done += job.settings.epochs
    return tuple(parts)
