"""kNN-Per as a scikit-learn classifier and regressor over the clients that own the rows."""

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
from fedneighbors.tabular._schema import label_array, reserved_labels


@dataclass(kw_only=True, eq=False, repr=False)
class KNNPerClassifier(
    PersonalizedEstimator,
    ClientClassifier,
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A network trained by all clients, and for each client a memory of its own rows.

    The clients train one network by federated averaging. Each then keeps the embeddings of its rows
    and mixes what the k nearest of them say with what the network says [1]_. How much each weighs
    is chosen on rows that are held out inside :meth:`fit`, and on nothing else; after that network
    and memories are built again from all rows.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network; a function of (shape of a row, number of classes) that makes it; ``"cnn"`` or
        ``"mobilenet"`` for images, ``"lstm"`` for windows of characters; or None for a perceptron,
        which suits tables. What a module has frozen (``requires_grad``) stays as it is.
    embedding : str
        Name of the layer of ``model`` whose output is memorized; ready networks have their own.
    head : str or tuple of str
        Name of the layers that come after it.
    hidden : tuple of int
        Widths of the perceptron's layers, where ``model`` is None.
    n_neighbors : int or sequence of int
        Neighbors that vote (k); of several each client chooses one, on its held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings; of several each client chooses one.
    sigma : float
        Unit of the distances in the kernel.
    kernel : {"paper", "gaussian", "uniform"}
        What a neighbor's vote weighs: ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))`` or 1.
    combine : {"paper", "pool"}
        ``"paper"``: each client's own share for its memory (Eq 7). ``"pool"``: a log-linear pool of
        network, memory, the client's class shares, and heads on embeddings, on rows and on their
        discriminants, with weights for all clients.
    capacity : int, optional
        Most rows that a client memorizes.
    strategy : {"concatenate", "fixed", "fifo", "reservoir", "drift"}
        What a full memory does with more rows.
    memory : {"exact", "8-bit", "product", "centers"}
        What a memory keeps: keys as they are, or less; see :class:`~._settings.MemorySettings`.
        After :meth:`fit`, :meth:`share_codebook` makes exact memories smaller still.
    n_rounds : int
        Rounds of federated averaging.
    participation : float
        Share of the clients that take part in a round.
    local_epochs : int
        Passes over its rows that a client makes in a round.
    batch_size : int
        Rows of a step.
    learning_rate, momentum, weight_decay : float
        Of the steps; the rate falls to a third after 60 and 85 % of the rounds.
    validation : float
        Share of each client's rows that is held out to choose the mixture.
    standardize : bool
        Bring the columns of a table to mean 0 and deviation 1, by sums over all clients. Rows of
        other shapes are left as they are.
    trainer : {"auto", "stacked", "reuse"}
        All clients as one batched product, or one after another; the same up to rounding.
    device : {"cpu", "cuda", "auto"}
        Where networks are computed; ``"auto"`` takes a graphics card if there is one. Equal seeds
        give equal bits on the processor alone.
    sums : {"plain", "masked"}
        ``"masked"`` forms all sums over clients by secure aggregation, to the same bits as
        ``trainer="reuse"`` without. Needs three clients, two under ``privacy``.
    checkpoint : path, optional
        File from which an interrupted :meth:`fit` goes on; deleted at the end. It needs a
        ``random_state`` that is not None: no other training has the same seed.
    random_state : int, RandomState or None
        Of first weights, orders of rows, who takes part, and what is held out. Public.
    privacy : Privacy, optional
        Train the network under differential privacy, see :mod:`~.private`. What a client predicts
        from its own memory is **not** private.
    max_grad_norm : float
        Largest length of a row's gradient under ``privacy``.
    classes : sequence, optional
        All labels that may ever come, also from clients that are not here yet.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to OwnPart
        Each client's memory and mixture.
    weights_ : float32 array of shape (n_weights,)
        Of the network.
    overall_ : float64 array of shape (n_classes,)
        Shares of the classes over all clients.
    pool_ : dict of str to float
        Weights of the pool's experts; empty for the paper's mixture.
    spent_ : dict of str to Guarantee
        What each client's ledger has charged; empty without ``privacy``.
    guarantee_ : str
        Privacy of the shared network in words; empty where it is exact. Memories are no part of it:
        they are the clients' own rows.
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
            Rows: numbers, or whole numbers that stand for tokens.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Which client owns each row. None means a single one.

        Raises
        ------
        MissingExtraError
            If torch is not installed.
        MissingDeviceError
            If there is no graphics card and one is asked for.
        ValueError
            If a parameter is out of range, or there is not one owner for each row.
        AggregationError
            If there are too few clients for masked sums.
        DataError
            If there are fewer than two classes.
        """
        x, labels = self._validated(X, y)
        reserved = () if self.classes is None else reserved_labels(self.classes, labels)
        members = self._fit(x, labels, parties, reserved)
        self.classes_ = label_array(self._shared.classes, like=labels)
        self.spent_: dict[str, Guarantee] = {}
        if self.privacy is not None:
            self.spent_ = {member.name: member.spent for member in members}
            spent = _spending(self.privacy, members)
            self.run_record_ = replace(self.run_record_, privacy=spent)
        return self

    def predict_proba(self, X: Any, parties: Owners = None) -> Floats:
        """Return the shares of the classes, shape (n_rows, n_classes).

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Which client asks for each row. A client that is not known, and None where there are
            several, get what the shared network says, with a warning.
        """
        view, scores = self._view(X)
        shares = np.exp(scores)
        with self._network.alone():
            for name, rows in self._askers(parties, len(view)).items():
                shares[rows] = self.clients_[name].predict(view[rows], scores[rows])
        return shares


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
        targets = np.asarray(y.reshape(len(y), -1), np.float64)
        self.n_outputs_ = targets.shape[1]
        self._fit(x, targets, parties)
        return self

    def predict(self, X: Any, parties: Owners = None) -> Floats:
        """Predict numbers, of the shape that ``y`` had in fit.

        (n_rows,) or (n_rows, n_outputs).

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


def _spending(privacy: Privacy, members: Sequence[Any]) -> dict[str, Scalar]:
    """Return the privacy spent by trained clients, for the run record."""
    spent = [float(member.spent.epsilon) for member in members]
    noise = [member.plan.noise_multiplier for member in members]
    return {
        "epsilon": float(exact(privacy.epsilon, "epsilon")),
        "delta": float(exact(privacy.delta, "delta")),
        "neighbors": "add_remove, one row of one client",
        "mechanism": "noised class counts and private steps of each client by itself",
        "composition": (
            "clients in parallel, for their rows are disjoint; counts and steps of one add up, its "
            "steps by the Renyi accountant of Opacus"
        ),
        "public": ", ".join(privacy.public) or "nothing",
        "largest epsilon spent": max(spent),
        "smallest noise multiplier": min(noise),
        "largest noise multiplier": max(noise),
        "not covered": "memories, and what a client predicts from its own",
    }
