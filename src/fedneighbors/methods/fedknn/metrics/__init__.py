"""Distances and the indexes that make searching them fast, one file per kind of object.

A metric is named, given as an object of its own, or as a plain distance function::

    metric_of("euclidean")
    metric_of(lambda first, second: abs(first - second))
"""

from importlib import import_module
from typing import Any

from fedneighbors.methods.fedknn.metrics._sessions import Metric

__all__ = ["METRIC_NAMES", "metric_of"]

# Module and class of each metric, loaded on first use: strings need no trees, points no graphs.
_HOMES = {
    "euclidean": ("vectors", "VectorMetric"),
    "manhattan": ("vectors", "VectorMetric"),
    "cosine": ("vectors", "VectorMetric"),
    "haversine": ("places", "HaversineMetric"),
    "edit": ("strings", "EditMetric"),
    "graph_edit": ("graphs", "GraphEdit"),
    "jaccard": ("sets", "JaccardMetric"),
}
METRIC_NAMES = tuple(_HOMES)


def metric_of(metric: Any) -> Metric:
    """Return a metric.

    Parameters
    ----------
    metric : str, Metric or callable
        A name among ``METRIC_NAMES``; an object that is a metric already; an object with a method
        ``distance``; or a function of two objects that returns a number of 0 or more. The last
        two get a search that is correct and computes every distance.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If ``metric`` is none of these.

    Examples
    --------
    >>> metric_of("euclidean").distance([0.0, 3.0], [4.0, 0.0])
    5.0
    """
    if isinstance(metric, str):
        return _named(metric)
    if isinstance(metric, type):
        raise TypeError(f"expected a metric, got the class {metric.__name__}; pass an object of it")
    if isinstance(metric, Metric):
        return metric
    function = getattr(metric, "distance", metric)
    if not callable(function):
        raise TypeError(
            f"expected a name among {', '.join(METRIC_NAMES)}, a metric or a distance function, "
            f"got {type(metric).__name__}"
        )
    plain = import_module(f"{__name__}._plain").PlainMetric
    name = getattr(metric, "name", None) or getattr(metric, "__name__", "custom")
    return plain(function, str(name))  # type: ignore[no-any-return]


def _named(name: str) -> Metric:
    if name not in _HOMES:
        raise ValueError(f"expected a metric among {', '.join(METRIC_NAMES)}, got {name!r}")
    module, kind = _HOMES[name]
    home = import_module(f"{__name__}._{module}")
    made = getattr(home, kind)
    return made(name) if module == "vectors" else made()  # type: ignore[no-any-return]
