"""The one safe file format of a fitted synthesizer.

A file is ``b"FNSYNTH1"``, the SHA-256 of the rest, and one canonical frame, whose parts are frames
again. It holds numbers, strings and arrays only, so that opening a foreign file cannot run code.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers, Singles
from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.fedpnn.synthesis._coding import Coding, NominalCoding, NumericCoding
from fedneighbors.methods.fedpnn.synthesis._conditions import Conditions
from fedneighbors.methods.fedpnn.synthesis._generation import TrainedGenerator
from fedneighbors.methods.fedpnn.synthesis._mixture import Modes
from fedneighbors.methods.fedpnn.synthesis._model import LABEL, SynthesisModel, TablePart
from fedneighbors.methods.fedpnn.synthesis._tabular import Form
from fedneighbors.methods.fedpnn.synthesis._transform import TableTransform
from fedneighbors.records._storage import replace_file

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
