"""A fitted synthesizer, its generators with the codings around them, and its file.

A file is ``b"FNSYNTH1"``, the SHA-256 of the rest, and one canonical frame, whose parts are frames
again. It holds numbers, strings and arrays only, so that opening a foreign file cannot run code.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers, Singles
from fedneighbors.datasets._table import Column, Table
from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.fedpnn.synthesis._encoding import (
    Coding,
    NominalCoding,
    NumericCoding,
    TableTransform,
)
from fedneighbors.methods.fedpnn.synthesis._generation import Conditions, Picks, TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._mixture import Modes
from fedneighbors.methods.fedpnn.synthesis._tabular import Form
from fedneighbors.records._storage import replace_file

Label = str | int | float | bool
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
class SynthesisModel:
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

    form: Form
    classes: tuple[Label, ...]
    counts: tuple[int, ...]
    parts: tuple[TablePart, ...] = field(repr=False)

    @property
    def per_class(self) -> bool:
        """Whether each class has a generator of its own."""
        return LABEL not in self._names

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without the label."""
        return tuple(name for name in self._names if name != LABEL)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(coding.name for coding in self.parts[0].transform.codings)

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
        wanted = self._shares(n_rows) if only is None else {only: n_rows}
        parts = [
            (place, self.parts[place].table(count, np.random.default_rng([seed, place])))
            for place, count in wanted.items()
            if count
        ]
        table = _stacked([part for _, part in parts])
        places = np.repeat([place for place, _ in parts], [part.n_rows for _, part in parts])
        mixed = np.random.default_rng([seed, len(self.parts)]).permutation(n_rows)
        return table.take(mixed), places[mixed]

    def _shares(self, n_rows: int) -> dict[int, int]:
        """Rows of each class, by largest remainders; ties go to the lower class."""
        exact = np.array(self.counts) * n_rows / sum(self.counts)
        whole = np.floor(exact).astype(np.int64)
        first = np.argsort(whole - exact, kind="stable")[: n_rows - int(whole.sum())]
        whole[first] += 1
        return dict(enumerate(whole.tolist()))

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
        nominal = [c for c in part.transform.codings if isinstance(c, NominalCoding)]
        place = [coding.name for coding in nominal].index(LABEL)
        code = nominal[place].categories.index(str(only))
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


_MAGIC = b"FNSYNTH1"

Doubles = npt.NDArray[np.float64]


@message
class NumericFrame:
    """The coding of a numeric column; no modes where ``means`` is empty."""

    name: str
    repeated: Doubles
    means: Doubles
    deviations: Doubles
    weights: Doubles
    missing: bool
    whole: bool

    def __post_init__(self) -> None:
        _require(self.repeated.ndim == self.means.ndim == 1, "lists of values")
        _require(self.means.shape == self.deviations.shape == self.weights.shape, "modes")
        _require(all(np.isfinite(part).all() for part in (self.repeated, self.means)), "values")
        for part in (self.deviations, self.weights):
            _require(bool(np.isfinite(part).all() and (part > 0).all()), "modes")
        _require(bool((np.diff(self.repeated) > 0).all()), "repeated values")
        _require(len(self.repeated) + len(self.means) + self.missing > 0, "a column")


@message
class NominalFrame:
    """The coding of a nominal column."""

    name: str
    categories: tuple[str, ...]
    missing: bool

    def __post_init__(self) -> None:
        _require(all(a < b for a, b in pairwise(self.categories)), "categories")
        _require(len(self.categories) + self.missing > 0, "categories")


@message
class PartFrame:
    """A generator: codings, frequencies of categories, and layers as weight, bias, weight..."""

    codings: tuple[bytes, ...]
    counts: tuple[Integers, ...]
    layers: tuple[Singles, ...]
    noise: Literal["normal", "mixture", "concat"]
    embedding: int
    n_rows: int

    def __post_init__(self) -> None:
        _require(len(self.layers) >= 2 and len(self.layers) % 2 == 0, "layers")
        _require(all(np.isfinite(layer).all() for layer in self.layers), "layers")
        _require(self.embedding > 0 and self.n_rows > 0, "sizes")


@message
class SynthesisFrame:
    """A whole synthesizer."""

    kind: Literal["table", "frame", "numbers", "objects"]
    coded: tuple[str, ...]
    classes: tuple[str | int | float | bool, ...]
    counts: tuple[int, ...]
    parts: tuple[bytes, ...]

    def __post_init__(self) -> None:
        _require(len(self.classes) == len(self.counts), "classes")
        _require(len(self.parts) in {1, len(self.classes)}, "parts")
        _require(not self.counts or min(self.counts) > 0, "classes")


def to_bytes(model: SynthesisModel) -> bytes:
    """Return a model as the bytes of its file, the same for the same model.

    Parameters
    ----------
    model : SynthesisModel
        Fitted.
    """
    frame = encode(
        SynthesisFrame(
            kind=model.form.kind,
            coded=model.form.coded,
            classes=model.classes,
            counts=model.counts,
            parts=tuple(encode(_part_frame(part)) for part in model.parts),
        )
    )
    return _MAGIC + hashlib.sha256(frame).digest() + frame


def from_bytes(raw: bytes, *, source: str = "the model") -> SynthesisModel:
    """Return the model that :func:`to_bytes` wrote.

    Parameters
    ----------
    raw : bytes
        Not trusted.
    source : str
        What to call it in messages.

    Raises
    ------
    ModelFileError
        If the bytes are truncated, altered, not a synthesizer or of another version.
    """
    start = len(_MAGIC) + 32
    if raw[:7] != _MAGIC[:7]:
        raise ModelFileError(f"{source} is not a synthesizer; give a file made by save")
    if raw[:8] != _MAGIC:
        raise ModelFileError(
            f"{source} has format version {raw[7:8]!r}, this release reads {_MAGIC[7:]!r}; "
            "update fedneighbors or train again"
        )
    if hashlib.sha256(raw[start:]).digest() != raw[len(_MAGIC) : start]:
        raise ModelFileError(f"{source} is truncated or altered; copy or save it again")
    try:
        return _model(decode(raw[start:], (SynthesisFrame,)))
    except (WireError, ValueError) as error:
        raise ModelFileError(f"{source} holds no usable synthesizer: {error}") from None


def write_model(model: SynthesisModel, path: str | Path) -> None:
    """Write the model file; an interrupted write leaves nothing behind.

    Parameters
    ----------
    model : SynthesisModel
        Fitted.
    path : path
        The file; its folder must exist.
    """
    replace_file(path, to_bytes(model))


def read_model(path: str | Path) -> SynthesisModel:
    """Read a model file.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    ModelFileError
        If the file is missing, truncated, altered or of another version.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read the model {path}: {error.strerror}") from error
    return from_bytes(raw, source=str(path))


def _part_frame(part: TablePart) -> PartFrame:
    generator = part.generator
    return PartFrame(
        codings=tuple(encode(_coding_frame(coding)) for coding in part.transform.codings),
        counts=part.conditions.counts,
        layers=tuple(array for layer in (*generator.hidden, generator.output) for array in layer),
        noise=generator.noise,
        embedding=generator.embedding,
        n_rows=part.n_rows,
    )


def _coding_frame(coding: Coding) -> NumericFrame | NominalFrame:
    if isinstance(coding, NominalCoding):
        return NominalFrame(coding.name, coding.categories, coding.missing)
    none = np.empty(0)
    modes = coding.modes or Modes(none, none, none)
    return NumericFrame(
        name=coding.name,
        repeated=coding.repeated,
        means=modes.means,
        deviations=modes.deviations,
        weights=modes.weights,
        missing=coding.missing,
        whole=coding.whole,
    )


def _model(frame: SynthesisFrame) -> SynthesisModel:
    parts = tuple(_part(decode(part, (PartFrame,))) for part in frame.parts)
    names = [[coding.name for coding in part.transform.codings] for part in parts]
    _require(all(each == names[0] for each in names), "columns")
    pooled = LABEL in names[0]
    if pooled:
        labels = parts[0].transform.codings[names[0].index(LABEL)]
        words = tuple(sorted(map(str, range(len(frame.classes)))))
        _require(isinstance(labels, NominalCoding) and labels.categories == words, "labels")
    _require(len(parts) == (1 if pooled else max(len(frame.classes), 1)), "parts")
    return SynthesisModel(Form(frame.kind, frame.coded), frame.classes, frame.counts, parts)


def _part(frame: PartFrame) -> TablePart:
    frames = [decode(raw, (NumericFrame, NominalFrame)) for raw in frame.codings]
    _require(len({each.name for each in frames}) == len(frames) > 0, "columns")
    transform = TableTransform(tuple(map(_coding, frames)))
    nominal = [c.width for c in transform.codings if isinstance(c, NominalCoding)]
    conditions = Conditions(frame.counts)
    _require([len(count) for count in frame.counts] == nominal, "frequencies")
    _require(all(c.min() >= 0 and c.sum() == frame.n_rows for c in frame.counts), "frequencies")
    layers = tuple(zip(frame.layers[::2], frame.layers[1::2], strict=True))
    _require_shapes(layers, frame.embedding + conditions.width, transform.layout.width)
    generator = TrainedGenerator(
        layers[:-1], layers[-1], len(transform.layout.scalars), frame.noise, frame.embedding
    )
    return TablePart(transform, generator, conditions, frame.n_rows)


def _coding(frame: NumericFrame | NominalFrame) -> Coding:
    if isinstance(frame, NominalFrame):
        return NominalCoding(frame.name, frame.categories, frame.missing)
    modes = Modes(frame.means, frame.deviations, frame.weights) if len(frame.means) else None
    return NumericCoding(frame.name, frame.repeated, modes, frame.missing, frame.whole)


def _require_shapes(layers: Sequence[tuple[Singles, Singles]], n_in: int, n_out: int) -> None:
    """Check that every layer takes its input and all that came before, and the last fits."""
    for weight, bias in layers:
        _require(bias.ndim == 1 and weight.shape == (len(bias), n_in), "layers")
        n_in += len(bias)
    _require(len(layers[-1][1]) == n_out, "the last layer")


def _require(sound: Any, what: str) -> None:
    if not sound:
        raise ValueError(f"{what} do not fit together")
