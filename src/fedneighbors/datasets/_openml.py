"""Owns the download of a data set from OpenML, which happens only when the user calls it."""

from typing import Any

from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._reading import dataset_from_table
from fedneighbors.datasets._table import Table
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError

_LABEL = "OpenML's default target"


def fetch_openml(name_or_id: str | int) -> Dataset:
    """Download a classification set from OpenML, by scikit-learn's function of that name.

    Needs a network, unless scikit-learn's cache holds the set, and the extra ``data``. Missing
    cells and nominal columns are encoded by constants of all rows, see `TableEncoder`.

    Parameters
    ----------
    name_or_id : str or int
        A name, of which the newest active version is taken, or an OpenML id, which says exactly
        which data is meant.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingDataError
        If OpenML cannot be reached or has no such set.
    DataError
        If the set has no single default target, or cannot be used.
    MissingExtraError
        If pandas is not installed.
    """
    try:
        import pandas  # noqa: F401 - scikit-learn needs it to return a data frame
    except ImportError as error:
        raise MissingExtraError("pandas", "data") from error
    content = _download(name_or_id)
    if content.target is None or content.target.ndim != 1:
        raise DataError(
            f"OpenML set {name_or_id!r} has no single default target; download it and use "
            "read_table with label=..."
        )
    source = f"OpenML {name_or_id!r}, id {content.details['id']}"
    frame = content.data.assign(**{_LABEL: content.target.astype("string")})
    return dataset_from_table(
        Table.from_frame(frame, source=source), _LABEL, name=str(content.details["name"])
    )


def _download(name_or_id: str | int) -> Any:
    from sklearn import datasets

    which = {"data_id": name_or_id} if isinstance(name_or_id, int) else {"name": name_or_id}
    try:
        return datasets.fetch_openml(**which, as_frame=True, parser="auto")
    except (OSError, ValueError) as error:
        raise MissingDataError(
            f"OpenML set {name_or_id!r} could not be fetched ({error}); check the name and the "
            "network, or download the file elsewhere and use read_table"
        ) from error
