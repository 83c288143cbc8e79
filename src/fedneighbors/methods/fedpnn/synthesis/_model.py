"""A fitted synthesizer, its generators with the codings around them, and its file.

The fields of the dataclasses are the schema of the file, see
:mod:`fedneighbors.tabular._model_file`; their limits hold for fitted models and foreign files.
"""

import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._table import Column, Table
from fedneighbors.methods.fedpnn.synthesis._encoding import (
    NominalCoding,
    TableTransform,
)
from fedneighbors.methods.fedpnn.synthesis._generation import Conditions, Picks, TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._tabular import Form
from fedneighbors.partition._assignment import apportion
from fedneighbors.tabular._model_file import ModelFile
from fedneighbors.tabular._schema import Label

Codes = npt.NDArray[np.int64]

LABEL = "(label)"  # column of class numbers in the table of a generator for all classes
_TRIES = 20


@dataclass(frozen=True, eq=False)
class TablePart:
    """One generator: for one class, for all classes, or for a table without labels.

    Parameters
    ----------
    transform : TableTransform
        Between tables and what the generator makes.
    generator : TrainedGenerator
        The weights.
    conditions : Conditions
        Frequencies of the categories of the nominal columns.
    n_rows : int
        Rows of the fit.
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
        """Names of the columns."""
        return tuple(coding.name for coding in self.transform.codings)

    @property
    def nominal(self) -> tuple[NominalCoding, ...]:
        """Codings of the nominal columns."""
        return tuple(c for c in self.transform.codings if isinstance(c, NominalCoding))

    def table(self, n_rows: int, rng: np.random.Generator, fixed: Picks | None = None) -> Table:
        """Generate rows.

        Parameters
        ----------
        n_rows : int
            How many.
        rng : numpy.random.Generator
            Source of all that is drawn.
        fixed : Picks, optional
            The condition of every row, of shape (1,).
        """
        made = self.generator.rows(n_rows, rng, self.conditions, fixed=fixed)
        return self.transform.table(made)


@dataclass(frozen=True, eq=False)
class SynthesisModel(ModelFile):
    """All that sampling needs.

    Parameters
    ----------
    form : Form
        How rows were handed in.
    classes : tuple of labels
        Ascending; empty if there were no labels.
    counts : tuple of int
        Rows of each class in the fit.
    parts : tuple of TablePart
        One per class, or a single one.
    """

    magic: ClassVar[bytes] = b"FNSYNTH2"

    form: Form
    classes: tuple[Label, ...]
    counts: tuple[int, ...]
    parts: tuple[TablePart, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.classes) != len(self.counts) or min(self.counts, default=1) < 1:
            raise ValueError("classes and counts do not fit together")
        n_parts = max(len(self.classes), 1) if self.parts and self.per_class else 1
        if len(self.parts) != n_parts or any(part.names != self._names for part in self.parts):
            raise ValueError("generators and classes do not fit together")
        if not self.per_class:
            labels = self.parts[0].transform.codings[self._names.index(LABEL)]
            words = tuple(sorted(map(str, range(len(self.classes)))))
            if not isinstance(labels, NominalCoding) or labels.categories != words:
                raise ValueError("labels and classes do not fit together")

    @property
    def per_class(self) -> bool:
        """Return whether each class has a generator of its own."""
        return LABEL not in self._names

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without the label."""
        return tuple(name for name in self._names if name != LABEL)

    @property
    def _names(self) -> tuple[str, ...]:
        return self.parts[0].names

    def unlabeled(self, n_rows: int, seed: int) -> Table:
        """Rows of a model without classes."""
        return self.parts[0].table(n_rows, np.random.default_rng([seed, 0]))

    def labeled(self, n_rows: int, seed: int, only: int | None) -> tuple[Table, Codes]:
        """Rows and the place of their class.

        Parameters
        ----------
        n_rows : int
            How many.
        seed : int
            Of all that is drawn.
        only : int, optional
            Place of the one class that is wanted; None keeps the shares of the fit.
        """
        if not self.per_class:
            return self._from_one(n_rows, np.random.default_rng([seed, 0]), only)
        shares = apportion(n_rows, np.array(self.counts)).tolist()
        wanted = dict(enumerate(shares)) if only is None else {only: n_rows}
        parts = [
            (place, self.parts[place].table(count, np.random.default_rng([seed, place])))
            for place, count in wanted.items()
            if count
        ]
        table = _stacked([part for _, part in parts])
        places = np.repeat([place for place, _ in parts], [part.n_rows for _, part in parts])
        mixed = np.random.default_rng([seed, len(self.parts)]).permutation(n_rows)
        return table.take(mixed), places[mixed]

    def _from_one(
        self, n_rows: int, rng: np.random.Generator, only: int | None
    ) -> tuple[Table, Codes]:
        if only is None:
            made = self.parts[0].table(n_rows, rng)
        else:
            made = self._of_class(n_rows, rng, only)
        said = np.array([int(word) for word in made.columns[LABEL]], np.int64)
        return made.without([LABEL]), said if only is None else np.full(n_rows, only)

    def _of_class(self, n_rows: int, rng: np.random.Generator, only: int) -> Table:
        """Rows made under the condition of a class; those of another class are thrown away."""
        part = self.parts[0]
        place = [coding.name for coding in part.nominal].index(LABEL)
        code = part.nominal[place].categories.index(str(only))
        fixed = Picks(np.array([place]), np.array([code]))
        found, n_found = [], 0
        for _ in range(_TRIES):
            made = part.table(n_rows, rng, fixed)
            right = np.flatnonzero(np.equal(made.columns[LABEL], str(only)))
            if len(right):
                found.append(made.take(right))
            n_found += len(right)
            if n_found >= n_rows:
                return _stacked(found).take(slice(n_rows))
        warnings.warn(
            f"the generator follows the condition of class {self.classes[only]!r} in {n_found} of "
            f"{_TRIES * n_rows} rows; the rest is what it made under that condition. Train longer, "
            "or with per_class=True",
            stacklevel=4,
        )
        return _stacked([*found, made]).take(slice(n_rows))


def _stacked(tables: list[Table]) -> Table:
    columns: dict[str, Column] = {
        name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].names
    }
    return Table(columns, tables[0].source)
