"""kNN-Per as a scikit-learn regressor over the clients that own the rows."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._base import Owners
from fedneighbors.methods.knnper._personalized import PersonalizedEstimator
from fedneighbors.methods.knnper._task import Task
from fedneighbors.methods.knnper._tasks import NUMBERS


@dataclass(kw_only=True, eq=False, repr=False)
class KNNPerRegressor(
    PersonalizedEstimator,
    MultiOutputMixin,  # type: ignore[misc]
    RegressorMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A network trained by all clients to predict numbers, and for each a memory of its own rows.

    The clients train one network by federated averaging, on squared error. A prediction is a
    mixture of what the network says and of the mean target of the k nearest rows of the client's
    memory [1]_; how much each weighs is chosen by squared error on rows that are held out inside
    :meth:`fit`. Targets, of one or several outputs, are brought to mean 0 and deviation 1 by exact
    sums over all clients, so that outputs of different units weigh alike.

    There is no ``privacy`` and no ``strategy="drift"`` as of :class:`KNNPerClassifier`: its sums of
    targets are exact, and what is made of them is **not** differentially private.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network, as :class:`KNNPerClassifier` takes it; it gives a number for each output.
    embedding, head, hidden
        As there.
    n_neighbors : int or sequence of int
        Neighbors whose targets are averaged (k); of several each client chooses one, on its
        held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings; of several each client chooses one.
    sigma : float
        Unit of the distances in the kernel.
    kernel : {"paper", "gaussian", "uniform"}
        What a neighbor weighs.
    combine : {"paper", "pool"}
        ``"paper"``: each client's own share for its memory (Eq 7). ``"pool"``: a sum of network,
        memory, the client's mean, and heads on embeddings and on rows, with weights for all clients
        that are found in closed form from sums over their held-out rows.
    capacity : int, optional
        Most rows that a client memorizes.
    strategy : {"concatenate", "fixed", "fifo", "reservoir"}
        What a full memory does with more rows. There is no ``"drift"``, which is told by classes.
    memory : {"exact", "8-bit", "product"}
        What a memory keeps: keys as they are, or codes of them; targets stay as they are. Centers
        are of classes.
    n_rounds, participation, local_epochs, batch_size
        Of the training, as there.
    learning_rate, momentum, weight_decay
        As there.
    validation, standardize, trainer, device, sums
        As there; ``standardize`` is about the columns of rows.
    checkpoint, random_state
        As there.

    Attributes
    ----------
    clients_ : dict of str to OwnPart
        Each client's memory and mixture.
    weights_ : float32 array of shape (n_weights,)
        Of the network.
    overall_ : float64 array of shape (2, n_outputs)
        Means and deviations of the targets over all clients.
    pool_ : dict of str to float
        Weights of the pool's experts; empty for the paper's mixture.
    n_outputs_ : int
        Outputs.
    guarantee_ : str
        Privacy of the shared network in words; empty, since it is exact.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds.

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022.

    Examples
    --------
    Two shops see the same visitors, but in one of them all prices are five higher:

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> shop = np.where(np.arange(200) < 100, "east", "west")
    >>> price = X[:, 0] + 5 * (shop == "west")
    >>> model = KNNPerRegressor(n_rounds=20, hidden=(16,)).fit(X, price, parties=shop)
    >>> model.predict([[0.0, 0.0], [0.0, 0.0]], parties=["east", "west"]).round().tolist()
    [0.0, 5.0]
    """

    _task: ClassVar[Task] = NUMBERS

    strategy: Literal["concatenate", "fixed", "fifo", "reservoir"] = "concatenate"
    memory: Literal["exact", "8-bit", "product"] = "exact"

    def fit(self, X: Any, y: Any, parties: Owners = None) -> Self:
        """Train the network over all clients, and build each client's memory.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, ...)
            Rows: numbers, or whole numbers that stand for tokens.
        y : array of shape (n_rows,) or (n_rows, n_outputs)
            Finite numbers.
        parties : sequence of shape (n_rows,), optional
            Which client owns each row. None means a single one.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        MissingDeviceError
            If there is no graphics card and one is asked for.
        ValueError
            If a parameter is out of range, the network does not give as many numbers as ``y`` has,
            or there is not one owner for each row.
        AggregationError
            If there are too few clients for masked sums.
        """
        self._task.check_settings(self)
        x, y = validate_data(
            self, X, y, dtype="numeric", allow_nd=True, multi_output=True, y_numeric=True
        )
        self._is_flat = y.ndim == 1
        targets = _columns(y)
        self.n_outputs_ = targets.shape[1]
        self._fit(x, targets, parties)
        return self

    def predict(self, X: Any, parties: Owners = None) -> Floats:
        """Return the predicted numbers, of shape (n_rows,) or (n_rows, n_outputs) as ``y`` had.

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Which client asks for each row. A client that is not known, and None where there are
            several, get what the shared network says, with a warning.
        """
        view, said = self._view(X)
        found = said.copy()
        with self._network.alone():
            for name, rows in self._askers(parties, len(view), frames=3).items():
                found[rows] = self.clients_[name].predict(view[rows], said[rows])
        center, scale = self.overall_
        numbers = center + scale * found
        return np.asarray(numbers[:, 0] if self._is_flat else numbers)

    def score(self, X: Any, y: Any, sample_weight: Any = None, parties: Owners = None) -> float:
        """Return the share of the variance that :meth:`predict` explains, as scikit-learn's R2."""
        return float(r2_score(y, self.predict(X, parties), sample_weight=sample_weight))

    def _take(self, kept: Any) -> None:
        self.n_outputs_, self._is_flat = kept.blueprint.n_outputs, kept.flat

    def _values(self, y: Any) -> Floats:
        """Return targets in standard units."""
        given = np.asarray(y, np.float64)
        targets = given[:, None] if given.ndim == 1 else given
        if targets.shape[1:] != (self.n_outputs_,) or not np.isfinite(targets).all():
            raise ValueError(
                f"expected {self.n_outputs_} finite numbers for each row, got an array of shape "
                f"{given.shape}"
            )
        center, scale = self.overall_
        return np.asarray((targets - center) / scale)


def _columns(y: npt.NDArray[Any]) -> Floats:
    return np.asarray(y.reshape(len(y), -1), np.float64)
