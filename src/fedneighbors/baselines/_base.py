"""What all rivals have in common: parameters, checks, and how they are fitted."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from fedneighbors.baselines._dynamic_clients import Joining, OwnRows
from fedneighbors.baselines._prediction import Owns, Vector
from fedneighbors.methods.knnper._membership import Owners, needs_torch
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.tabular._ownership import Holdings, public_seed, rows_by_party
from fedneighbors.tabular._schema import label_array, reserved_labels

if TYPE_CHECKING:
    from fedneighbors.baselines._trainer import Bench


def load(path: str | Path, model: Any = None) -> "Rival":
    """Read a rival that any of the classes has written by its ``save``.

    Parameters
    ----------
    path : path
        The file.
    model : torch.nn.Module or callable, optional
        The network, where the file is of one of the user's own.

    Returns
    -------
    Rival
        Fitted; of the class that has written the file.

    Raises
    ------
    MissingExtraError, ModelFileError, ValueError
        As the ``load`` of the class does.
    """
    needs_torch()
    from fedneighbors import baselines as rivals
    from fedneighbors.baselines._files import method_of

    found: Rival = getattr(rivals, method_of(path)).load(path, model)
    return found


@dataclass(kw_only=True, eq=False, repr=False)
class Rival(Joining, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the methods that kNN-Per is compared with.

    A method says what is trained, what of it is for all and what for each client
    (:meth:`_learned`), and what a client makes of it that comes later (:meth:`_joined`).

    Parameters
    ----------
    model, embedding, head, hidden
        As :class:`~fedneighbors.methods.knnper.KNNPerClassifier` takes them, like all others.
    n_rounds, participation, local_epochs, batch_size
        Of the training.
    learning_rate, momentum, weight_decay
        Of its steps; the rate falls to a third after 60 and 85 % of the rounds.
    validation : float
        Share of each client's rows that :func:`~.tuning.tuned` holds out; :meth:`fit` takes all.
    standardize, trainer, device, classes, random_state
        Of the columns of tables, of how and where clients train side by side, of labels that may
        come, and of all that is drawn.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to float array
        What each client has for itself; nothing, of length 0, where it gets the model for all.
    rows_ : dict of str to OwnRows
        Each client's rows, from which it makes its own part anew where they change.
    weights_ : float array of shape (n_weights,)
        Of the model for all.
    overall_ : float64 array of shape (n_classes,)
        Shares of the classes over all clients.
    """

    grid: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)

    model: Any = field(default=None, kw_only=False)
    embedding: str = "body"
    head: str | tuple[str, ...] = "head"
    hidden: tuple[int, ...] = (256, 128)
    n_rounds: int = 50
    participation: float = 1.0
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    weight_decay: float = 5e-4
    validation: float = 0.2
    standardize: bool = True
    trainer: Literal["auto", "stacked", "reuse"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    classes: Sequence[Any] | None = None
    random_state: int | np.random.RandomState | None = 0

    def fit(self, X: Any, y: Any, parties: Owners = None) -> Self:
        """Train over all clients, on all of their rows.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, ...)
            Rows: numbers, or whole numbers that stand for tokens.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Which client owns each row. None means a single one.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        ValueError
            If a parameter is out of range, or there is not one owner for each row.
        DataError
            If there are fewer than two classes.
        PartyRefused
            If a client's training has diverged.
        """
        x, labels = self._validated(X, y)
        self._rounds = RoundSettings.asked_by(self, public_seed(self.random_state))
        self._check_all()
        holdings = Holdings(x, labels, rows_by_party(parties, len(labels)), self._names())
        needs_torch()
        from fedneighbors.tabular._ownership import one_thread

        ground = self._found_ground(holdings)
        with one_thread():
            bench = ground.bench(holdings, self._rounds, self.trainer, self.device)
            weights, self.clients_ = self._learned(bench)
        self._know(replace(ground, shared=replace(ground.shared, weights=weights)), labels)
        self._row_shape, places = x.shape[1:], self._positions(labels)
        self._blueprint = self._drawn_up(ground)
        self.rows_ = {
            name: OwnRows.first(x[own], places[own]) for name, own in holdings.owned.items()
        }
        return self

    def save(self, path: str | Path, client: object = None) -> None:
        """Write the model to one file; an interrupted write leaves nothing behind.

        The file holds numbers and words alone, the rows of clients among them, from which
        :meth:`update` and :meth:`forget` make own parts anew: give a client its own, not those of
        others.

        Parameters
        ----------
        path : path
            The file.
        client : str or number, optional
            Write this client's own part and rows only, to hand it the file. None: those of all.

        Raises
        ------
        ValueError
            If the client is not known.
        """
        from fedneighbors.baselines._files import write_rival

        check_is_fitted(self)
        with self._network.alone():
            names = sorted(self.clients_) if client is None else [self._known(client)]
            write_rival(self, path, names)

    @classmethod
    def load(cls, path: str | Path, model: Any = None) -> Self:
        """Read an estimator of this class that :meth:`save` has written.

        It says the same, and goes on in the same way. ``device`` is the default; a network that was
        taken over (``start``) is in the file itself.

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
            If the file is missing, truncated, altered, foreign, of another version, another method
            or another network.
        ValueError
            If the file is of a network of the user's own and ``model`` is not given.
        """
        needs_torch()
        from fedneighbors.baselines._files import read_rival

        return read_rival(cls, path, model)

    @abstractmethod
    def _learned(self, bench: "Bench") -> tuple[Vector, Owns]:
        """Return the weights for all, and what each client has for itself.

        Parameters
        ----------
        bench : Bench
            The clients that train.
        """

    def _fits(self, own: Vector) -> bool:
        """Return whether a vector may be what a client of this model has for itself."""
        return len(own) in (0, len(self.weights_))

    def _told_of(self, names: list[str]) -> tuple[Owns, list[tuple[str, ...]], list[Vector]]:
        """Return what some clients have, and their clusters and networks, where there are such."""
        return {name: self.clients_[name] for name in names}, [], []

    def _take_clusters(self, clusters: list[tuple[str, ...]], networks: list[Vector]) -> None:
        """Take over the clusters and networks that :meth:`_told_of` gave."""
        if clusters or networks:
            raise ValueError(f"{type(self).__name__} has no clusters")

    def _check_all(self) -> None:
        """Raise :class:`ValueError` if a parameter is out of range."""
        RoundSettings.asked_by(self, 0)
        MemorySettings(validation=self.validation)
        if self.trainer not in ("auto", "stacked", "reuse"):
            raise ValueError(f"expected trainer 'auto', 'stacked' or 'reuse', got {self.trainer!r}")
        self._check()

    def _check(self) -> None:
        """Raise :class:`ValueError` if a method's own parameter is out of range."""

    def _found_ground(self, holdings: Holdings) -> Any:
        from fedneighbors.baselines._agreement import Ground

        reserved = () if self.classes is None else reserved_labels(self.classes, holdings.y)
        return Ground.new(self, holdings, self._rounds.seed, reserved)

    def _drawn_up(self, ground: Any) -> Any:
        """Return what the network was made from, as the parameters of this fit tell."""
        from fedneighbors.neural._blueprint import Blueprint

        return Blueprint.of(self, self._row_shape, len(ground.shared.classes))

    def _know(self, ground: Any, labels: npt.NDArray[Any]) -> None:
        self._ground = ground
        self._network, self._shared = ground.network, ground.shared
        self.classes_ = label_array(ground.shared.classes, like=labels)
        self.weights_, self.overall_ = ground.shared.weights, ground.shared.overall


def refuse_negative(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a finite number of 0 or more."""
    if not (_is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"expected {name} of 0 or more, got {value!r}")


def refuse_share(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a number from 0 to 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"expected {name} from 0 to 1, got {value!r}")


def refuse_count(name: str, value: Any, *, least: int = 1) -> None:
    """Raise ValueError unless a parameter is a whole number of so much or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"expected {name} as an integer of {least} or more, got {value!r}")


def refuse_rate(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ValueError unless a parameter is a finite number above 0, or None where it may be."""
    if optional and value is None:
        return
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"expected {name} above 0, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
