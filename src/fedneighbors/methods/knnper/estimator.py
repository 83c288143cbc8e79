"""kNN-Per as a scikit-learn classifier and regressor; each row belongs to a client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import validate_data

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._base import ClientClassifier, Owners
from fedneighbors.methods.knnper._personalized import PersonalizedEstimator
from fedneighbors.methods.knnper._task import NUMBERS, Task
from fedneighbors.privacy._guarantees import Guarantee, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import Scalar
from fedneighbors.tabular._ownership import apply_schema
from fedneighbors.tabular._private import declared_facts
from fedneighbors.tabular._schema import label_array, reserved_labels


@dataclass(kw_only=True, eq=False, repr=False)
class KNNPerClassifier(
    PersonalizedEstimator,
    ClientClassifier,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Personalized classifier with a shared network and a memory of rows for each client.

    The clients train one network by federated averaging. Each client then stores the embeddings of
    its rows and mixes the votes of the k nearest of them with the output of the network [1]_. The
    weights are chosen on rows held out inside :meth:`fit`; then network and memories are rebuilt
    from all rows.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network, or a function of (shape of a row, number of classes) that returns it;
        ``"cnn"`` or ``"mobilenet"`` for images, ``"lstm"`` for windows of characters; None is a
        perceptron for tables. Frozen parameters of a module (``requires_grad``) are not trained.
    embedding : str
        Name of the layer of ``model`` whose output is stored; built-in networks have a default.
    head : str or tuple of str
        Names of the layers after it.
    hidden : tuple of int
        Widths of the perceptron's layers, if ``model`` is None.
    n_neighbors : int or sequence of int
        Number of neighbors (k). From a sequence each client chooses one on its held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings. From a sequence each client chooses one.
    sigma : float
        Unit of the distances in the kernel.
    kernel : {"paper", "gaussian", "uniform"}
        Weight of a neighbor's vote: ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))`` or 1.
    combine : {"paper", "pool"}
        ``"paper"``: a weight of the memory for each client (Eq 7). ``"pool"``: a log-linear pool of
        network, memory, the client's class shares, and heads on embeddings, rows and
        discriminants, with common weights for all clients.
    capacity : int, optional
        Maximum number of rows per client memory.
    strategy : {"concatenate", "fixed", "fifo", "reservoir", "drift"}
        Handling of new rows by a memory.
    memory : {"exact", "8-bit", "product", "centers"}
        Storage of keys: exact or compressed, see :class:`~._settings.MemorySettings`. After
        :meth:`fit`, :meth:`share_codebook` compresses exact memories further.
    n_rounds : int
        Rounds of federated averaging.
    participation : float
        Share of the clients in each round.
    local_epochs : int
        Epochs of a client per round.
    batch_size : int
        Rows per step.
    learning_rate, momentum, weight_decay : float
        Parameters of SGD; the rate falls to a third after 60 and 85 % of the rounds.
    validation : float
        Share of each client's rows held out to choose the mixture.
    standardize : bool
        Scale the columns of a table to mean 0 and deviation 1, by sums over all clients. Rows of
        other shapes are not scaled.
    trainer : {"auto", "stacked", "reuse"}
        Train all clients as one batched product, or one after another; equal up to rounding.
    device : {"cpu", "cuda", "auto"}
        Device of the networks; ``"auto"`` uses a GPU if available. Equal seeds give equal bits on
        a CPU only.
    sums : {"plain", "masked"}
        ``"masked"`` computes all sums over clients by secure aggregation, with the bits of
        ``trainer="reuse"``. Needs three clients, two under ``privacy``.
    checkpoint : path, optional
        File from which an interrupted :meth:`fit` resumes; deleted at the end. Needs a
        ``random_state`` other than None.
    random_state : int, RandomState or None
        Seed of initial weights, row orders, participants and held-out rows. Public.
    privacy : Privacy, optional
        Train the network under differential privacy, see :mod:`~.private`. Predictions from a
        client's own memory are **not** private.
    max_grad_norm : float
        Maximum norm of a row's gradient under ``privacy``.
    classes : sequence, optional
        All possible labels, including those of later clients.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to OwnPart
        Each client's memory and mixture.
    weights_ : float32 array of shape (n_weights,)
        Weights of the network.
    overall_ : float64 array of shape (n_classes,)
        Class shares over all clients.
    pool_ : dict of str to float
        Weights of the pool's experts; empty for the paper's mixture.
    spent_ : dict of str to Guarantee
        Charges of each client's ledger; empty without ``privacy``.
    guarantee_ : str
        Description of the shared network's privacy; empty without a budget. Memories are not
        covered: they contain the clients' own rows.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds, privacy spent.

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> cellar = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> found = KNNPerClassifier(n_rounds=10).fit(X, y, parties=cellar)
    >>> found.score(X, y, parties=cellar) > 0.95
    True
    """

    privacy: Privacy | None = None
    max_grad_norm: float = 1.0
    classes: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any, parties: Owners = None) -> Self:
        """Train the network over all clients, and build each client's memory.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, ...)
            Rows of numbers, or of integer tokens.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Client of each row. None means a single client.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        MissingDeviceError
            If a GPU is requested and none is available.
        ValueError
            If a parameter is out of range, or the numbers of parties and rows differ.
        AggregationError
            If there are too few clients for masked sums.
        DataError
            If there are fewer than two classes.
        """
        if self.privacy is None:
            x, labels = self._validate(X, y)
            known = labels
        else:
            X, labels = apply_schema(X, y, self.privacy)
            x = validate_data(self, X, dtype="numeric", allow_nd=True, ensure_all_finite=False)
            known = np.array(self.privacy.classes)
        reserved = () if self.classes is None else reserved_labels(self.classes, known)
        members = self._fit(x, labels, parties, reserved)
        self.classes_ = label_array(self._shared.classes, like=known)
        self.spent_: dict[str, Guarantee] = {}
        if self.privacy is not None:
            self.spent_ = {member.name: member.spent for member in members}
            spent = _spending(self.privacy, members)
            self.run_record_ = replace(self.run_record_, privacy=spent)
        return self

    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the class probabilities, shape (n_rows, n_classes).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Client of each row. Unknown clients, and None with several clients, get the
            predictions of the shared network, with a warning.
        """
        view, scores = self._view(X)
        shares = np.exp(scores)
        with self._network.alone():
            for name, rows in self._client_rows(parties, len(view)).items():
                shares[rows] = self.clients_[name].predict(view[rows], scores[rows])
        return shares


@dataclass(kw_only=True, eq=False, repr=False)
class KNNPerRegressor(
    PersonalizedEstimator,
    MultiOutputMixin,  # type: ignore[misc]
    RegressorMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Personalized regressor with a shared network and a memory of rows for each client.

    The clients train one network by federated averaging, on squared error. A prediction mixes the
    output of the network and the mean target of the k nearest rows of the client's memory [1]_. The
    weights are chosen by squared error on rows held out inside :meth:`fit`. Targets of one or
    several outputs are scaled to mean 0 and deviation 1 by exact sums over all clients.

    Unlike :class:`KNNPerClassifier` it has no ``privacy`` and no ``strategy="drift"``. The sums of
    targets are exact, and the model is **not** differentially private.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network, as in :class:`KNNPerClassifier`, with one number per output.
    embedding, head, hidden
        As there.
    n_neighbors : int or sequence of int
        Number of neighbors (k). From a sequence each client chooses one on its held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings. From a sequence each client chooses one.
    sigma : float
        Unit of the distances in the kernel.
    kernel : {"paper", "gaussian", "uniform"}
        Weight of a neighbor, as in :class:`KNNPerClassifier`.
    combine : {"paper", "pool"}
        ``"paper"``: a weight of the memory for each client (Eq 7). ``"pool"``: a weighted sum of
        network, memory, the client's mean, and heads on embeddings and rows, with common weights
        in closed form from sums over held-out rows.
    capacity : int, optional
        Maximum number of rows per client memory.
    strategy : {"concatenate", "fixed", "fifo", "reservoir"}
        Handling of new rows by a memory. ``"drift"`` needs classes.
    memory : {"exact", "8-bit", "product"}
        Storage of keys: exact or as codes. Targets stay exact. Centers need classes.
    n_rounds, participation, local_epochs, batch_size
        As there.
    learning_rate, momentum, weight_decay
        As there.
    validation, standardize, trainer, device, sums
        As there; ``standardize`` concerns the columns of rows.
    checkpoint, random_state
        As there.

    Attributes
    ----------
    clients_ : dict of str to OwnPart
        Each client's memory and mixture.
    weights_ : float32 array of shape (n_weights,)
        Weights of the network.
    overall_ : float64 array of shape (2, n_outputs)
        Means and deviations of the targets over all clients.
    pool_ : dict of str to float
        Weights of the pool's experts; empty for the paper's mixture.
    n_outputs_ : int
        Number of outputs.
    guarantee_ : str
        Empty: the regressor has no privacy budget.
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
            Rows of numbers, or of integer tokens.
        y : array of shape (n_rows,) or (n_rows, n_outputs)
            Finite numbers.
        parties : sequence of shape (n_rows,), optional
            Client of each row. None means a single client.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        MissingDeviceError
            If a GPU is requested and none is available.
        ValueError
            If a parameter is out of range, the network's outputs and the columns of ``y`` differ in
            number, or the numbers of parties and rows differ.
        AggregationError
            If there are too few clients for masked sums.
        """
        self._task.check_settings(self)
        x, y = validate_data(
            self, X, y, dtype="numeric", allow_nd=True, multi_output=True, y_numeric=True
        )
        self._is_flat = y.ndim == 1
        targets = np.asarray(y.reshape(len(y), -1), np.float64)
        self.n_outputs_ = targets.shape[1]
        self._fit(x, targets, parties)
        return self

    def predict(self, X: Any, parties: Owners = None) -> Floats:
        """Predict targets, in the shape of ``y`` in fit.

        The shape is (n_rows,) or (n_rows, n_outputs).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Client of each row. Unknown clients, and None with several clients, get the
            predictions of the shared network, with a warning.
        """
        view, net = self._view(X)
        found = net.copy()
        with self._network.alone():
            for name, rows in self._client_rows(parties, len(view), frames=3).items():
                found[rows] = self.clients_[name].predict(view[rows], net[rows])
        center, scale = self.overall_
        numbers = center + scale * found
        return np.asarray(numbers[:, 0] if self._is_flat else numbers)

    def score(self, X: Any, y: Any, sample_weight: Any = None, parties: Owners = None) -> float:
        """Return the coefficient of determination (R2) of :meth:`predict`."""
        return float(r2_score(y, self.predict(X, parties), sample_weight=sample_weight))

    def _take(self, kept: Any) -> None:
        self.n_outputs_, self._is_flat = kept.blueprint.n_outputs, kept.flat

    def _values(self, y: Any) -> Floats:
        """Return standardized targets."""
        given = np.asarray(y, np.float64)
        targets = given[:, None] if given.ndim == 1 else given
        if targets.shape[1:] != (self.n_outputs_,) or not np.isfinite(targets).all():
            raise ValueError(
                f"expected {self.n_outputs_} finite numbers for each row, got an array of shape "
                f"{given.shape}"
            )
        center, scale = self.overall_
        return np.asarray((targets - center) / scale)


def _spending(privacy: Privacy, members: Sequence[Any]) -> dict[str, Scalar]:
    """Return the privacy spent by trained clients, for the run record."""
    spent = [float(member.spent.epsilon) for member in members]
    noise = [member.plan.noise_multiplier for member in members]
    return {
        "epsilon": float(exact(privacy.epsilon, "epsilon")),
        "delta": float(exact(privacy.delta, "delta")),
        "neighbors": "add_remove, one row of one client",
        "mechanism": "noisy class counts and private steps of each client separately",
        "composition": (
            "clients in parallel, because their rows are disjoint; counts and steps of one client "
            "add up, steps by the Renyi accountant of Opacus"
        ),
        "declared": declared_facts(privacy),
        "largest epsilon spent": max(spent),
        "smallest noise multiplier": min(noise),
        "largest noise multiplier": max(noise),
        "not covered": "memories, and a client's predictions from its own memory",
    }
