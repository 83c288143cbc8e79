"""Votes of the providers' classifiers: messages, coded rows, rounding, and the average.

Rows are coded by the schema of the collection: a number is itself, a category its position; NaN
marks a missing cell. Classes have the order of the schema.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedneighbors._typing import Array, Floats
from fedneighbors.datasets._cell_faults import check_row
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import CategoricalColumn
from fedneighbors.errors import DataError, FederationError, ProtocolError
from fedneighbors.federation._loop import Coordinator
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.fedknn.algorithm import check_query
from fedneighbors.methods.fedknn.metrics._mixed import code_cells, columns_of
from fedneighbors.methods.fedknn.protocol import ActiveProviders

MAX_ROWS = 1000
"""Maximum number of rows of a request: the average of 8 voters on 10 classes then takes 0.1 s."""

SUM_ERROR = 1e-5
"""Tolerance of sums of float32, which some classifiers return."""


@message
class VoteRows:
    """Coded rows, float64, of shape (n_rows, n_columns)."""

    cells: Floats


@message
class VoteReply:
    """Probabilities of each row and class, and the voter's score on its held-out rows."""

    probabilities: Floats
    score: float
    n_held_out: int


@message
class VoteRequest:
    """Request for votes on ``count`` rows, whose frame is the query."""

    reply: ClassVar[type] = VoteReply
    name: str
    query: bytes
    count: int

    def __post_init__(self) -> None:
        check_query(self.query, self.name)


@dataclass(frozen=True)
class Votes:
    """Average of the votes of the providers that answered.

    Parameters
    ----------
    probabilities : float64 array of shape (n_rows, n_classes)
        Weighted mean.
    weights : mapping of str to float
        Score that each provider states.
    n_held_out : mapping of str to int
        Number of held-out rows that it states.
    missing : mapping of str to str
        Missing providers, and the reasons; empty unless partial answers are allowed.
    """

    probabilities: Floats
    weights: Mapping[str, float]
    n_held_out: Mapping[str, int]
    missing: Mapping[str, str]


def encode_rows(rows: Sequence[Any], schema: Schema) -> bytes:
    """Return the frame of a user's rows.

    Parameters
    ----------
    rows : sequence of mapping of str to number, text or None
        Cells by column; a column that is left out is missing.
    schema : Schema
        The columns.

    Raises
    ------
    DataError
        If a column is unknown, a cell is outside of the schema, or a required one is missing; the
        error names row and column.
    """
    for number, row in enumerate(rows, start=1):
        try:
            check_row(schema.columns, row)
        except DataError as error:
            raise DataError(f"row {number}: {error}") from None
    coded = code_rows(columns_of(rows, schema.column_names), schema)
    if np.isinf(coded).any():  # JSON of Python allows it, and a column may have no range
        raise DataError("expected finite numbers or empty cells")
    return encode(VoteRows(coded))


def code_rows(cells: Mapping[str, Any], schema: Schema) -> Floats:
    """Return the coded rows of columns.

    Raises
    ------
    DataError
        If a cell is missing that the schema requires.
    """
    return np.column_stack([code_cells(column, cells[column.name]) for column in schema.columns])


def decode_rows(frame: bytes, schema: Schema) -> Floats:
    """Return the coded rows of a frame.

    Raises
    ------
    WireError, ValueError
        If the frame has no such rows, none or too many, or a cell that the schema does not allow.
    """
    rows: Floats = decode(frame, (VoteRows,)).cells
    if rows.ndim != 2 or rows.shape[1] != len(schema.columns) or not 1 <= len(rows) <= MAX_ROWS:
        raise ValueError(f"expected 1 to {MAX_ROWS} coded rows, got shape {rows.shape}")
    for column, values in zip(schema.columns, rows.T, strict=True):
        if isinstance(column, CategoricalColumn):
            is_valid = np.isin(values, np.arange(len(column.categories)))
        else:
            ((low, high),) = column.bounds
            is_valid = np.isfinite(values) & (values >= low) & (values <= high)
        if column.missing == "keep":
            is_valid |= np.isnan(values)
        if not is_valid.all():
            raise ValueError(f"column {column.name!r} has an invalid code")
    return rows


def name_cells(rows: Floats, schema: Schema) -> dict[str, list[Any]]:
    """Return the cells of coded rows by column; NaN for missing ones."""
    return {
        column.name: [
            column.categories[int(value)] if value == value else value for value in values.tolist()
        ]
        if isinstance(column, CategoricalColumn)
        else values.tolist()
        for column, values in zip(schema.columns, rows.T, strict=True)
    }


def are_probabilities(votes: Array, shape: tuple[int, ...]) -> bool:
    """Return whether the rows of an array are probabilities."""
    if votes.shape != shape or votes.dtype != np.float64:
        return False
    is_within = bool(((votes >= 0) & (votes <= 1)).all())  # NaN is not
    return is_within and bool((abs(votes.sum(axis=1) - 1) <= SUM_ERROR).all())


def round_votes(votes: Floats, step: float) -> Floats:
    """Return probabilities as multiples of a step whose rows sum to 1.

    Each is rounded down; what is left goes to the largest remainders, the first class among equals.
    A step of 1 leaves the label: the first class of largest probability.

    Parameters
    ----------
    votes : float64 array of shape (n_rows, n_classes)
        Probabilities.
    step : float
        1 divided by a whole number; 0 rounds nothing.
    """
    if not step:
        return votes
    n_steps = round(1 / step)
    scaled = votes / votes.sum(axis=1, keepdims=True) * n_steps
    units = np.floor(scaled)
    left = n_steps - units.sum(axis=1, keepdims=True)
    ranks = np.argsort(np.argsort(units - scaled, axis=1, kind="stable"), axis=1)
    rounded: Floats = (units + (ranks < left)) / n_steps
    return rounded


def average_votes(votes: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Return the weighted mean of probabilities, exact but for one rounding.

    The result does not depend on the order of the voters: each cell is the float64 nearest to the
    exact mean.

    Parameters
    ----------
    votes : sequence of float64 arrays of shape (n_rows, n_classes)
        Probabilities of each voter; at least one.
    weights : sequence of float
        Weight of each voter, 0 or more.

    Raises
    ------
    FederationError
        If all weights are 0.
    """
    whole, _ = _count_units(weights)
    total = sum(whole)
    if not total:
        raise FederationError(
            "no voter has a score above 0 on its held-out rows; ask the providers to check models "
            "and held-out files"
        )
    units, n_units = _count_units(np.stack(votes, axis=-1).ravel().tolist())
    n_voters, divisor = len(whole), total * n_units
    means = [
        sum(map(operator.mul, whole, units[first : first + n_voters])) / divisor
        for first in range(0, len(units), n_voters)
    ]
    return np.array(means, np.float64).reshape(votes[0].shape)


def _count_units(numbers: Sequence[float]) -> tuple[list[int], int]:
    """Return numbers as multiples of a unit, and that of 1."""
    ratios = [number.as_integer_ratio() for number in numbers]
    n_units = max(denominator for _, denominator in ratios)  # all are powers of two
    return [numerator * (n_units // denominator) for numerator, denominator in ratios], n_units


def collect_votes(
    query: bytes, shape: tuple[int, int], *, name: str, allow_partial: bool = False
) -> Coordinator[Votes]:
    """Ask every provider for its votes, and average them by score.

    Parameters
    ----------
    query : bytes
        Frame of the rows.
    shape : tuple of int
        Numbers of rows and classes.
    name : str
        Unique name of the query at the providers.
    allow_partial : bool
        Leave out a missing provider, and report it in the result.

    Raises
    ------
    PartyMissing
        If a provider is missing and partial answers are not allowed, or all are missing.
    ProtocolError
        If a provider's votes or score are invalid.
    FederationError
        If all scores are 0.
    """
    active = ActiveProviders(allow_partial=allow_partial)
    replies = yield active.ask(VoteRequest(name, query, shape[0]))
    each = active.read(replies, "the votes")
    for provider, reply in each.items():
        is_score = 0 <= reply.score <= 1 and reply.n_held_out >= 1
        if not is_score or not are_probabilities(reply.probabilities, shape):
            raise ProtocolError(
                f"party {provider!r}: expected probabilities of {shape[0]} rows and {shape[1]} "
                "classes, and a score from 0 to 1 on at least one row; ask again without this party"
            )
    return Votes(
        average_votes(
            [reply.probabilities for reply in each.values()],
            [reply.score for reply in each.values()],
        ),
        {provider: reply.score for provider, reply in each.items()},
        {provider: reply.n_held_out for provider, reply in each.items()},
        dict(active.missing),
    )
