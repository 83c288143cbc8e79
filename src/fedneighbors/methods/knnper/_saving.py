"""Writes fitted estimators to one file, whole or for a single client, and reads them again."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._membership import needs_torch
from fedneighbors.methods.knnper._tasks import Task


class Saved:
    """What estimators have in common that can be written to a file, once they are fitted."""

    clients_: dict[str, Any]
    _shared: Any
    _network: Any
    _memory_settings: Any
    _row_shape: tuple[int, ...]
    _blueprint: Any
    _read: tuple[Any, str] = (None, "")
    _task: ClassVar[Task]
    _known: Any
    _names: Any

    @property
    def guarantee_(self) -> str:
        """The privacy of the shared network in words; empty where it is exact.

        Memories are no part of it: they are the clients' own rows.
        """
        if self._shared is self._read[0]:
            return self._read[1]
        privacy = getattr(self, "privacy", None)
        if privacy is None:
            return ""
        return f"{privacy.total}; {privacy.neighbors} of one row; {privacy.mechanism}"

    def save(self, path: str | Path, client: object = None) -> None:
        """Write network and memories to one file; an interrupted write leaves nothing behind.

        The file holds numbers and words alone. The memories in it are embeddings and labels, or
        targets, of the clients' rows: give a client its own, not those of others.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write this client's memory only, to hand it the file. None: those of all.

        Raises
        ------
        ValueError
            If the client is not known.
        """
        check_is_fitted(self)
        with self._network.alone():
            chosen = sorted(self.clients_) if client is None else [self._known(client)]
            self._kept(chosen).save(path)

    def _kept(self, chosen: list[str]) -> Any:
        """Return the model as it stands in a file, with the memories of some clients."""
        from fedneighbors.methods.knnper._model import KNNPerModel
        from fedneighbors.methods.knnper._records import ClientRecord

        named = replace(self._shared.agreed, feature_names=self._names())
        shared = replace(self._shared, agreed=named)
        return KNNPerModel(
            blueprint=self._blueprint,
            layout=self._network.digest,
            shared=shared,
            settings=self._memory_settings,
            clients={name: ClientRecord.of(self.clients_[name]) for name in chosen},
            guarantee=self.guarantee_,
            flat=getattr(self, "_is_flat", False),
        )

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Read an estimator that :meth:`save`, or a party of a federation, has written.

        Parameters
        ----------
        path : path
            The file.
        model : torch.nn.Module or callable, optional
            The network, where the file is of one of the user's own: its code is in no file.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ModelFileError
            If the file is missing, truncated, altered, foreign, of another version, of another
            network than ``model``, or of numbers where classes are told apart, or the other way.
        ValueError
            If the file is of a network of the user's own and ``model`` is not given.
        """
        needs_torch()
        from fedneighbors.methods.knnper._model import KNNPerModel, kept_network
        from fedneighbors.tabular._model_file import usable

        kept = KNNPerModel.load(path)
        cls._refuse_kind(kept, path)
        network = kept_network(kept, model, source=str(path))
        found = cls(**_parameters(kept, cls, model))
        with usable(str(path)):
            found._become(kept, network)
        return found

    @classmethod
    def _refuse_kind(cls, kept: Any, path: str | Path) -> None:
        """Refuse a model of numbers where classes are told apart, and the other way."""
        if kept.task is not cls._task:
            what, reader = kept.task.reader
            raise ModelFileError(f"{path} holds a model that {what}; read it with {reader}.load")

    def _become(self, kept: Any, network: Any) -> None:
        shared = kept.shared
        self._network, self._shared = network, shared
        self._read = (shared, kept.guarantee)
        self._memory_settings, self._row_shape = kept.settings, kept.blueprint.shape
        self._blueprint = kept.blueprint
        self.clients_ = kept.own_parts()
        self._take(kept)
        self.weights_, self.overall_ = shared.weights, shared.overall
        weights = () if shared.pool is None else shared.pool.tolist()
        self.pool_ = dict(zip(self._task.experts, weights, strict=False))
        self.n_features_in_ = kept.blueprint.shape[0]
        if shared.agreed.feature_names is not None:
            self.feature_names_in_ = np.array(shared.agreed.feature_names, dtype=object)

    def _take(self, kept: Any) -> None:
        """Take from a file what is told of classes alone."""
        self.classes_: npt.NDArray[Any] = np.array(kept.shared.classes)


def _parameters(kept: Any, cls: Any, model: Any) -> dict[str, Any]:
    """Return the parameters of an estimator that a file tells of; the rest are defaults."""
    settings = vars(kept.settings)
    named = {
        **settings,
        "memory": "exact" if kept.settings.codec is not None else kept.settings.memory,
        **kept.blueprint.parameters(model),
        "standardize": len(kept.shared.center) > 0,
        "random_state": settings["seed"],
    }
    known = cls._get_param_names()
    return {name: value for name, value in named.items() if name in known}
