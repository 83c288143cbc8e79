"""A provider's classifier that votes, and its score on held-out rows."""

import hashlib
import hmac
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats
from fedneighbors.datasets._cells import has_values, read_all_cells
from fedneighbors.datasets._files import explain_errors
from fedneighbors.datasets._reading import read_declared_cells
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.datasets._table import check_present, join_names
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Refused, report_failure
from fedneighbors.methods.fedknn._provider import refuse_invalid
from fedneighbors.methods.fedknn.private._padding import EPOCH_BYTES
from fedneighbors.methods.fedknn.protocol import Finished, FinishRequest
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.service._source_config import ModelSection
from fedneighbors.service._votes import (
    SUM_ERROR,
    VoteReply,
    VoteRequest,
    are_probabilities,
    code_rows,
    decode_rows,
    name_cells,
)

log = logging.getLogger(__name__)

_SAFE = "numpy.dtype"  # encoders have it; skops reads it from the header of an empty array
MODEL_FAILED = "the provider's model failed, or returned no probabilities"
"""Code of the refusal of rows for which a model has no votes."""


class Voter:
    """A fitted classifier of a provider.

    A model that was fitted on a data frame gets the columns of its names, missing cells as NaN;
    another gets the features of :meth:`fedneighbors.datasets.Schema.encode`. The vote for a class
    that it does not know is 0.

    Parameters
    ----------
    name : str
        Name of the provider.
    model : classifier of scikit-learn
        It has ``predict_proba`` and ``classes_``.
    schema : Schema
        Columns of rows, and all classes.
    epoch : bytes
        Version of model and held-out rows.

    Attributes
    ----------
    end : float
        Monotonic time at which searches stop; a model has no such limit.
    score, n_held_out : float and int
        Balanced accuracy on held-out rows, and their number; 0 before :meth:`evaluate`.

    Raises
    ------
    DataError
        If the model is no fitted classifier, or its columns or classes are not among the schema's.
    """

    accepts: tuple[type[Any], ...] = (VoteRequest, FinishRequest)

    def __init__(self, name: str, model: Any, schema: Schema, *, epoch: bytes = b"") -> None:
        self.name, self.end = name, math.inf
        self.score, self.n_held_out = 0.0, 0
        self._model, self._schema, self._epoch = model, schema, epoch
        known: Any = getattr(model, "classes_", None)
        if not hasattr(model, "predict_proba") or np.ndim(known) != 1:
            raise DataError(
                "expected a fitted classifier with predict_proba and classes_, got "
                f"{type(model).__name__}"
            )
        labels, are_known = read_labels(list(known), schema.classes)
        if not are_known.all():
            unknown = map(str, np.asarray(known)[~are_known])
            raise DataError(
                f"the model has the class {join_names(unknown)}; the classes of the schema are "
                f"{join_names(map(str, schema.classes))}"
            )
        self._positions = [schema.classes.index(label) for label in labels.tolist()]
        self._names = self._read_names()

    def _read_names(self) -> list[str] | None:
        """Return the columns of the model's data frame, None for features."""
        names = getattr(self._model, "feature_names_in_", None)
        if names is not None:
            check_present(names, self._schema.column_names, source="the schema")
            return [str(name) for name in names]
        n_features = len(self._schema.feature_names)
        expected = getattr(self._model, "n_features_in_", n_features)
        if expected != n_features:
            raise DataError(
                f"the model expects {expected} features, the schema has {n_features}; fit it on "
                "Schema.encode(...).x, or on a data frame with the columns of the schema"
            )
        return None

    def epoch_of(self, _: str) -> bytes:
        """Return the version of the model."""
        return self._epoch

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        if not isinstance(request, VoteRequest):
            return Finished()
        with refuse_invalid():
            rows = decode_rows(request.query, self._schema)
            if len(rows) != request.count:
                raise ValueError(f"expected {request.count} rows, got {len(rows)}")
        try:
            return VoteReply(self.vote(rows), self.score, self.n_held_out)
        except Exception as error:  # a model can raise any; its text may contain cells
            report_failure(error)
            raise Refused(MODEL_FAILED) from None

    def vote(self, rows: Floats) -> Floats:
        """Return the probability of each class of the schema for coded rows.

        Raises
        ------
        ValueError
            If the model returns no probabilities.
        Exception
            Any exception of the model.
        """
        cells = name_cells(rows, self._schema)
        if self._names is None:
            table: Any = self._schema.check_cells(cells).x
        else:
            pandas = optional_module("pandas", "data")
            text = pandas.Series([""]).dtype  # for columns of texts with missing cells, too
            nominal = self._schema.nominal_names
            table = pandas.DataFrame(
                {
                    name: pandas.Series(cells[name], dtype=text if name in nominal else float)
                    for name in self._names
                }
            )
        found = np.array(self._model.predict_proba(table), np.float64)
        found[(found > 1) & (found <= 1 + SUM_ERROR)] = 1.0
        if not are_probabilities(found, (len(rows), len(self._positions))):
            raise ValueError("expected a probability of each row and class")
        votes = np.zeros((len(rows), len(self._schema.classes)))
        votes[:, self._positions] = found
        return votes

    def evaluate(self, path: Path) -> None:
        """Set the score on the labelled rows of a file.

        Rows that the schema does not allow are left out, which is logged.

        Raises
        ------
        DataError
            If the file has no columns or rows of the schema, or the model fails on them.
        """
        schema = self._schema
        if has_values(path):
            cells, n_unreadable = read_all_cells(path), 0
        else:
            cells, n_unreadable = read_declared_cells(
                path, schema, [schema.label], None, strict=True
            )
        check_present([*schema.column_names, schema.label], list(cells), source=str(path))
        found = schema.encode(cells)
        for note in schema.notes(found):
            log.warning("%s: %s", path, note)
        if n_unreadable:
            log.warning("%s: %d rows have another number of cells", path, n_unreadable)
        kept = np.flatnonzero(found.kept)
        if not len(kept):
            raise DataError(f"{path} has no row that the schema allows, with one of its classes")
        rows = code_rows({name: [cells[name][row] for row in kept] for name in cells}, schema)
        try:
            votes = self.vote(rows)
        except Exception as error:  # its text may contain cells
            raise DataError(
                f"the model fails on the rows of {path} with {type(error).__name__}; try its "
                "predict_proba on a data frame of them with the columns of the schema"
            ) from error
        assert found.y is not None  # the label column is present
        labels = np.array(schema.classes)[votes.argmax(axis=1)]
        self.score, self.n_held_out = balanced_accuracy(found.y, labels), len(kept)


def read_voter(
    provider: str,
    collection: str,
    source: ModelSection,
    schema: Schema,
    *,
    folder: Path,
    secret: bytes,
) -> Voter:
    """Read a model, and evaluate it.

    Parameters
    ----------
    provider, collection : str
        Names of the provider and of the collection.
    source : ModelSection
        Files of the model and of the held-out rows.
    schema : Schema
        Columns and classes.
    folder : path
        Folder to which files are relative.
    secret : bytes
        Secret of the provider, from which the version of the model is derived.

    Raises
    ------
    DataError
        If a file is invalid.
    MissingExtraError
        If skops is not installed, or pandas for a model of a data frame.
    """
    file, held_out = folder / source.file, folder / source.held_out
    digest = hashlib.sha256(repr((collection, schema.digest)).encode())
    with explain_errors(file):
        content = file.read_bytes()
    with explain_errors(held_out):
        rows = held_out.read_bytes()
    for part in (content, rows):
        digest.update(len(part).to_bytes(8) + part)
    epoch = hmac.digest(secret, digest.digest(), "sha256")[:EPOCH_BYTES]
    model = _load_model(content, source.trusted, str(file))
    voter = Voter(provider, model, schema, epoch=epoch)
    voter.evaluate(held_out)
    return voter


def _load_model(content: bytes, trusted: tuple[str, ...], place: str) -> Any:
    """Return the model of a file, without running code of it."""
    skops = optional_module("skops.io", "votes")
    known = (_SAFE, *trusted)
    try:
        others = sorted(set(skops.get_untrusted_types(data=content)).difference(known))
        if not others:
            return skops.loads(content, trusted=list(known))
    except Exception as error:  # skops documents none
        raise DataError(
            f"{place} is no model of skops.io.dump that its installed version reads "
            f"({type(error).__name__})"
        ) from error
    raise DataError(
        f"{place} contains types that skops does not know as safe; if you wrote the file yourself, "
        f"add to its source: trusted = {others}"
    )
