"""kNN-Per as a scikit-learn classifier over the clients that own the rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._base import ClientClassifier, Owners
from fedneighbors.methods.knnper._personalized import PersonalizedEstimator
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
    and memories are built anew from all rows.

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


def _spending(privacy: Privacy, members: Sequence[Any]) -> dict[str, Scalar]:
    """Return the privacy that trained clients have spent, for the record of the run."""
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
