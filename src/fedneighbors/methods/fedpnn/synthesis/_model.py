"""Fitted synthesizer: generators with their encodings, and the model file.

The fields of the dataclasses define the format of the file, see
:mod:`fedneighbors.tabular._model_file`. Their checks apply to fitted models and to files.
"""

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedneighbors._typing import Integers
from fedneighbors.datasets._table import Column, Table
from fedneighbors.methods.fedpnn.synthesis._encoding import (
    NominalCoding,
    TableTransform,
)
from fedneighbors.methods.fedpnn.synthesis._generation import Conditions, Picks, TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._tabular import InputFormat
from fedneighbors.partition._assignment import apportion
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label

Codes = Integers

LABEL = "(label)"  # column with the class of a row, for a generator of all classes
MAX_ROWS = 1 << 53  # class counts stay exact in float64
_MAX_TRIES = 20  # batches to generate for a class before rows of other classes are accepted


@dataclass(frozen=True, eq=False)
class TablePart:
    """Generator for one class, for all classes, or for a table without labels.

    Parameters
    ----------
    transform : TableTransform
        Encoding of tables.
    generator : TrainedGenerator
        Weights of the generator.
    conditions : Conditions
        Frequencies of the categories of the nominal columns.
    n_rows : int
        Number of training rows.
    """

    transform: TableTransform
    generator: TrainedGenerator
    conditions: Conditions
    n_rows: int

    def __post_init__(self) -> None:
        counts, layout = self.conditions.counts, self.transform.layout
        if [len(count) for count in counts] != [coding.width for coding in self.nominal]:
            raise ValueError("frequencies do not fit the nominal columns")
        if self.n_rows < 1 or any(c.min() < 0 or c.sum() != self.n_rows for c in counts):
            raise ValueError("frequencies do not fit the number of rows")
        if self.generator.n_scalars != len(layout.scalars):
            raise ValueError("the generator does not fit the numeric columns")
        self.generator.check_layers(self.conditions.width, layout.width)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(coding.name for coding in self.transform.codings)

    @property
    def nominal(self) -> tuple[NominalCoding, ...]:
        """Return the codings of the nominal columns."""
        return tuple(c for c in self.transform.codings if isinstance(c, NominalCoding))

    def table(self, n_rows: int, rng: np.random.Generator, fixed: Picks | None = None) -> Table:
        """Generate rows.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        rng : numpy.random.Generator
            Random source.
        fixed : Picks, optional
            One condition for all rows, of shape (1,).
        """
        encoded = self.generator.rows(n_rows, rng, self.conditions, fixed=fixed)
        return self.transform.table(encoded)


@dataclass(frozen=True, eq=False)
class SynthesisModel(ModelFile):
    """Fitted model with everything that sampling needs.

    Parameters
    ----------
    form : InputFormat
        Input format of the rows.
    classes : tuple of labels
        Labels, ascending; empty if there were none.
    counts : tuple of int
        Number of training rows of each class.
    parts : tuple of TablePart
        One generator per class, or a single one.
    """

    magic: ClassVar[bytes] = b"FNSYNTH2"

    form: InputFormat
    classes: tuple[Label, ...]
    counts: tuple[int, ...]
    parts: tuple[TablePart, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.classes) != len(self.counts) or min(self.counts, default=1) < 1:
            raise ValueError("classes and counts do not fit together")
        if sum(self.counts) > MAX_ROWS:
            raise ValueError(f"expected at most {MAX_ROWS} rows, got {sum(self.counts)}")
        n_parts = max(len(self.classes), 1) if self.parts and self.per_class else 1
        if len(self.parts) != n_parts or any(part.names != self._all_names for part in self.parts):
            raise ValueError("generators and classes do not fit together")
        if not self.per_class:
            labels = self.parts[0].transform.codings[self._all_names.index(LABEL)]
            codes = tuple(sorted(map(str, range(len(self.classes)))))
            if not isinstance(labels, NominalCoding) or labels.categories != codes:
                raise ValueError("labels and classes do not fit together")

    @property
    def per_class(self) -> bool:
        """Return True if each class has a generator of its own."""
        return LABEL not in self._all_names

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns, without the label."""
        return tuple(name for name in self._all_names if name != LABEL)

    @property
    def _all_names(self) -> tuple[str, ...]:
        return self.parts[0].names

    def sample_unlabeled(self, n_rows: int, seed: int) -> Table:
        """Generate rows from a model without classes."""
        return self.parts[0].table(n_rows, np.random.default_rng([seed, 0]))

    def sample_labeled(self, n_rows: int, seed: int, only: int | None) -> tuple[Table, Codes]:
        """Generate rows and the positions of their classes.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        seed : int
            Seed of the sampling.
        only : int, optional
            Position of a single class to generate. None: with the class frequencies of the fit.
        """
        if not self.per_class:
            return self._generate_labeled(n_rows, np.random.default_rng([seed, 0]), only)
        counts = apportion(n_rows, np.array(self.counts)).tolist()
        count_of = dict(enumerate(counts)) if only is None else {only: n_rows}
        parts = [
            (position, self.parts[position].table(count, np.random.default_rng([seed, position])))
            for position, count in count_of.items()
            if count
        ]
        table = _concatenate([part for _, part in parts])
        positions = np.repeat([k for k, _ in parts], [part.n_rows for _, part in parts])
        order = np.random.default_rng([seed, len(self.parts)]).permutation(n_rows)
        return table.take(order), positions[order]

    def _generate_labeled(
        self, n_rows: int, rng: np.random.Generator, only: int | None
    ) -> tuple[Table, Codes]:
        if only is None:
            table = self.parts[0].table(n_rows, rng)
        else:
            table = self._generate_class(n_rows, rng, only)
        generated = np.array([int(code) for code in table.columns[LABEL]], np.int64)
        return table.without([LABEL]), generated if only is None else np.full(n_rows, only)

    def _generate_class(self, n_rows: int, rng: np.random.Generator, only: int) -> Table:
        """Generate rows conditioned on a class; discard rows of other classes."""
        part = self.parts[0]
        column = [coding.name for coding in part.nominal].index(LABEL)
        code = part.nominal[column].categories.index(str(only))
        fixed = Picks(np.array([column]), np.array([code]))
        found, n_found = [], 0
        for _ in range(_MAX_TRIES):
            table = part.table(n_rows, rng, fixed)
            matching = np.flatnonzero(np.equal(table.columns[LABEL], str(only)))
            if len(matching):
                found.append(table.take(matching))
            n_found += len(matching)
            if n_found >= n_rows:
                return _concatenate(found).take(slice(n_rows))
        warnings.warn(
            f"the generator follows the condition of class {self.classes[only]!r} in {n_found} of "
            f"{_MAX_TRIES * n_rows} rows; the sample is filled up with rows of other classes. "
            "Train longer, or with per_class=True",
            stacklevel=4,
        )
        return _concatenate([*found, table]).take(slice(n_rows))


def _concatenate(tables: list[Table]) -> Table:
    columns: dict[str, Column] = {
        name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].names
    }
    return Table(columns, tables[0].source)
