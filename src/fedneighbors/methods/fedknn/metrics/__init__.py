"""Metrics and their search indexes.

Each kind of object has its module; ``_points``, ``_sessions`` and
``_interfaces`` are shared. A metric can be given
as a name, a metric object or a distance function::

    metric_of("euclidean")
    metric_of(lambda first, second: abs(first - second))
"""

from typing import Any

from fedneighbors._lazy import lazy_names
from fedneighbors.datasets._schema import Schema
from fedneighbors.methods.fedknn.metrics._interfaces import Metric

# Modules are imported on first use, so that a metric loads only its own dependencies.
_HOMES = {
    "BrowsingSession": f"{__name__}._sessions",
    "EditMetric": f"{__name__}._strings",
    "SessionBatch": f"{__name__}._interfaces",
    "GraphEditMetric": f"{__name__}._graphs",
    "HaversineMetric": f"{__name__}._places",
    "Index": f"{__name__}._interfaces",
    "JaccardMetric": f"{__name__}._sets",
    "TabularMetric": f"{__name__}._mixed",
    "TanimotoMetric": f"{__name__}._fingerprints",
    "FunctionMetric": f"{__name__}._function",
    "Session": f"{__name__}._interfaces",
    "VectorMetric": f"{__name__}._vectors",
}
_CLASSES = {
    "euclidean": "VectorMetric",
    "manhattan": "VectorMetric",
    "cosine": "VectorMetric",
    "inner_product": "VectorMetric",
    "haversine": "HaversineMetric",
    "edit": "EditMetric",
    "graph_edit": "GraphEditMetric",
    "jaccard": "JaccardMetric",
    "tanimoto": "TanimotoMetric",
    "tabular": "TabularMetric",
}
METRIC_NAMES = tuple(_CLASSES)

__all__ = ["METRIC_NAMES", "Metric", "metric_of", *_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)


def metric_of(metric: Any) -> Metric:
    """Return the metric for a name, metric object or distance function.

    Parameters
    ----------
    metric : str, Schema, Metric or callable
        A name in ``METRIC_NAMES``; the schema of rows with numbers and categories; a metric object;
        an object with a method ``distance``; or a function from two objects to a non-negative
        number. A function, or an object with ``distance`` only, is searched by computing every
        distance.

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If ``metric`` has another type.

    Examples
    --------
    >>> metric_of("euclidean").distance([0.0, 3.0], [4.0, 0.0])
    5.0
    """
    if isinstance(metric, str):
        return _make_named(metric)
    if isinstance(metric, Schema):
        return __getattr__("TabularMetric")(metric)  # type: ignore[no-any-return]
    if isinstance(metric, type):
        raise TypeError(f"expected a metric, got the class {metric.__name__}; pass an instance")
    if isinstance(metric, Metric):
        return metric
    function = getattr(metric, "distance", metric)
    if not callable(function):
        raise TypeError(
            f"expected a name among {', '.join(METRIC_NAMES)}, a metric or a distance function, "
            f"got {type(metric).__name__}"
        )
    name = getattr(metric, "name", None) or getattr(metric, "__name__", "custom")
    return __getattr__("FunctionMetric")(function, str(name))  # type: ignore[no-any-return]


def _make_named(name: str) -> Metric:
    if name not in _CLASSES:
        raise ValueError(f"expected a metric among {', '.join(METRIC_NAMES)}, got {name!r}")
    metric_class = __getattr__(_CLASSES[name])
    metric = metric_class(name) if _CLASSES[name] == "VectorMetric" else metric_class()
    return metric  # type: ignore[no-any-return]
