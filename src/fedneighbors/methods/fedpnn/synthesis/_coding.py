"""How one column becomes numbers that a network can make, and comes back."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.datasets._table import Column
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._mixture import Modes

Codes = npt.NDArray[np.int64]

_REACH = 4.0  # a mode reaches this many standard deviations to either side
_EDGE = 0.99


@dataclass(frozen=True, eq=False)
class NumericCoding:
    """A number as the mode that it belongs to and its place in that mode.

    A cell is one of: a *repeated value* (stands for itself), a *mode* (a Gaussian, with the place
    ``(value - mean) / (4 deviation)``), or missing. These are the categories of the column, in
    this order.

    Parameters
    ----------
    name : str
        Column name.
    repeated : float64 array of shape (n_repeated,)
        Values that many rows share, ascending.
    modes : Modes or None
        None where every value is a repeated one.
    missing : bool
        Whether the last category is "missing".
    whole : bool
        Whether all values were whole numbers; decoded ones are then rounded.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.2.
    """

    name: str
    repeated: Floats
    modes: Modes | None
    missing: bool
    whole: bool

    @property
    def width(self) -> int:
        """Number of categories."""
        n_modes = 0 if self.modes is None else len(self.modes.means)
        return len(self.repeated) + n_modes + self.missing

    @property
    def scalar(self) -> bool:
        """Whether there is a place in a mode to code."""
        return self.modes is not None

    def encode(self, column: Column, rng: np.random.Generator) -> tuple[Codes, Floats]:
        """Category and place of each cell; the mode is drawn from its posterior.

        Raises
        ------
        DataError
            If the column is nominal, or a cell cannot be coded: one is missing, or differs from
            the repeated values, and none of the rows of the fit did.
        """
        if column.dtype == np.object_:
            raise DataError(f"column {self.name!r} holds words; it was numeric in the fit")
        values = column.astype(np.float64)
        codes = np.full(len(values), self.width - 1)
        places = np.zeros(len(values))
        gone = np.isnan(values)
        if gone.any() and not self.missing:
            raise DataError(
                f"column {self.name!r} has missing cells; it had none in the fit. Fill them, or "
                "fit on rows with missing cells too"
            )
        at = np.minimum(np.searchsorted(self.repeated, values), len(self.repeated) - 1)
        same = self.repeated[at] == values if len(self.repeated) else np.zeros_like(gone)
        codes[same] = at[same]
        rest = np.flatnonzero(~gone & ~same)
        if self.modes is not None:
            codes[rest], places[rest] = self._in_modes(self.modes, values[rest], rng)
        elif len(rest):
            raise DataError(
                f"column {self.name!r} holds {values[rest[0]]}; in the fit it held "
                f"{self.repeated.tolist()} alone"
            )
        return codes, places

    def _in_modes(
        self, modes: Modes, values: Floats, rng: np.random.Generator
    ) -> tuple[Codes, Floats]:
        ladder = np.cumsum(modes.posterior(values), axis=1)
        drawn = (ladder < rng.random((len(values), 1)) * ladder[:, -1:]).sum(axis=1)
        places = (values - modes.means[drawn]) / (_REACH * modes.deviations[drawn])
        return len(self.repeated) + drawn, np.clip(places, -_EDGE, _EDGE)

    def decode(self, codes: Codes, places: Floats) -> Column:
        """Numbers with NaN where the category is "missing"."""
        n_repeated = len(self.repeated)
        levels = np.full(self.width, np.nan)
        reach = np.zeros(self.width)
        levels[:n_repeated] = self.repeated
        if self.modes is not None:
            inside = slice(n_repeated, n_repeated + len(self.modes.means))
            levels[inside] = self.modes.means
            reach[inside] = _REACH * self.modes.deviations
        values: Floats = levels[codes] + reach[codes] * places
        return np.round(values) if self.whole else values


@dataclass(frozen=True, eq=False)
class NominalCoding:
    """A word as its place among the categories of the column.

    Parameters
    ----------
    name : str
        Column name.
    categories : tuple of str
        Ascending, without the missing one.
    missing : bool
        Whether the last category is "missing".
    """

    name: str
    categories: tuple[str, ...]
    missing: bool

    @property
    def width(self) -> int:
        """Number of categories, the missing one included."""
        return len(self.categories) + self.missing

    @property
    def scalar(self) -> bool:
        """Words have no place in a mode."""
        return False

    def encode(self, column: Column, rng: np.random.Generator) -> tuple[Codes, Floats]:  # noqa: ARG002
        """Category of each cell; the places are 0 and nothing is drawn.

        Raises
        ------
        DataError
            If the column is numeric, or a category was not there in the fit.
        """
        if column.dtype != np.object_:
            raise DataError(f"column {self.name!r} is numeric; it held words in the fit")
        at: dict[str | None, int] = {word: code for code, word in enumerate(self.categories)}
        if self.missing:
            at[None] = len(self.categories)
        unseen = sorted({repr(word) for word in column} - {repr(word) for word in at})
        if unseen:
            what = "missing cells" if unseen == ["None"] else f"the categories {unseen[:5]}"
            raise DataError(
                f"column {self.name!r} has {what}, which it did not have in the fit; leave these "
                "rows out, or fit on rows that have them"
            )
        return np.array([at[word] for word in column], dtype=np.int64), np.zeros(len(column))

    def decode(self, codes: Codes, places: Floats) -> Column:  # noqa: ARG002
        """Words with None where the category is "missing"."""
        words = np.array([*self.categories, None], dtype=np.object_)
        column: Column = words[codes]
        return column


Coding = NumericCoding | NominalCoding
