"""Fits what a synthesizer is made of: the codings of each table, then its generator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedneighbors._typing import Progress
from fedneighbors.datasets._table import Table
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.methods.fedpnn.synthesis._coding import NominalCoding
from fedneighbors.methods.fedpnn.synthesis._conditions import RowsByCategory
from fedneighbors.methods.fedpnn.synthesis._generation import TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._model import TablePart
from fedneighbors.methods.fedpnn.synthesis._settings import TrainingSettings
from fedneighbors.methods.fedpnn.synthesis._transform import TableTransform, fit_transform

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
        See :func:`~.transform.fit_transform`.
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
    train = _trainer()
    total, done, parts = sum(job.settings.epochs for job in jobs), 0, []
    for place, job in enumerate(jobs):
        transform = fit_transform(job.table, max_modes=max_modes, repeated_share=repeated_share)

        def report(
            epoch: int, _: int, what: str, *, before: int = done, name: str = job.name
        ) -> None:
            progress(before + epoch, total, f"{what}, {name}")

        parts.append(_part(job, transform, train, seed=(seed, place), progress=report))
        done += job.settings.epochs
    return tuple(parts)


def _part(
    job: Job,
    transform: TableTransform,
    train: Callable[..., TrainedGenerator],
    *,
    seed: tuple[int, int],
    progress: Progress,
) -> TablePart:
    codes, places = transform.codes(job.table, np.random.default_rng([*seed, 0]))
    codings = transform.codings
    nominal = [at for at, coding in enumerate(codings) if isinstance(coding, NominalCoding)]
    rows = RowsByCategory.of(codes[:, nominal], [codings[at].width for at in nominal])
    generator = train(
        transform.matrix(codes, places),
        rows,
        transform.layout,
        nominal,
        job.settings,
        seed=(*seed, 1),
        progress=progress,
    )
    return TablePart(transform, generator, rows.conditions(), job.table.n_rows)


def _trainer() -> Callable[..., TrainedGenerator]:
    try:
        from fedneighbors.methods.fedpnn.synthesis._training import train
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "torch") from None
    return train
