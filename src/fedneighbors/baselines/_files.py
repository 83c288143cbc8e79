"""Files of fitted baselines: the shared model, and clients' own parts and rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors import baselines
from fedneighbors._typing import Array, Integers
from fedneighbors.baselines._dynamic_clients import NamedRows
from fedneighbors.baselines._trainer import Agreement
from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._model import KNNPerModel, restore_network
from fedneighbors.methods.knnper._records import names_to_json, narrow_keys, read_names
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSIFICATION
from fedneighbors.tabular._model_file import ModelFile, convert_file_errors
from fedneighbors.tabular._ownership import column_names, party_name

STORED_IN_MODEL = {
    "model", "embedding", "head", "hidden", "standardize", "classes", "random_state",
}  # fmt: skip
"""Parameters that files store in the model, not by name."""

NOT_STORED = {"start", "device"}
"""Parameters that files omit: the model has the network of ``start``; ``device`` is local."""


@dataclass(frozen=True, eq=False)
class BaselineClient:
    """One client's own part and rows; labels are class indices, row names are JSON."""

    own: npt.NDArray[np.floating[Any]]
    x: Array
    labels: Integers
    ids: str
    n_named: int

    @classmethod
    def of(cls, own: Array, rows: NamedRows) -> "BaselineClient":
        """Return the file record of a client."""
        x = narrow_keys(rows.x.astype(np.float64)) if rows.x.dtype.kind == "f" else rows.x
        return cls(own, x, rows.labels, names_to_json(rows.ids), rows.next_name)

    def rows(self) -> NamedRows:
        """Return the client's rows."""
        x = self.x.astype(np.float64) if self.x.dtype == np.float32 else self.x
        return NamedRows(x, self.labels, tuple(read_names(self.ids, len(x))), self.n_named)

    def check(self, name: str, model: KNNPerModel) -> None:
        """Raise ValueError unless the rows fit the model."""
        party_name(name)
        rows, n_classes = self.rows(), len(model.shared.classes)
        x, labels = rows.x, rows.labels
        if x.shape[1:] != model.blueprint.shape or x.dtype.kind not in "iufb":
            raise ValueError(f"rows of client {name!r:.40} do not fit the model")
        if not np.isfinite(x).all() or labels.shape != (len(x),) or rows.next_name < len(x):
            raise ValueError(f"rows of client {name!r:.40} are not finite, lack labels or names")
        if len(x) and not (labels.min() >= 0 and labels.max() < n_classes):
            raise ValueError(f"labels of client {name!r:.40} are not among the classes")
        if len(rows) != len(x) or len(set(rows.ids)) != len(x):
            raise ValueError(f"row names of client {name!r:.40} repeat, or are not one per row")


@dataclass(frozen=True, eq=False)
class BaselineFile(ModelFile):
    """A baseline: class and parameters, shared model, and clients.

    ``clusters`` and ``networks`` are those that the clients in the file use; ``networks`` may also
    have other shared arrays of the method.
    """

    magic: ClassVar[bytes] = b"FNKNRIV2"

    method: str
    parameters: Mapping[str, str | int | float | bool | None]
    model: KNNPerModel
    clients: Mapping[str, BaselineClient]
    clusters: tuple[tuple[str, ...], ...]
    networks: tuple[npt.NDArray[np.floating[Any]], ...]

    def __post_init__(self) -> None:
        if self.model.task is not CLASSIFICATION or self.model.clients:
            raise ValueError("the shared model is not that of a baseline")
        if not all(np.isfinite(each).all() for each in self.networks):
            raise ValueError("shared arrays of the method are not finite")
        members = [name for cluster in self.clusters for name in cluster]
        if not set(members) <= set(self.clients) or len(members) > len(set(members)):
            raise ValueError("clusters have a client that is not in the file, or one twice")
        for name, client in self.clients.items():
            client.check(name, self.model)

    @classmethod
    def of(cls, fitted: Any, names: list[str]) -> "BaselineFile":
        """Return the file of a fitted baseline with these clients."""
        client_parts, clusters, networks = fitted._client_state(names)
        shared = fitted._shared
        agreed = replace(shared.agreed, feature_names=column_names(fitted))
        return cls(
            method=type(fitted).__name__,
            parameters={name: _scalar(getattr(fitted, name)) for name in _parameters(fitted)},
            model=KNNPerModel(
                blueprint=fitted._blueprint,
                layout=fitted._network.digest,
                shared=replace(shared, agreed=agreed, pool=None, seen=None),
                settings=MemorySettings(seed=fitted._rounds.seed),
            ),
            clients={
                name: BaselineClient.of(client_parts[name], fitted.rows_[name]) for name in names
            },
            clusters=tuple(clusters),
            networks=tuple(networks),
        )

    def baseline(self, cls: Any, network: Any, model: Any) -> Any:
        """Return the fitted baseline of the file, with this network.

        ``model`` is the user's module or None; it becomes the parameter of that name.
        """
        expected = _parameters(cls)
        if sorted(self.parameters) != sorted(expected):
            raise ValueError(
                f"expected the parameters {sorted(expected)}, got {sorted(self.parameters)}"
            )
        stored = self.model
        unfitted = cls(
            **self.parameters,
            **stored.blueprint.parameters(model),
            standardize=len(stored.shared.center) > 0,
            random_state=stored.settings.seed,
        )
        return unfitted._restore(Agreement(network, stored.shared, stored.blueprint), self)


def read_baseline(path: str | Path, model: Any, cls: Any = None) -> Any:
    """Return the baseline of a file.

    Parameters
    ----------
    path : path
        The file.
    model : torch.nn.Module, callable or None
        The network, if the file refers to a user's module.
    cls : class of a baseline, optional
        Expected class; by default the class in the file.

    Raises
    ------
    ModelFileError
        If the file is missing, truncated, altered, not a baseline, or of another version, method or
        network.
    ValueError
        If the file refers to a user's module and ``model`` is missing.
    """
    file = BaselineFile.load(path)
    if cls is None:
        if file.method not in baselines.TITLES.values():
            raise ModelFileError(
                f"{path} has no usable model: no method is called {file.method!r:.40}"
            )
        cls = getattr(baselines, file.method)
    if file.method != cls.__name__:
        raise ModelFileError(
            f"{path} has a model of {file.method!r:.40}, not of {cls.__name__}; read it with "
            "the load of that class, or with baselines.load"
        )
    network = restore_network(file.model, model, source=str(path))
    with convert_file_errors(str(path)):
        return file.baseline(cls, network, model)


def _parameters(baseline: Any) -> list[str]:
    """Return the names of the parameters that files store by name."""
    return [f.name for f in fields(baseline) if f.name not in STORED_IN_MODEL | NOT_STORED]


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
