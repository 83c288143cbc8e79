"""Owns the classification sets that come with scikit-learn."""

import numpy as np

from fedneighbors.datasets._dataset import Dataset

BUNDLED = ("breast_cancer", "digits", "iris", "wine")


def load_bundled(name: str) -> Dataset:
    """Return a data set that comes with scikit-learn.

    Parameters
    ----------
    name : str
        One of ``BUNDLED``.

    Returns
    -------
    Dataset
        ``x`` is float64, ``y`` int64.

    Raises
    ------
    ValueError
        If scikit-learn has no such classification set.
    """
    if name not in BUNDLED:
        raise ValueError(f"{name!r} is not bundled; expected one of {', '.join(BUNDLED)}")
    from sklearn import datasets

    content = getattr(datasets, f"load_{name}")()
    return Dataset(
        name=name,
        x=np.asarray(content.data, dtype=np.float64),
        y=np.asarray(content.target, dtype=np.int64),
        feature_names=tuple(str(feature) for feature in content.feature_names),
        source=f"scikit-learn, load_{name}",
    )
