"""`Dataset`: a labelled matrix and its source."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Booleans, Integers
from fedneighbors.datasets._schema import Schema
from fedneighbors.errors import DataError


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled data set in memory.

    Parameters
    ----------
    name : str
        Name of the data set.
    x : array of shape (n_rows, n_features)
        float64, or the small integer type of the source (images, binary data).
    y : int64 or str array of shape (n_rows,)
        Labels as in the source.
    feature_names : tuple of str
        One name per column of ``x``.
    source : str
        Origin of the rows, such as the path of their file.
    n_train : int, optional
        For a source with a fixed split: the first ``n_train`` rows are for training, the
        rest for testing. None if the source has none.
    parties : str array of shape (n_rows,), optional
        Natural owner of each row (writer, site), if known.
    schema : Schema, optional
        Schema that converted the source's rows to ``x``; use it for rows for prediction.
    notes : tuple of str
        Sentences about the source for its owner, such as columns that look like identifiers; do
        not send them to others.

    Raises
    ------
    DataError
        If the fields do not fit together, or there are no rows or features.
    """

    name: str
    x: Array
    y: Array
    feature_names: tuple[str, ...]
    source: str
    n_train: int | None = None
    parties: npt.NDArray[np.str_] | None = None
    schema: Schema | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or 0 in self.x.shape:
            raise DataError(
                f"data set {self.name!r} has x of shape {self.x.shape}; "
                "expected at least one row and one feature"
            )
        n_rows, n_features = self.x.shape
        for field, values in (("labels", self.y), ("parties", self.parties)):
            if values is not None and values.shape != (n_rows,):
                raise DataError(
                    f"data set {self.name!r} has {n_rows} rows but {field} of shape {values.shape}"
                )
        if len(self.feature_names) != n_features:
            raise DataError(
                f"data set {self.name!r} has {n_features} features "
                f"but {len(self.feature_names)} feature names"
            )
        if self.n_train is not None and not 0 < self.n_train < n_rows:
            raise DataError(
                f"data set {self.name!r} has {n_rows} rows; n_train={self.n_train} "
                "must be between 1 and the number of rows minus 1"
            )

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return int(self.x.shape[0])

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return int(self.x.shape[1])

    @property
    def classes(self) -> Array:
        """Return the distinct labels, ascending."""
        return np.unique(self.y)

    @property
    def n_classes(self) -> int:
        """Return the number of distinct labels."""
        return len(self.classes)

    def take(self, rows: slice | Integers | Booleans) -> "Dataset":
        """Return the data set of the given rows, without a split.

        Parameters
        ----------
        rows : slice, int64 array or bool array
            Positions to keep in this order, or a mask over all rows.

        Returns
        -------
        Dataset
        """
        keep = np.arange(self.n_rows)[rows]
        owners = None if self.parties is None else self.parties[keep]
        return replace(self, x=self.x[keep], y=self.y[keep], parties=owners, n_train=None)

    def train_test(self) -> tuple["Dataset", "Dataset"]:
        """Return both parts of the source's own train/test split.

        Returns
        -------
        tuple of Dataset
            Training part, test part.

        Raises
        ------
        ValueError
            If the source has no split.
        """
        if self.n_train is None:
            raise ValueError(
                f"data set {self.name!r} has no split; use sklearn.model_selection.train_test_split"
            )
        return self.take(slice(None, self.n_train)), self.take(slice(self.n_train, None))
