"""A fitted rival as it stands in a file: the model for all, and each client's own part and rows."""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors import baselines as rivals
from fedneighbors.baselines._agreement import Ground
from fedneighbors.baselines._dynamic_clients import OwnRows
from fedneighbors.errors import ModelFileError, WireError
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.files._clients import narrowed
from fedneighbors.methods.knnper.files._memories import read_names
from fedneighbors.methods.knnper.files._model import KNNPerModel
from fedneighbors.methods.knnper.files._network import kept_network
from fedneighbors.records._storage import replace_file
from fedneighbors.tabular._model_file import open_model, read_model_file, sealed_model
from fedneighbors.tabular._ownership import party_name

MAGIC = b"FNKNRIV1"
"""How files of rivals begin."""

TOLD_BY_THE_MODEL = {
    "model", "embedding", "head", "hidden", "standardize", "classes", "random_state",
}  # fmt: skip
NOT_KEPT = {"start", "device"}
"""What has been taken over is in the file itself; where networks are computed is up to a reader."""

R = TypeVar("R")


@message
class RivalClient:
    """What one client has for itself, and its rows; labels are positions, names are JSON."""

    name: str
    own: npt.NDArray[np.floating[Any]]
    x: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    ids: str
    n_named: int


@message
class RivalParts:
    """The fields of a rival: its class and parameters, the model for all as a kNN-Per file.

    ``networks`` and ``clusters``, a JSON list of lists of names, are those of clustered clients who
    are in the file.
    """

    method: str
    parameters: Mapping[str, str | int | float | bool | None]
    model: bytes
    networks: tuple[npt.NDArray[np.floating[Any]], ...]
    clusters: str
    clients: tuple[bytes, ...]


def write_rival(found: Any, path: str | Path, names: list[str]) -> None:
    """Write a rival to a file; an interrupted write leaves nothing behind.

    Parameters
    ----------
    found : Rival
        Fitted.
    path : path
        The file.
    names : list of str
        The clients whose own parts and rows are written.
    """
    found._check_all()
    owns, clusters, networks = found._told_of(names)
    parts = RivalParts(
        method=type(found).__name__,
        parameters={name: _scalar(getattr(found, name)) for name in _own_parameters(type(found))},
        model=_model(found).to_bytes(),
        networks=tuple(networks),
        clusters=json.dumps(clusters),
        clients=tuple(_client_bytes(name, owns[name], found.rows_[name]) for name in names),
    )
    replace_file(path, sealed_model(MAGIC, parts))


def read_rival(cls: type[R], path: str | Path, model: Any) -> R:
    """Return the rival that :func:`write_rival` has written.

    Parameters
    ----------
    cls : rival class
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
            "the load of that class, or with rivals.load"
        )
    kept = KNNPerModel.from_bytes(parts.model, source=source)
    if kept.of_numbers or kept.clients:
        raise ModelFileError(f"{source} holds no usable model: that for all is none of a rival")
    network, layout, _ = kept_network(kept, model, source=source)
    try:
        found: Any = cls(**_parameters(cls, kept, parts, model))
        found._rounds = RoundSettings.asked_by(found, kept.settings.seed)
        found._check_all()
        _become(found, kept, Ground(network, layout, kept.shared), parts)
    except (TypeError, ValueError, RecursionError, WireError) as error:
        raise ModelFileError(f"{source} holds no usable model: {error}") from error
    made: R = found
    return made


def method_of(path: str | Path) -> str:
    """Return the name of the class that has written a file.

    Raises
    ------
    ModelFileError
        If the file is no rival's, or of none that this release knows.
    """
    method = _parts(path).method
    if method not in rivals.TITLES.values():
        raise ModelFileError(f"{path} holds no usable model: no method is called {method!r:.40}")
    return method


def _parts(path: str | Path) -> RivalParts:
    raw = read_model_file(path)
    return open_model(MAGIC, raw, RivalParts, source=str(path))


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
        layout=found._layout.digest,
        shared=replace(shared, agreed=named, pool=None, seen=None),
        settings=MemorySettings(seed=found._rounds.seed),
    )


def _client_bytes(name: str, own: npt.NDArray[Any], rows: OwnRows) -> bytes:
    x = narrowed(rows.x.astype(np.float64)) if rows.x.dtype.kind == "f" else rows.x
    return encode(RivalClient(name, own, x, rows.labels, json.dumps(rows.ids), rows.n_named))


def _parameters(cls: Any, kept: KNNPerModel, parts: RivalParts, model: Any) -> dict[str, Any]:
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


def _become(found: Any, kept: KNNPerModel, ground: Ground, parts: RivalParts) -> None:
    """Make a rival that is not fitted the one of a file."""
    found._know(ground, np.array(kept.shared.classes))
    found._blueprint = kept.blueprint
    found._row_shape = kept.blueprint.shape
    found.n_features_in_ = kept.blueprint.shape[0]
    if kept.shared.agreed.feature_names is not None:
        found.feature_names_in_ = np.array(kept.shared.agreed.feature_names, dtype=object)
    clients = [decode(raw, (RivalClient,)) for raw in parts.clients]
    names = [party_name(each.name) for each in clients]
    found._take_clusters(_clusters(parts.clusters, names), _networks(parts, ground))
    found.clients_ = {each.name: each.own for each in clients}
    found.rows_ = {each.name: _own_rows(each, kept) for each in clients}
    if len(set(names)) < len(names):
        raise ValueError("a client is in it twice")
    for name, own in found.clients_.items():
        if own.ndim != 1 or not np.isfinite(own).all() or not found._fits(own):
            raise ValueError(f"what client {name!r:.40} has for itself does not fit the model")


def _networks(parts: RivalParts, ground: Ground) -> list[npt.NDArray[np.floating[Any]]]:
    n_weights = ground.layout.n_weights
    if any(each.shape != (n_weights,) or not np.isfinite(each).all() for each in parts.networks):
        raise ValueError("networks of clusters do not fit the model")
    return list(parts.networks)


def _clusters(words: str, names: list[str]) -> list[tuple[str, ...]]:
    """Return clusters, each of whose clients is in the file, and in one of them at most."""
    found = json.loads(words)
    if not isinstance(found, list) or not all(isinstance(each, list) for each in found):
        raise ValueError("clusters are no lists of names")
    named = [name for each in found for name in each]
    if not set(map(repr, named)) <= set(map(repr, names)) or len(named) > len(set(named)):
        raise ValueError("clusters are of clients that are not in the file, or are in it twice")
    return [tuple(each) for each in found]


def _own_rows(told: RivalClient, kept: KNNPerModel) -> OwnRows:
    """Return a client's rows, if they are such as the model is for."""
    x = told.x.astype(np.float64) if told.x.dtype == np.float32 else told.x
    names, n_classes = read_names(told.ids, len(x)), len(kept.shared.classes)
    if x.shape[1:] != kept.blueprint.shape or x.dtype.kind not in "iufb":
        raise ValueError(f"rows of client {told.name!r:.40} do not fit the model")
    if not np.isfinite(x).all() or told.labels.shape != (len(x),) or told.n_named < len(x):
        raise ValueError(f"rows of client {told.name!r:.40} are not finite, or lack labels")
    if len(x) and not (told.labels.min() >= 0 and told.labels.max() < n_classes):
        raise ValueError(f"labels of client {told.name!r:.40} are none of the classes")
    if len(names) != len(x) or len(set(names)) != len(names):
        raise ValueError(f"names of the rows of client {told.name!r:.40} do not fit them")
    return OwnRows(x, told.labels, tuple(names), told.n_named)
