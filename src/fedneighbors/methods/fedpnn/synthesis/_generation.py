"""Generation of rows without PyTorch: settings, noise, conditional vectors, trained generator.

A conditional vector requests one category of one nominal column for a generated row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from fedneighbors._typing import Floats, Integers, Singles

Noise = Literal["normal", "mixture", "concat"]
NOISES: tuple[str, ...] = get_args(Noise)

_SHIFT = np.float32(0.2)  # mean of N(0.2, 2)
_SPREAD = np.float32(2.0**0.5)  # the 2 of N(0.2, 2) is the variance


def draw_noise(noise: Noise, n_entries: int, n_rows: int, rng: np.random.Generator) -> Singles:
    """Draw noise for a batch, one column per generated row.

    Parameters
    ----------
    noise : {"normal", "mixture", "concat"}
        ``"normal"``: every entry is N(0, 1). ``"mixture"``: all entries of a row are N(0, 1) or all
        are N(0.2, 2), each with probability 1/2. ``"concat"``: the first half of the
        entries is N(0, 1), the second N(0.2, 2).
    n_entries, n_rows : int
        Size of a noise vector and of the batch.
    rng : numpy.random.Generator
        Random source.

    Returns
    -------
    float32 array of shape (n_entries, n_rows)

    References
    ----------
    .. [1] FedPNN, section 4.1, step a: the modified CTGAN draws from N(0, 1) and N(0.2, 2).
    """
    values = rng.standard_normal((n_entries, n_rows), dtype=np.float32)
    if noise == "mixture":
        shifted = np.flatnonzero(rng.random(n_rows) < 0.5)
        values[:, shifted] = values[:, shifted] * _SPREAD + _SHIFT
    elif noise == "concat":
        half = n_entries // 2
        values[half:] = values[half:] * _SPREAD + _SHIFT
    return values


@dataclass(frozen=True)
class TrainingSettings:
    """Training settings of one generator.

    Parameters
    ----------
    generator, critic : tuple of int
        Number of units of each hidden layer.
    epochs : int
        Number of epochs; each has as many steps as the rows make full batches, at least one.
    batch_size : int
        Number of rows per batch; lowered to a multiple of ``pac`` for smaller tables.
    pac : int
        Number of rows that the critic scores together.
    critic_steps : int
        Number of critic steps per generator step.
    dropout : float
        Fraction of the critic's hidden units that are dropped at each step.
    embedding : int
        Length of a noise vector.
    learning_rate : float
        Learning rate of Adam, for both networks.
    noise : {"normal", "mixture", "concat"}
        Noise distribution, see :func:`draw_noise`.
    informed : bool
        Initialize the generator with the frequencies of categories and modes in the rows.

    Raises
    ------
    TypeError
        If a size is not an integer.
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
            check_size(name, getattr(self, name))
        for name in ("generator", "critic"):
            for units in getattr(self, name):
                check_size(f"a layer of {name}", units)
        if self.batch_size < self.pac:
            raise ValueError(
                f"batch_size={self.batch_size} is less than pac={self.pac}; the critic scores pac "
                "rows of a batch together"
            )
        if not isinstance(self.learning_rate, Real) or not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must lie in (0, 1), got {self.learning_rate!r}")
        if not isinstance(self.dropout, Real) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        if self.noise not in NOISES:
            raise ValueError(f"noise must be one of {NOISES}, got {self.noise!r}")

    def batch_size_for(self, n_rows: int) -> int:
        """Return the batch size for a table: a multiple of ``pac``.

        It is at least ``pac``, even for smaller tables, because rows are drawn with replacement.
        """
        return max(min(self.batch_size, n_rows) // self.pac, 1) * self.pac


def check_size(name: str, value: object) -> None:
    """Raise if a setting is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")


Codes = Integers


@dataclass(frozen=True, eq=False)
class Picks:
    """Conditions drawn for a batch: a column and a category for each row.

    Parameters
    ----------
    columns : int64 array of shape (n_rows,)
        Position of the column among the nominal columns.
    categories : int64 array of shape (n_rows,)
        Category of that column.
    """

    columns: Codes
    categories: Codes


@dataclass(frozen=True, eq=False)
class Conditions:
    """Distribution of conditions, and their conditional vectors.

    Parameters
    ----------
    counts : tuple of int64 arrays
        For each nominal column, the number of training rows in each category.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.3.
    """

    counts: tuple[Codes, ...]

    @cached_property
    def starts(self) -> Codes:
        """Return the first entry of each column in the conditional vector."""
        return np.cumsum([0, *(len(count) for count in self.counts)])

    @property
    def width(self) -> int:
        """Return the length of a conditional vector; 0 without nominal columns."""
        return int(self.starts[-1])

    @cached_property
    def _cumulative_frequencies(self) -> tuple[Floats, Floats]:
        """Return cumulative frequencies of the categories, and of their logarithms.

        Those of column c are shifted to (c, c + 1], so that all columns are searched at once.
        """
        plain = [index + _cumulate(count) for index, count in enumerate(self.counts)]
        damped = [index + _cumulate(np.log1p(count)) for index, count in enumerate(self.counts)]
        return np.concatenate(plain), np.concatenate(damped)

    def draw(self, n_rows: int, rng: np.random.Generator, *, damped: bool) -> Picks:
        """Draw a column, all equally likely, and one of its categories.

        Parameters
        ----------
        n_rows : int
            Size of the batch.
        rng : numpy.random.Generator
            Random source.
        damped : bool
            If True, draw categories with probabilities proportional to the logarithm of their
            frequency, as in training, so that rare ones are learned too. If False, in proportion to
            their frequency, as in sampling.
        """
        columns = rng.integers(len(self.counts), size=n_rows)
        cumulative = self._cumulative_frequencies[damped]
        entries = np.searchsorted(cumulative, columns + rng.random(n_rows), side="right")
        return Picks(columns, entries - self.starts[columns])

    def vectors(self, picks: Picks) -> Singles:
        """Return one-hot conditional vectors, float32 of shape (n_rows, width)."""
        vectors = np.zeros((len(picks.columns), self.width), np.float32)
        vectors[np.arange(len(vectors)), self.starts[picks.columns] + picks.categories] = 1.0
        return vectors


@dataclass(frozen=True, eq=False)
class RowsByCategory:
    """Index of real rows by category, for training by sampling.

    Parameters
    ----------
    rows : tuple of int64 arrays of shape (n_rows,)
        For each nominal column, all rows sorted by category.
    starts : tuple of int64 arrays of shape (n_categories + 1,)
        For each nominal column, the position in ``rows`` where each category begins.
    """

    rows: tuple[Codes, ...]
    starts: tuple[Codes, ...]

    @classmethod
    def of(cls, codes: Codes, widths: Sequence[int]) -> "RowsByCategory":
        """Build the index from the training rows.

        Parameters
        ----------
        codes : int64 array of shape (n_rows, n_nominal)
            Category of each row in each nominal column.
        widths : sequence of int
            Number of categories of each nominal column.
        """
        rows = tuple(np.argsort(column, kind="stable") for column in codes.T)
        starts = tuple(
            np.concatenate([[0], np.cumsum(np.bincount(column, minlength=width))])
            for column, width in zip(codes.T, widths, strict=True)
        )
        return cls(rows, starts)

    def conditions(self) -> Conditions:
        """Return the conditions with the category frequencies of these rows."""
        return Conditions(tuple(np.diff(start) for start in self.starts))

    def draw(self, picks: Picks, rng: np.random.Generator) -> Codes:
        """Draw a random row that meets each condition; return row indices."""
        indices = np.empty(len(picks.columns), np.int64)
        fraction = rng.random(len(indices))
        for column, (rows, starts) in enumerate(zip(self.rows, self.starts, strict=True)):
            matching = np.flatnonzero(picks.columns == column)
            first = starts[picks.categories[matching]]
            count = starts[picks.categories[matching] + 1] - first
            indices[matching] = rows[first + (fraction[matching] * count).astype(np.int64)]
        return indices


def _cumulate(weights: npt.NDArray[np.floating] | Codes) -> Floats:
    """Return cumulative fractions; the last is exactly 1."""
    cumulative: Floats = np.cumsum(weights, dtype=np.float64)
    cumulative /= cumulative[-1]
    return cumulative


_BATCH = 500  # fixed, so that a row does not depend on the number of requested rows


@dataclass(frozen=True, eq=False)
class TrainedGenerator:
    """Weights of a trained generator, with batch normalization folded in.

    Parameters
    ----------
    hidden : tuple of (weight, bias)
        Layers ``relu(weight @ h + bias)``, each concatenated with its input; float32.
    output : (weight, bias)
        Last layer: tanh for positions in modes, logits for one-hot parts; float32.
    n_scalars : int
        Number of outputs that are positions in modes.
    noise : {"normal", "mixture", "concat"}
        Noise distribution of the training.
    embedding : int
        Length of a noise vector.
    """

    hidden: tuple[tuple[Singles, Singles], ...]
    output: tuple[Singles, Singles]
    n_scalars: int
    noise: Noise
    embedding: int

    def __post_init__(self) -> None:
        if not all(np.isfinite(part).all() for layer in self.layers for part in layer):
            raise ValueError("a weight is not finite")

    @property
    def layers(self) -> tuple[tuple[Singles, Singles], ...]:
        """Return all layers, including the output layer."""
        return (*self.hidden, self.output)

    def check_layers(self, n_conditions: int, n_out: int) -> None:
        """Check the shapes of all layers against their inputs and the output."""
        n_in = self.embedding + n_conditions
        for weight, bias in self.layers:
            if bias.ndim != 1 or weight.shape != (len(bias), n_in):
                raise ValueError("layers do not fit together")
            n_in += len(bias)
        if self.embedding < 1 or len(self.output[1]) != n_out:
            raise ValueError("the output layer does not fit the columns")

    def rows(
        self,
        n_rows: int,
        rng: np.random.Generator,
        conditions: Conditions,
        *,
        fixed: Picks | None = None,
    ) -> Singles:
        """Generate encoded rows in the layout of the training matrix.

        One-hot parts hold logits with Gumbel noise, so that the largest entry is a sample from the
        softmax probabilities.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        rng : numpy.random.Generator
            Random source for noise, conditions and categories.
        conditions : Conditions
            Conditions of the training; categories are drawn by their frequency.
        fixed : Picks, optional
            One condition for all rows, of shape (1,).

        Returns
        -------
        float32 array of shape (n_rows, layout.width)
        """
        batches = []
        with threadpool_limits(limits=1):  # the number of threads may change the last bits
            for _ in range(0, n_rows, _BATCH):
                batches.append(self._batch(rng, conditions, fixed))
        encoded: Singles = np.concatenate(batches, axis=1)[:, :n_rows].T
        return np.ascontiguousarray(encoded)

    def _batch(
        self, rng: np.random.Generator, conditions: Conditions, fixed: Picks | None
    ) -> Singles:
        state = draw_noise(self.noise, self.embedding, _BATCH, rng)
        if conditions.width:
            picks = fixed or conditions.draw(_BATCH, rng, damped=False)
            vectors = np.broadcast_to(conditions.vectors(picks), (_BATCH, conditions.width))
            state = np.concatenate([state, vectors.T])
        for weight, bias in self.hidden:
            state = np.concatenate([np.maximum(weight @ state + bias[:, None], 0), state])
        weight, bias = self.output
        output: Singles = weight @ state + bias[:, None]
        output[: self.n_scalars] = np.tanh(output[: self.n_scalars])
        exponential = rng.standard_exponential(output[self.n_scalars :].shape, dtype=np.float32)
        output[self.n_scalars :] -= np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
        return output
