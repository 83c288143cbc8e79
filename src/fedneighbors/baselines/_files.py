"""Files of fitted baselines: the model for all, each client's own part and rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors import baselines
from fedneighbors.baselines._agreement import Ground
from fedneighbors.baselines._own_rows import OwnRows
from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._model import KNNPerModel, kept_network
from fedneighbors.methods.knnper._records import names_to_json, narrowed, read_names
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._tasks import CLASSES
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model, usable
from fedneighbors.tabular._ownership import party_name

MAGIC = b"FNKNRIV2"
"""How files of baselines begin."""

TOLD_BY_THE_MODEL = {
    "model", "embedding", "head", "hidden", "standardize", "classes", "random_state",
}  # fmt: skip
NOT_KEPT = {"start", "device"}
"""What has been taken over is in the file itself; where networks are computed is up to a reader."""

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class BaselineClient:
    """What one client has for itself, and its rows; labels are positions, names are JSON."""

    own: npt.NDArray[np.floating[Any]]
    x: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    ids: str
    n_named: int


@dataclass(frozen=True, eq=False)
class BaselineFile:
    """The fields of a baseline: its class and parameters, the model for all, and its clients.

    ``clusters`` and ``networks`` are those of clustered clients who are in the file.
    """

    method: str
    parameters: Mapping[str, str | int | float | bool | None]
    model: KNNPerModel
    clients: Mapping[str, BaselineClient]
    clusters: tuple[tuple[str, ...], ...]
    networks: tuple[npt.NDArray[np.floating[Any]], ...]


def write_baseline(found: Any, path: str | Path, names: list[str]) -> None:
    """Write a baseline to a file; an interrupted write leaves nothing behind.

    Parameters
    ----------
    found : Baseline
        Fitted.
    path : path
        The file.
    names : list of str
        The clients whose own parts and rows are written.
    """
    found._check_all()
    owns, clusters, networks = found._told_of(names)
    parts = BaselineFile(
        method=type(found).__name__,
        parameters={name: _scalar(getattr(found, name)) for name in _own_parameters(type(found))},
        model=_model(found),
        clients={name: _client(owns[name], found.rows_[name]) for name in names},
        clusters=tuple(clusters),
        networks=tuple(networks),
    )
    replace_file(path, sealed_model(MAGIC, parts))


def read_baseline(cls: type[R], path: str | Path, model: Any) -> R:
    """Return the baseline that :func:`write_baseline` has written.

    Parameters
    ----------
    cls : baseline class
        Of which it should be.
    path : path
        The file.
    model : torch.nn.Module, callable or None
        The network, where the file is of one of the user's own.

    Raises
    ------
    ModelFileError
        If the file is missing, truncated, altered, foreign, of another version, another method or
        another network.
    ValueError
        If the file is of a network of the user's own and ``model`` is not given.
    """
    source, parts = str(path), _parts(path)
    if parts.method != cls.__name__:
        raise ModelFileError(
            f"{source} holds a model of {parts.method!r:.40}, not of {cls.__name__}; read it with "
            "the load of that class, or with baselines.load"
        )
    kept = parts.model
    if kept.task is not CLASSES or kept.clients:
        raise ModelFileError(f"{source} holds no usable model: that for all is none of a baseline")
    network = kept_network(kept, model, source=source)
    with usable(source):
        found: Any = cls(**_parameters(cls, kept, parts, model))
        found._check_all()
        rounds = RoundSettings.asked_by(found, kept.settings.seed)
        ground = Ground(network, kept.shared)
        found._become(ground, kept.blueprint, rounds, like=np.array(kept.shared.classes))
        _take_clients(found, parts)
    made: R = found
    return made


def method_of(path: str | Path) -> str:
    """Return the name of the class that has written a file.

    Raises
    ------
    ModelFileError
        If the file is no baseline's, or of none that this release knows.
    """
    method = _parts(path).method
    if method not in baselines.TITLES.values():
        raise ModelFileError(f"{path} holds no usable model: no method is called {method!r:.40}")
    return method


def _parts(path: str | Path) -> BaselineFile:
    raw = read_model_file(path)
    return open_model(MAGIC, raw, BaselineFile, source=str(path))


def _own_parameters(cls: Any) -> list[str]:
    """Return the names of the parameters that are in a file by name."""
    names = [each.name for each in fields(cls)]
    return [name for name in names if name not in TOLD_BY_THE_MODEL | NOT_KEPT]


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _model(found: Any) -> KNNPerModel:
    """Return the model for all, without any memory."""
    shared = found._shared
    named = replace(shared.agreed, feature_names=found._names())
    return KNNPerModel(
        blueprint=found._blueprint,
        layout=found._network.digest,
        shared=replace(shared, agreed=named, pool=None, seen=None),
        settings=MemorySettings(seed=found._rounds.seed),
    )


def _client(own: npt.NDArray[Any], rows: OwnRows) -> BaselineClient:
    x = narrowed(rows.x.astype(np.float64)) if rows.x.dtype.kind == "f" else rows.x
    return BaselineClient(own, x, rows.labels, names_to_json(rows.ids), rows.n_named)


def _parameters(cls: Any, kept: KNNPerModel, parts: BaselineFile, model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that a file tells of."""
    expected, told = _own_parameters(cls), dict(parts.parameters)
    if sorted(told) != sorted(expected):
        raise ValueError(f"expected the parameters {sorted(expected)}, got {sorted(told)}")
    network = kept.blueprint.parameters(model)
    return (
        told
        | network
        | {
            "standardize": len(kept.shared.center) > 0,
            "random_state": kept.settings.seed,
        }
    )


def _take_clients(found: Any, parts: BaselineFile) -> None:
    """Give an estimator the columns and clients of a file."""
    kept = parts.model
    found.n_features_in_ = kept.blueprint.shape[0]
    if kept.shared.agreed.feature_names is not None:
        found.feature_names_in_ = np.array(kept.shared.agreed.feature_names, dtype=object)
    n_weights = len(kept.shared.weights)
    if any(each.shape != (n_weights,) or not np.isfinite(each).all() for each in parts.networks):
        raise ValueError("networks of clusters do not fit the model")
    named = [name for cluster in parts.clusters for name in cluster]
    if not set(named) <= set(parts.clients) or len(named) > len(set(named)):
        raise ValueError("clusters are of clients that are not in the file, or are in it twice")
    found._take_clusters(list(parts.clusters), list(parts.networks))
    found.clients_ = {party_name(name): each.own for name, each in parts.clients.items()}
    found.rows_ = {name: _own_rows(name, each, kept) for name, each in parts.clients.items()}
    for name, own in found.clients_.items():
        if own.ndim != 1 or not np.isfinite(own).all() or not found._fits(own):
            raise ValueError(f"what client {name!r:.40} has for itself does not fit the model")


def _own_rows(name: str, told: BaselineClient, kept: KNNPerModel) -> OwnRows:
    """Return a client's rows, if they are such as the model is for."""
    x = told.x.astype(np.float64) if told.x.dtype == np.float32 else told.x
    names, n_classes = read_names(told.ids, len(x)), len(kept.shared.classes)
    if x.shape[1:] != kept.blueprint.shape or x.dtype.kind not in "iufb":
        raise ValueError(f"rows of client {name!r:.40} do not fit the model")
    if not np.isfinite(x).all() or told.labels.shape != (len(x),) or told.n_named < len(x):
        raise ValueError(f"rows of client {name!r:.40} are not finite, or lack labels")
    if len(x) and not (told.labels.min() >= 0 and told.labels.max() < n_classes):
        raise ValueError(f"labels of client {name!r:.40} are none of the classes")
    if len(names) != len(x) or len(set(names)) != len(names):
        raise ValueError(f"names of the rows of client {name!r:.40} do not fit them")
    return OwnRows(x, told.labels, tuple(names), told.n_named)
