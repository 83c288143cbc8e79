"""kNN-Per as a scikit-learn classifier and regressor; each row belongs to a client."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._base import ClientClassifier, Owners
from fedneighbors.methods.knnper._personalized import PersonalizedEstimator
from fedneighbors.methods.knnper._task import REGRESSION, Task
from fedneighbors.privacy._guarantees import Guarantee, exact
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import Scalar
from fedneighbors.tabular._ownership import plain_targets, validate_rows
from fedneighbors.tabular._private import declared_facts
from fedneighbors.tabular._schema import apply_schema, label_array, reserved_labels


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
    weights of the mixture are chosen on rows held out inside :meth:`fit`; then network and memories
    are rebuilt from all rows. Under ``privacy`` the network is not trained again. By default,
    discriminants take the place of the network, see ``representation``.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network, or a function of (shape of a row, number of classes) that returns it;
        ``"cnn"`` or ``"mobilenet"`` for images, ``"lstm"`` for windows of characters; None is a
        perceptron for tables. Frozen parameters of a module (``requires_grad``) are not trained.
    representation : {"auto", "network", "discriminants", "rows"}, callable or transformer
        Keys of the memories, and the shared model:

        - ``"auto"``: ``"discriminants"``, or ``"network"`` if ``privacy``, ``checkpoint`` or a
          parameter of networks, rounds or SGD differs from its default.
        - ``"network"``: the embedding of the trained network, whose softmax is the shared model.
        - ``"discriminants"``: directions of a regularized linear discriminant analysis of random
          features of the rows, from sums over all clients. The shared model is its posterior. No
          gradient rounds, and no torch. Labels must have the same meaning for all clients.
        - ``"rows"``: the rows, standardized or not; the shared model is the posterior of a
          regularized linear discriminant analysis of them, from the same sums.
        - a function of an array of rows, or a fitted transformer of scikit-learn: its outputs, as
          they are; the shared model is the posterior on them, as for ``"rows"``.

        Except for ``"network"``, the result is bit-identical to that of pooled rows (for functions:
        if the output of a row does not depend on others), and parameters of networks and rounds
        have no effect.
    embedding : str
        Name of the layer of ``model`` whose output is stored; built-in networks have a default.
    head : str or tuple of str
        Names of the layers after the embedding.
    hidden : tuple of int
        Widths of the perceptron's layers, if ``model`` is None.
    n_neighbors : int or sequence of int
        Number of neighbors (k). From a sequence, each client chooses one on its held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings. From a sequence, each client chooses one on its held-out rows.
    sigma : float or "auto"
        Scale of the distances in the kernel. With ``"auto"``, each client uses the median, over its
        held-out rows, of the distance from the row to its k-th nearest key among the client's other
        rows; 1 if that is 0 or there is no such row.
    kernel : {"paper", "gaussian", "uniform"}
        Weight of a neighbor at distance d: ``exp(-d / sigma)``, ``exp(-d^2 / (2 sigma^2))`` or 1.
    combine : {"auto", "paper", "pool"}
        ``"paper"``: each client chooses the weight of its memory (Eq 7). ``"pool"``: a log-linear
        pool of shared model, memory, the client's class shares, and heads on embeddings, rows and
        discriminants, with the same weights for all clients, 0 or more. A pool's memories contain
        the rows themselves. ``"auto"``: ``"pool"`` for discriminants, else ``"paper"``.
    capacity : int, optional
        Maximum number of rows per client memory.
    strategy : {"concatenate", "fixed", "fifo", "reservoir", "drift"}
        Handling of new rows by a memory.
    memory : {"exact", "8-bit", "product", "centers"}
        Storage of keys: exact or compressed, see :class:`~._settings.MemorySettings`. After
        :meth:`fit`, :meth:`share_codebook` compresses exact memories further.
    n_rounds : int or "plateau"
        Rounds of federated averaging. ``"plateau"``: stop when the mean loss of all clients'
        held-out rows, a sum over clients, has not improved for ``patience`` rounds, or after
        ``max_rounds``; the best round decides on the model and on the rounds over all rows.
    patience, max_rounds : int
        Limits for ``n_rounds="plateau"``.
    participation : float
        Fraction of the clients that train in each round.
    local_epochs : int
        Passes of a client over its rows per round.
    batch_size : int
        Number of rows per step of SGD.
    learning_rate, momentum, weight_decay : float
        Parameters of SGD.
    learning_rate_schedule : {"steps", "constant", "cosine"}
        ``"steps"`` multiplies the learning rate by ``learning_rate_factor`` after 60 % and after
        85 % of the rounds; ``"cosine"`` lowers it along half a wave towards 0. At a plateau, the
        rounds are ``max_rounds``.
    learning_rate_factor : float
        Factor of the steps, in (0, 1].
    validation : float
        Fraction of each client's rows held out to choose k, metric and weights.
    standardize : bool
        Scale the columns of a table to mean 0 and standard deviation 1, by sums over all clients;
        under ``privacy``, from its ``bounds`` to [-1, 1]. Images and tokens are not scaled.
    trainer : {"auto", "stacked", "reuse"}
        ``"stacked"`` trains clients together, each layer as one batched product; ``"reuse"`` trains
        them one after another. They agree up to rounding. ``"auto"`` chooses.
    device : {"cpu", "cuda", "auto"}
        Device of the networks; ``"auto"`` uses a GPU if available. Equal seeds give bit-identical
        results on a CPU only.
    sums : {"plain", "masked"}
        ``"masked"`` computes all sums over clients by secure aggregation; the result is
        bit-identical to that of ``trainer="reuse"``. It needs at least three clients, two under
        ``privacy``.
    checkpoint : path, optional
        File from which an interrupted :meth:`fit` resumes; deleted at the end. Needs a
        ``random_state`` other than None.
    random_state : int, RandomState or None
        Seed of initial weights, row orders, participants and held-out rows. It is public.
    privacy : Privacy, optional
        Train the network under differential privacy, see :mod:`~.private`. Predictions from a
        client's own memory are **not** private.
    max_grad_norm : float
        Maximum norm of a row's gradient under ``privacy``.
    classes : sequence, optional
        All possible labels, including those of later clients. None: the labels in ``y``.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    clients_ : dict of str to ClientState
        Each client's memory and its weight.
    weights_ : float array of shape (n_weights,)
        Weights of the network, or of the linear head on a frozen embedding.
    overall_ : float64 array of shape (n_classes,)
        Class shares over all clients, with one row of each class added.
    pool_ : FittedPool or None
        The pool's ``experts``, their ``weights``, the mean ``loss`` of held-out rows, and the
        ``losses_without`` each expert; None without a pool.
    spent_ : dict of str to Guarantee
        Total that each client's ledger was charged; empty without ``privacy``.
    guarantee_ : str
        Description of the shared network's privacy; empty without a budget. Memories are not
        covered: they contain the clients' own rows.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds, experts of a pool, and privacy spent.

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> cellar = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> model = KNNPerClassifier().fit(X, y, parties=cellar)
    >>> model.score(X, y, parties=cellar) > 0.95
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
            Class labels.
        parties : sequence of shape (n_rows,), optional
            Client of each row. None means a single client.

        Raises
        ------
        MissingExtraError
            If torch is not installed and the representation is a network.
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
            x, labels = self._validate(X, y, parties)
            known = labels
        else:
            X, labels = apply_schema(X, y, self.privacy)
            x = validate_rows(self, X, dtype="numeric", allow_nd=True, ensure_all_finite=False)
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
        features, scores = self._features_and_scores(X)
        probabilities = np.exp(scores)
        with self._network.exclusive():
            for name, rows in self._client_rows(parties, len(features)).items():
                probabilities[rows] = self.clients_[name].predict(features[rows], scores[rows])
        return probabilities


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
    weights of the mixture are chosen by squared error on rows held out inside :meth:`fit`. Targets
    of one or several outputs are scaled to mean 0 and standard deviation 1 by exact sums over all
    clients.

    Unlike :class:`KNNPerClassifier`, it has no ``privacy`` and no ``strategy="drift"``. The sums of
    targets are exact, and the model is **not** differentially private.

    Parameters
    ----------
    model : torch.nn.Module, callable, str or None
        The network, as in :class:`KNNPerClassifier`, with one score per output.
    representation : {"auto", "network", "rows"}, callable or transformer
        As in :class:`KNNPerClassifier`; ``"auto"`` is ``"network"``. The shared model on a frozen
        embedding is a regularized linear regression from sums over all clients. Discriminants need
        classes.
    embedding, head, hidden
        As in :class:`KNNPerClassifier`.
    n_neighbors : int or sequence of int
        Number of neighbors (k). From a sequence, each client chooses one on its held-out rows.
    metric : {"euclidean", "cosine"} or sequence of these
        Distance of embeddings. From a sequence, each client chooses one on its held-out rows.
    sigma : float or "auto"
        Scale of the distances in the kernel, as in :class:`KNNPerClassifier`.
    kernel : {"paper", "gaussian", "uniform"}
        Weight of a neighbor, as in :class:`KNNPerClassifier`.
    combine : {"auto", "paper", "pool"}
        ``"paper"`` or ``"auto"``: each client chooses the weight of its memory (Eq 7). ``"pool"``:
        a weighted sum of network, memory, the client's mean, and heads on embeddings and rows. The
        weights, 0 or more, are the same for all clients, by least squares on the held-out rows.
    capacity : int, optional
        Maximum number of rows per client memory.
    strategy : {"concatenate", "fixed", "fifo", "reservoir"}
        Handling of new rows by a memory. ``"drift"`` needs classes.
    memory : {"exact", "8-bit", "product"}
        Storage of keys: exact or as codes. Targets stay exact. Centers need classes.
    n_rounds, patience, max_rounds, participation, local_epochs, batch_size
        As in :class:`KNNPerClassifier`.
    learning_rate, momentum, weight_decay, learning_rate_schedule, learning_rate_factor
        As in :class:`KNNPerClassifier`.
    validation, standardize, trainer, device, sums
        As in :class:`KNNPerClassifier`. Targets are always standardized.
    checkpoint, random_state
        As in :class:`KNNPerClassifier`.

    Attributes
    ----------
    clients_ : dict of str to ClientState
        Each client's memory and its weight.
    weights_ : float array of shape (n_weights,)
        Weights of the network, or of the linear head on a frozen embedding.
    overall_ : float64 array of shape (2, n_outputs)
        Means and standard deviations of the targets over all clients.
    pool_ : FittedPool or None
        The pool's ``experts``, their ``weights``, the mean ``loss`` of held-out rows, and the
        ``losses_without`` each expert; None without a pool.
    n_outputs_ : int
        Number of outputs.
    guarantee_ : str
        Empty: the regressor has no privacy budget.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds, and experts of the pool.

    References
    ----------
    .. [1] Marfoq, Neglia, Kameni and Vidal, "Personalized Federated Learning through Local
       Memorization", ICML 2022.

    Examples
    --------
    In two shops, prices depend on the features alike, but in one they are higher by five:

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> shop = np.where(np.arange(200) < 100, "east", "west")
    >>> price = X[:, 0] + 5 * (shop == "west")
    >>> model = KNNPerRegressor(n_rounds=20, hidden=(16,)).fit(X, price, parties=shop)
    >>> model.predict([[0.0, 0.0], [0.0, 0.0]], parties=["east", "west"]).round().tolist()
    [0.0, 5.0]
    """

    _task: ClassVar[Task] = REGRESSION

    strategy: Literal["concatenate", "fixed", "fifo", "reservoir"] = "concatenate"
    memory: Literal["exact", "8-bit", "product"] = "exact"

    def fit(self, X: Any, y: Any, parties: Owners = None) -> Self:
        """Train the network over all clients, and build each client's memory.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, ...)
            Rows of numbers, or of integer tokens.
        y : array of shape (n_rows,) or (n_rows, n_outputs)
            Targets: finite numbers.
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
        y = plain_targets(y, parties)
        x, y = validate_rows(
            self, X, y, dtype="numeric", allow_nd=True, multi_output=True, y_numeric=True
        )
        self._is_flat = y.ndim == 1
        targets = np.asarray(y.reshape(len(y), -1), np.float64)
        self.n_outputs_ = targets.shape[1]
        self._fit(x, targets, parties)
        return self

    def predict(self, X: Any, parties: Owners = None) -> Floats:
        """Return predicted targets, shape (n_rows,) or (n_rows, n_outputs).

        The number of dimensions is that of ``y`` in :meth:`fit`.

        Parameters
        ----------
        X : array of shape (n_rows, ...)
            Rows.
        parties : sequence of shape (n_rows,), optional
            Client of each row. Unknown clients, and None with several clients, get the
            predictions of the shared network, with a warning.
        """
        features, scores = self._features_and_scores(X)
        standardized = scores.copy()
        with self._network.exclusive():
            for name, rows in self._client_rows(parties, len(features), level=3).items():
                standardized[rows] = self.clients_[name].predict(features[rows], scores[rows])
        center, scale = self.overall_
        targets = center + scale * standardized
        return np.asarray(targets[:, 0] if self._is_flat else targets)

    def score(self, X: Any, y: Any, sample_weight: Any = None, parties: Owners = None) -> float:
        """Return the coefficient of determination (R2) of :meth:`predict`."""
        return float(r2_score(y, self.predict(X, parties), sample_weight=sample_weight))

    def _set_task_attributes(self, stored: Any) -> None:
        self.n_outputs_, self._is_flat = stored.blueprint.n_outputs, stored.flat

    def _values(self, y: Any) -> Floats:
        """Return standardized targets."""
        array = np.asarray(y, np.float64)
        targets = array[:, None] if array.ndim == 1 else array
        if targets.shape[1:] != (self.n_outputs_,) or not np.isfinite(targets).all():
            raise ValueError(
                f"expected {self.n_outputs_} finite numbers for each row, got an array of shape "
                f"{array.shape}"
            )
        center, scale = self.overall_
        return np.asarray((targets - center) / scale)


def _spending(privacy: Privacy, members: Sequence[Any]) -> dict[str, Scalar]:
    """Return the privacy spent by trained clients, for the run record."""
    epsilons = [float(member.spent.epsilon) for member in members]
    multipliers = [member.plan.noise_multiplier for member in members]
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
        "largest epsilon spent": max(epsilons),
        "smallest noise multiplier": min(multipliers),
        "largest noise multiplier": max(multipliers),
        "not covered": "memories, and a client's predictions from its own memory",
    }
