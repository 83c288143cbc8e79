"""Generated classification data of the FlyNN paper's appendix D.2 and D.8."""

from dataclasses import replace

import numpy as np

from fedneighbors.datasets._dataset import Dataset


def synthetic_real(
    n_rows: int, n_features: int, *, seed: int, n_classes: int = 5, n_clusters: int = 3
) -> Dataset:
    """Generate real-valued rows whose classes consist of several separated modes.

    Data as in appendix D.2 of [1]_, by scikit-learn's ``make_classification``: modes are at the
    corners of a hypercube (``class_sep=1.2``), and every feature is informative. The paper does not
    give these parameters. It says that labels have no noise; here, one percent of the rows get a
    random label (``flip_y=0.01``), because results are then closer to its figures.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    n_features : int
        Number of features; ``2 ** n_features`` must be at least ``n_classes * n_clusters``.
    seed : int
        Seed of the generator. Labels and order of rows do not depend on the machine; features may
        differ in the last bit between linear algebra libraries.
    n_classes : int, default=5
        Number of classes, of equal size up to rounding and label noise.
    n_clusters : int, default=3
        Number of modes of each class.

    Returns
    -------
    Dataset
        ``x`` is float64, ``y`` int64 from 0.

    Raises
    ------
    ValueError
        If there are fewer rows than modes, or too few features for the modes.

    References
    ----------
    .. [1] Ram and Sinha, "Federated Nearest Neighbor Classification with a Colony of
       Fruit-Flies", AAAI 2022.

    Examples
    --------
    >>> from experiments.datasets.synthetic import synthetic_real
    >>> data = synthetic_real(1000, 30, seed=0)
    >>> data.x.shape, data.n_classes
    ((1000, 30), 5)
    """
    from sklearn.datasets import make_classification

    modes = n_classes * n_clusters
    if n_rows < modes:
        raise ValueError(f"n_rows={n_rows} is fewer than the {modes} modes; raise it")
    if n_features < np.log2(modes):
        raise ValueError(
            f"n_features={n_features} gives {2**n_features} corners for {modes} modes; raise it"
        )
    x, y = make_classification(
        n_samples=n_rows,
        n_features=n_features,
        n_informative=n_features,
        n_redundant=0,
        n_repeated=0,
        n_classes=n_classes,
        n_clusters_per_class=n_clusters,
        class_sep=1.2,
        flip_y=0.01,
        hypercube=True,
        random_state=seed,
    )
    return Dataset(
        name="synthetic-real",
        x=x,
        y=y.astype(np.int64),
        feature_names=tuple(f"x{position}" for position in range(n_features)),
        source=(
            f"synthetic_real(n_rows={n_rows}, n_features={n_features}, seed={seed}, "
            f"n_classes={n_classes}, n_clusters={n_clusters})"
        ),
    )


def synthetic_binary(
    n_rows: int,
    n_features: int,
    *,
    n_ones: int,
    seed: int,
    n_classes: int = 5,
    n_clusters: int = 3,
) -> Dataset:
    """Generate binary rows with fixed numbers of ones and multimodal classes.

    In each row of `synthetic_real`, the ``n_ones`` largest coordinates become 1 and all others 0;
    of equal coordinates, the first is larger.

    Parameters
    ----------
    n_rows, n_features, seed, n_classes, n_clusters
        See `synthetic_real`.
    n_ones : int
        Number of ones in each row (``b`` in the paper), at least 1 and less than ``n_features``.

    Returns
    -------
    Dataset
        ``x`` is uint8, ``y`` int64 from 0.

    Raises
    ------
    ValueError
        If ``n_ones`` is out of range, or as in `synthetic_real`.

    Examples
    --------
    >>> from experiments.datasets.synthetic import synthetic_binary
    >>> data = synthetic_binary(1000, 100, n_ones=10, seed=0)
    >>> data.x.dtype.name, set(data.x.sum(axis=1).tolist())
    ('uint8', {10})
    """
    if not 1 <= n_ones < n_features:
        raise ValueError(f"n_ones must lie in [1, {n_features}), got {n_ones}")
    real = synthetic_real(n_rows, n_features, seed=seed, n_classes=n_classes, n_clusters=n_clusters)
    largest = np.argsort(-real.x, axis=1, kind="stable")[:, :n_ones]
    x = np.zeros(real.x.shape, dtype=np.uint8)
    np.put_along_axis(x, largest, 1, axis=1)
    return replace(
        real,
        name="synthetic-binary",
        x=x,
        source=real.source.replace("synthetic_real(", f"synthetic_binary(n_ones={n_ones}, "),
    )


def synthetic_private(n_rows: int, *, seed: int, n_test: int = 1000) -> Dataset:
    """Generate the data of the privacy experiments, with a test part.

    Appendix D.8 of the paper: 30 features, 2 classes, 5 modes each, 10,000 or 100,000 rows for
    training and 1,000 for testing, all from one draw of `synthetic_real`.

    Parameters
    ----------
    n_rows : int
        Number of rows of the training part.
    seed : int
        Seed of the generator.
    n_test : int, default=1000
        Number of rows of the test part.

    Returns
    -------
    Dataset
        ``x`` is float64, ``n_train`` equals ``n_rows``.

    Raises
    ------
    ValueError
        If a part would be empty or there are too few rows.

    Examples
    --------
    >>> from experiments.datasets.synthetic import synthetic_private
    >>> train, test = synthetic_private(10_000, seed=0).train_test()
    >>> train.x.shape, test.x.shape
    ((10000, 30), (1000, 30))
    """
    if n_rows < 1 or n_test < 1:
        raise ValueError(f"n_rows={n_rows} and n_test={n_test} must be at least 1")
    both = synthetic_real(n_rows + n_test, 30, seed=seed, n_classes=2, n_clusters=5)
    return replace(
        both,
        name="synthetic-private",
        n_train=n_rows,
        source=f"synthetic_private(n_rows={n_rows}, seed={seed}, n_test={n_test})",
    )
