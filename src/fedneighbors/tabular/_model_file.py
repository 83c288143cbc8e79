"""Codec of saved models: magic bytes, SHA-256, and the canonical frame of a record.

A record is a dataclass whose fields are the schema of the file. The frame is that of
:mod:`fedneighbors.federation._messages`: opening an untrusted file cannot run code, each length is
checked before memory is allocated, and each value has its declared type. A record checks limits of
its values in ``__post_init__``, which raises ``ValueError``.

The last byte of the magic is the version of the schema. Increase it when a field changes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.records._storage import replace_file

R = TypeVar("R")
_DIGEST_BYTES = 32
_UNUSABLE = (WireError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError)

MAX_PENDING = 16
"""Maximum number of runs whose unfinished models are kept; others delete the oldest."""


SCHEMA_SUFFIX = ".schema.toml"
"""Suffix of the schema next to a model, in place of the model's own suffix."""


def pending_path(path: Path, run: str) -> Path:
    """Return the path of a run's unfinished file."""
    return path.with_name(f"{path.name}.{run or 'run'}.pending")


def keep_pending(path: Path, run: str, content: bytes) -> None:
    """Store a run's unfinished file; delete those of the oldest runs."""
    target = pending_path(path, run)
    replace_file(target, content)
    with suppress(FileNotFoundError):  # another run may delete some, too
        files = [
            file
            for file in target.parent.glob(f"{escape(path.name)}.[!.]*.pending")
            if file.name.count(".") == target.name.count(".")
        ]
        for old in sorted(files, key=lambda file: file.stat().st_mtime)[:-MAX_PENDING]:
            old.unlink()


def copy_schema(source: Path, model: Path) -> None:
    """Copy a schema next to a model, for ``fedneighbors predict``."""
    target = model.with_suffix(SCHEMA_SUFFIX)
    if source.resolve() != target.resolve():
        replace_file(target, source.read_bytes())


class ModelFile:
    """Base of models whose dataclass fields are the schema of their file."""

    magic: ClassVar[bytes]
    """First bytes of the model's files, ending in the version of the schema."""

    def to_bytes(self) -> bytes:
        """Serialize the model; equal models have equal bytes."""
        return encode_model(self.magic, self)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> Self:
        """Read a model from bytes of :meth:`to_bytes`.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        return decode_model(cls.magic, raw, cls, source=source)

    def save(self, path: str | Path) -> None:
        """Write the model file atomically."""
        replace_file(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model file.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated, altered or of another version.
        """
        return cls.from_bytes(read_model_file(path), source=str(path))


class ModelFileMixin:
    """Saving of an estimator whose ``model_`` is its fitted state."""

    model_: Any
    n_features_in_: int

    def name_features(self, names: Sequence[str]) -> Self:
        """Set the column names that later tables are checked against.

        Raises
        ------
        ValueError
            If there is not one name for each column.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        if isinstance(names, str) or len(names) != self.n_features_in_:
            raise ValueError(f"expected a list of {self.n_features_in_} names, got {names!r}")
        self.feature_names_in_ = np.array(list(names), dtype=object)
        self.model_ = replace(self.model_, feature_names=tuple(map(str, names)))
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a file atomically."""
        # The parties of a run need no scikit-learn, which takes as long to load as all the rest.
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        self.model_.save(path)


def encode_model(magic: bytes, record: Any) -> bytes:
    """Return the bytes of a model file; equal records give equal bytes.

    Parameters
    ----------
    magic : bytes
        Magic bytes of the method, ending in the version.
    record : dataclass
        The model.
    """
    frame = encode(record)
    return magic + hashlib.sha256(frame).digest() + frame


def decode_model(magic: bytes, raw: bytes, kind: type[R], *, source: str) -> R:
    """Read a record from bytes of :func:`encode_model`.

    Parameters
    ----------
    magic : bytes
        Expected magic bytes.
    raw : bytes
        Content of the file; untrusted.
    kind : dataclass
        Class of the record.
    source : str
        Source of the bytes, for errors.

    Raises
    ------
    ModelFileError
        If the bytes are truncated, altered, not a model of this method or of another version.
    """
    start, version = len(magic) + _DIGEST_BYTES, len(magic) - 1
    if raw[:version] != magic[:version]:
        raise ModelFileError(f"{source} is not a fedneighbors model; expected a file from save")
    if raw[: len(magic)] != magic:
        raise ModelFileError(
            f"{source} has format version {raw[version : len(magic)]!r}, this release reads "
            f"{magic[version:]!r}; update fedneighbors or train again"
        )
    if hashlib.sha256(raw[start:]).digest() != raw[len(magic) : start]:
        raise ModelFileError(f"{source} is truncated or altered; copy or save it again")
    with convert_file_errors(source):
        record: R = decode(raw[start:], (kind,))
        return record


@contextmanager
def convert_file_errors(source: str) -> Iterator[None]:
    """Convert errors about values from a file to ModelFileError.

    Parameters
    ----------
    source : str
        The file, for errors.
    """
    try:
        yield
    except _UNUSABLE as error:
        raise ModelFileError(f"{source} has no usable model: {error}") from None


def read_model_file(path: str | Path) -> bytes:
    """Return the bytes of a model file.

    Raises
    ------
    ModelFileError
        If it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read the model {path}: {error.strerror}") from error
